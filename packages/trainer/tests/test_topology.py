"""The one object that knows ranks and sizes."""

from __future__ import annotations

import dataclasses

import pytest

from stretto.trainer.distributed import Topology

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")


@pytest.fixture
def environment(monkeypatch):
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_one_process_is_rank_zero_of_one():
    topology = Topology.single()
    assert topology.is_rank_zero
    assert topology.is_local_rank_zero
    assert topology.data_parallel_size == topology.shard_size == topology.tensor_size == 1
    assert topology.mesh is None


def test_an_empty_environment_is_one_process(environment):
    assert Topology.from_environment() == Topology.single()


def test_torchrun_variables_of_the_second_node(environment):
    values = {"RANK": 6, "WORLD_SIZE": 8, "LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 4, "GROUP_RANK": 1}
    for name, value in values.items():
        environment.setenv(name, str(value))
    topology = Topology.from_environment()
    assert (topology.node_rank, topology.num_nodes) == (1, 2)
    assert (topology.data_parallel_rank, topology.data_parallel_size) == (6, 8)
    assert not topology.is_rank_zero
    assert not topology.is_local_rank_zero


def test_a_smaller_last_node_still_counts(environment):
    values = {"RANK": 5, "WORLD_SIZE": 6, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "NODE_RANK": 1}
    for name, value in values.items():
        environment.setenv(name, str(value))
    assert Topology.from_environment().num_nodes == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_rank": 2}, "global rank is 2 of 2"),
        ({"local_rank": 2}, "local rank is 2 of 2"),
        ({"data_parallel_size": 3}, "not the 2 ranks of the run"),
        ({"shard_size": 3, "shard_rank": 0}, "groups of 3 shards"),
        ({"node_rank": -1}, "node rank is -1 of 1"),
    ],
)
def test_ranks_and_sizes_that_contradict_each_other_are_refused(changes, message):
    good = {
        "world_size": 2,
        "global_rank": 1,
        "local_rank": 1,
        "local_world_size": 2,
        "data_parallel_size": 2,
        "data_parallel_rank": 1,
    }
    Topology(**good)
    with pytest.raises(ValueError, match=message):
        Topology(**{**good, **changes})


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Topology.single().world_size = 2
