"""The launcher with real processes; the ranks are small scripts without torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

STRETTO = [sys.executable, "-c", "from stretto.trainer.launcher.cli import main; main()"]
PATIENCE = 120.0

ARGUMENTS = [
    'a"b',
    "it's",
    "two words",
    "$(touch pwned)",
    "`touch pwned`",
    "$HOME",
    "$$",
    "${local_rank}",
    "~",
    "*",
    "",
    "-n",
    "--help",
    "--",
    "line\nbreak",
    "ü☃",
    "back\\slash",
]

REPORT = """
import json, os, sys
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR",
         "MASTER_PORT", "STRETTO_RUN_DIRECTORY", "COMPOSER_RUN_DIRECTORY", "PYTHONUNBUFFERED"]
report = {"argv": sys.argv[1:], "path": sys.path[0], "cwd": os.getcwd()}
report |= {name: os.environ[name] for name in names}
with open(f"report{os.environ['RANK']}.json", "w") as file:
    json.dump(report, file)
print("said by", os.environ["RANK"])
print("complained by", os.environ["RANK"], file=sys.stderr)
"""

# Rank 1 fails with 3; rank 0 has children and sleeps: all but that in a session of its own must go.
FAIL = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
def note(name, pid):
    with open(name + ".new", "w") as file:
        file.write(str(pid))
    os.rename(name + ".new", name)
if os.environ["RANK"] == "0":
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    note("child", subprocess.Popen(sleep, **quiet).pid)
    note("uploader", subprocess.Popen(sleep, start_new_session=True, **quiet).pid)
    note("rank0", os.getpid())
    time.sleep(600)
while not os.path.exists("rank0"):
    time.sleep(0.01)
sys.stderr.write("the reason is here\\n")
END
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("STRETTO_", "COMPOSER_", "TORCHELASTIC_", "MASTER_")):
            monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "BASE_RANK"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*STRETTO, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # pyright: ignore
    )


def launch(*arguments: str) -> tuple[int, str, str]:
    process = start(*arguments)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def noted(place: Path, name: str) -> int:
    until((place / name).exists, name)
    return int((place / name).read_text())


@contextlib.contextmanager
def spared(place: Path) -> Iterator[None]:
    """Hold that the process in a session of its own lives on, and end it."""
    pid = noted(place, "uploader")
    try:
        yield
        assert alive(pid), "the uploader was killed with the ranks"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_every_rank_gets_its_arguments_environment_and_log_and_a_rerun_keeps_the_old_logs(place):
    """D2 and D3: argv reaches the ranks unchanged; the same run directory again is no error."""
    script = write(place / "script.py", REPORT)
    command = ("-n", "2", "--run_directory", "runs/a", script, *ARGUMENTS)
    code, out, err = launch(*command)
    assert (code, out, err) == (0, "said by 0\n", "complained by 0\n")
    assert not (place / "pwned").exists()
    for rank in ("0", "1"):
        report = json.loads((place / f"report{rank}.json").read_text())
        assert report["argv"] == ARGUMENTS
        assert report["cwd"] == report["path"] == str(place)
        assert (report["RANK"], report["LOCAL_RANK"]) == (rank, rank)
        assert (report["WORLD_SIZE"], report["LOCAL_WORLD_SIZE"], report["NODE_RANK"]) == (
            "2",
            "2",
            "0",
        )
        assert report["MASTER_ADDR"] == "127.0.0.1"
        assert 0 < int(report["MASTER_PORT"]) < 65536
        assert report["STRETTO_RUN_DIRECTORY"] == str(place / "runs/a")
        assert report["COMPOSER_RUN_DIRECTORY"] == str(place / "runs/a")
        assert report["PYTHONUNBUFFERED"] == "1"
    logs = place / "runs/a/logs"
    expected = {"rank_1.stdout.txt": "said by 1\n", "rank_1.stderr.txt": "complained by 1\n"}
    assert {path.name: path.read_text() for path in logs.iterdir()} == expected

    (logs / "rank_1.stdout.txt").write_text("the first run's\n")
    code, out, err = launch(*command)
    assert (code, out, err) == (0, "said by 0\n", "complained by 0\n")
    kept = {path.name: path.read_text() for path in logs.iterdir()}
    assert kept["rank_1.stdout.txt"] == "said by 1\n"
    assert "the first run's\n" in kept.values()
    assert len(kept) == 4


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [
        pytest.param("sys.exit(3)", 3, "exit code 3", id="exit"),
        pytest.param("os.kill(os.getpid(), 9)", 137, "SIGKILL", id="signal"),
    ],
)
def test_one_failing_rank_ends_the_whole_tree_with_its_code(place, end, code, how):
    """D1 and D4."""
    script = write(place / "script.py", FAIL.replace("END", end))
    returned, _, err = launch("-n", "2", "--run-directory", "run", script)
    assert returned == code
    with spared(place):
        assert not alive(noted(place, "rank0"))
        assert not alive(noted(place, "child"))
    assert "rank 1 failed first" in err
    assert how in err
    assert "the reason is here" in err


def test_the_code_is_that_of_the_rank_that_failed_first_however_close_the_next(place):
    """Rank 0 waits for the death of rank 1 and fails in the same tenth of a second."""
    script = write(
        place / "script.py",
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    open('rank1', 'w').write(str(os.getpid())); os.rename('rank1', 'one')\n"
        "    while not os.path.exists('zero'): time.sleep(0.001)\n"
        "    os._exit(3)\n"
        "while not os.path.exists('one'): time.sleep(0.001)\n"
        "peer = os.pidfd_open(int(open('one').read()))\n"
        "open('zero', 'w').close()\n"
        "import select\n"
        "select.select([peer], [], [])\n"
        "os._exit(1)\n",
    )
    code, _, err = launch("-n", "2", "--run-directory", "run", script)
    assert code == 3, err
    assert "rank 1 failed first" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ending_the_launcher_ends_the_ranks(place, number):
    script = write(place / "script.py", FAIL.replace("END", "time.sleep(600)"))
    process = start("-n", "2", "--run-directory", "run", script)
    rank, child = noted(place, "rank0"), noted(place, "child")
    with spared(place):
        process.send_signal(number)
        process.communicate(timeout=PATIENCE)
        if number == signal.SIGKILL:
            assert process.returncode == -number
            os.kill(child, signal.SIGKILL)  # its rank had no chance to end it
        else:
            assert process.returncode == 128 + number
        until(lambda: not alive(rank) and not alive(child), "the ranks' end")


def test_what_finished_ranks_leave_in_their_group_ends_and_other_sessions_live_on(place):
    """D4."""
    lines = [
        line for line in FAIL.splitlines() if "time.sleep(600)" not in line or "sleep =" in line
    ]
    script = write(place / "script.py", "\n".join(lines).replace("END", "sys.exit(0)"))
    code, _, err = launch("-n", "2", "--run-directory", "run", script)
    assert code == 0, err
    with spared(place):
        assert not alive(noted(place, "child"))


def test_modules_verbose_output_and_log_names(place):
    package = place / "package"
    package.mkdir()
    write(package / "__main__.py", REPORT)
    code, out, err = launch(
        "-n",
        "2",
        "-v",
        "--run-directory",
        "run",
        "--stdout",
        "out/{rank}-of-{world_size}-{local_rank}-{node_rank}-{local_world_size}.txt",
        "-m",
        "package",
        "x",
    )
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[rank 0]: said by 0", "[rank 1]: said by 1"]
    assert "[rank 1]: complained by 1" in err
    for rank in (0, 1):
        assert (place / "out" / f"{rank}-of-2-{rank}-0-2.txt").read_text() == f"said by {rank}\n"
        assert json.loads((place / f"report{rank}.json").read_text())["argv"] == ["x"]


def test_a_command_is_run_as_it_is_and_a_missing_one_is_named(place):
    code, out, err = launch(
        "-n", "1", "--run-directory", "run", "-c", "sh", "-c", "echo $0 $1", "a"
    )
    assert (code, out, err) == (0, "a\n", "")
    code, _, err = launch("-n", "1", "--run-directory", "run", "-c", "no-such-command")
    assert code == 127
    assert "no-such-command" in err


def test_two_nodes_and_two_launches_at_once(place):
    """Two launchers are two nodes of one run; a third run beside them takes another port."""
    from socket import socket

    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = write(place / "script.py", REPORT)
    shared = ("-n", "1", "--world_size", "2", "--master_addr", "127.0.0.1", "--master_port", port)
    (place / "other").mkdir()
    other = start("-n", "1", script, cwd=place / "other")
    nodes = [
        start(*shared, "--node_rank", str(node), "--run-directory", "run", script)
        for node in range(2)
    ]
    for process in (*nodes, other):
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
    reports = [json.loads((place / f"report{rank}.json").read_text()) for rank in range(2)]
    assert [report["NODE_RANK"] for report in reports] == ["0", "1"]
    assert [report["LOCAL_RANK"] for report in reports] == ["0", "0"]
    assert {report["MASTER_PORT"] for report in reports} == {port}
    alone = json.loads((place / "other" / "report0.json").read_text())
    assert alone["WORLD_SIZE"] == "1"
    assert Path(alone["STRETTO_RUN_DIRECTORY"]).parent == place / "other" / "runs"
