from __future__ import annotations

import pytest

from stretto.run_directory import InvalidRankError
from stretto.run_directory.rank import (
    get_global_rank,
    get_local_rank,
    get_local_world_size,
    get_node_rank,
    get_world_size,
)

ALL = (get_global_rank, get_world_size, get_local_rank, get_local_world_size, get_node_rank)

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
}
SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_NODEID": "1",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
}
# mpirun in a SLURM job starts one daemon a node with srun, whose variables the ranks inherit.
DAEMON = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NODEID": "0",
}
# What a plain `python` in a batch script of eight tasks sees.
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_NTASKS_PER_NODE": "4",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({}, (0, 1, 0, 1, 0), id="nothing"),
        pytest.param(TORCHRUN, (5, 8, 1, 4, 1), id="torchrun"),
        pytest.param({**TORCHRUN, "NODE_RANK": "1"}, (5, 8, 1, 4, 1), id="stretto"),
        pytest.param(SRUN, (5, 7, 1, 3, 1), id="srun"),
        pytest.param(MPIRUN, (5, 8, 1, 4, 1), id="mpirun"),
        pytest.param({**MPIRUN, "OMPI_COMM_WORLD_NODE_RANK": "3"}, (5, 8, 1, 4, 1), id="ompi node"),
        pytest.param({**DAEMON, **MPIRUN}, (5, 8, 1, 4, 1), id="mpirun in slurm"),
        pytest.param({**SRUN, **TORCHRUN}, (5, 8, 1, 4, 1), id="torchrun in slurm"),
        pytest.param(BATCH_SCRIPT, (0, 1, 0, 1, 0), id="python in a batch script"),
        pytest.param({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4, 0, 1, 0), id="by hand"),
        pytest.param({"RANK": "", "WORLD_SIZE": " "}, (0, 1, 0, 1, 0), id="empty"),
    ],
)
def test_ranks_of_each_launcher(environment, expected, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert tuple(function() for function in ALL) == expected


@pytest.mark.parametrize(
    ("listed", "node", "expected"), [("2(x3),5", 2, 2), ("2(x3),5", 3, 5), ("4", 0, 4)]
)
def test_slurms_short_list_of_tasks_is_read(listed, node, expected, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", listed)
    monkeypatch.setenv("SLURM_NODEID", str(node))
    assert get_local_world_size() == expected


@pytest.mark.parametrize("value", ["-1", "x", "1.0", "٣", "0x1"])
@pytest.mark.parametrize(
    ("variable", "function"),
    [
        ("RANK", get_global_rank),
        ("SLURM_PROCID", get_global_rank),
        ("WORLD_SIZE", get_world_size),
        ("LOCAL_RANK", get_local_rank),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", get_local_world_size),
        ("NODE_RANK", get_node_rank),
    ],
)
def test_a_variable_that_is_no_rank_is_named(variable, value, function, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidRankError, match=variable) as caught:
        function()
    assert repr(value) in str(caught.value)


def test_a_world_of_nobody_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "0")
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        get_world_size()


def test_a_list_of_tasks_that_cannot_be_read_is_named(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "4;3")
    with pytest.raises(InvalidRankError, match="4;3"):
        get_local_world_size()
