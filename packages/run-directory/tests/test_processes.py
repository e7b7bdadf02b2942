"""One answer for every process of a run, whichever of them asks first."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.run_directory import get_node_run_directory

# In one write, so that lines of several processes stay apart.
ASK = """
import os
from stretto.run_directory import get_node_run_directory
os.write(1, get_node_run_directory().encode() + b"\\n")
"""

SPAWN = """
import multiprocessing, sys
from stretto.run_directory import get_node_run_directory

def answer(pipe):
    pipe.send(get_node_run_directory())

if __name__ == "__main__":
    first = sys.argv[2] == "parent first"
    mine = get_node_run_directory() if first else None
    context = multiprocessing.get_context(sys.argv[1])
    ours, theirs = context.Pipe()
    children = [context.Process(target=answer, args=(theirs,)) for _ in range(2)]
    for child in children:
        child.start()
    answers = {ours.recv() for _ in children} | {mine or get_node_run_directory()}
    print(len(answers), *answers, sep="\\n")
"""

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def run(*command: str, **environment: str) -> str:
    """Run a command to its end and return what it printed."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
@pytest.mark.parametrize("order", ["parent first", pytest.param("child first", marks=needs_proc)])
def test_children_and_parent_agree_whoever_asks_first(method, order, workplace):
    """A1, R5."""
    script = workplace / "script.py"
    script.write_text(SPAWN)
    count, answer, *_ = run(sys.executable, str(script), method, order).splitlines()
    assert count == "1"
    assert Path(answer).parent == workplace / "runs"


def test_a_subprocess_takes_over_what_its_parent_settled(workplace):
    settled = get_node_run_directory()
    assert run(sys.executable, "-c", ASK).strip() == settled


LAUNCHERS = {
    "torchrun": {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"},
    "srun": {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "8"},
    "mpirun": {"OMPI_COMM_WORLD_SIZE": "2"},
}
RANK_OF = {"torchrun": "RANK", "srun": "SLURM_PROCID", "mpirun": "OMPI_COMM_WORLD_RANK"}

LAUNCHER = """
import os, subprocess, sys
wrap, rank_variable, *command = sys.argv[1:]
shared = dict(item.split("=") for item in os.environ.pop("SHARED").split())
if wrap == "wrapped":
    command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
ranks = [
    subprocess.Popen(command, env={**os.environ, **shared, rank_variable: str(rank)})
    for rank in range(2)
]
sys.exit(any([rank.wait() for rank in ranks]))
"""


@needs_proc
@pytest.mark.parametrize("wrap", ["bare", "wrapped"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_that_nobody_told_agree_on_one_node(launcher, wrap, workplace):
    """A1: the ranks of a foreign launcher, each started with or without a shell around it."""
    shared = " ".join(f"{name}={value}" for name, value in LAUNCHERS[launcher].items())
    command = (sys.executable, "-c", LAUNCHER, wrap, RANK_OF[launcher], sys.executable, "-c", ASK)
    first = run(*command, SHARED=shared).split()
    again = run(*command, SHARED=shared).split()
    assert len(first) == 2
    assert len(set(first)) == 1
    assert len(set(again)) == 1
    assert first[0] != again[0], "another run must get another folder"


@needs_proc
def test_runs_started_at_once_from_one_shell_get_folders_of_their_own(workplace):
    runs = [
        subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    answers = [process.communicate()[0].strip() for process in runs]
    assert len(set(answers)) == 8


def test_the_default_name_holds_on_a_system_without_proc(workplace, monkeypatch):
    from stretto.run_directory import origin

    monkeypatch.setattr(origin, "_stat_fields", lambda process: [])
    assert origin.default_run_name() == origin.default_run_name()
    assert get_node_run_directory() == str(workplace / "runs" / origin.default_run_name())
