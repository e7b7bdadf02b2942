"""The main job from the outside: train, mirror, verify, corrupt, kill, resume."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = str(ROOT / "examples" / "digits.py")
COMMANDS = Path(sys.executable).parent
EPOCHS = 12
BATCHES_A_EPOCH = 23  # 1,437 images, 64 at a time


@dataclass(frozen=True, kw_only=True)
class Result:
    text: str
    table: dict[str, str]
    verify: list[str]


def environment() -> dict[str, str]:
    drop = ("STRETTO_", "COMPOSER_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    return kept | {"OMP_NUM_THREADS": "1"}


def run(*command: str, cwd: Path, code: int = 0, timeout: int = 240) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def parse(text: str) -> Result:
    table = dict(
        re.findall(r"^(accuracy|seconds|run directory|store|files stored) +(.+)$", text, re.M)
    )
    (line,) = re.findall(r"^(\S*rundir-uploader verify .+)$", text, re.M)
    return Result(text=text, table=table, verify=line.split(" "))


def digits(*arguments: str, cwd: Path) -> Result:
    return parse(run(sys.executable, EXAMPLE, *arguments, cwd=cwd))


def store_folder(result: Result) -> Path:
    assert result.table["store"].startswith("file://")
    return Path(result.table["store"].removeprefix("file://"))


def mirrored(folder: Path) -> set[str]:
    """Return what the contracts say is mirrored, as keys below the prefix."""
    found = set()
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if relative.parts[0] == ".rundir-uploader" or path.name.endswith(".tmp"):
            continue
        if path.is_symlink():
            found.add(f"{relative}.symlink")
        elif path.is_file():
            found.add(str(relative))
    return found


def stored(folder: Path) -> set[str]:
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in files if path.parts[0] != ".rundir-uploader"}


def assert_reads_digits(result: Result) -> None:
    assert float(result.table["accuracy"]) >= 0.97, result.text


def batches(checkpoint: Path) -> int:
    return torch.load(checkpoint, weights_only=True)["state"]["timestamp"]["batch"]


def test_one_command_trains_mirrors_and_tells_how_to_check(tmp_path):
    started = time.perf_counter()
    result = digits(cwd=tmp_path)
    assert time.perf_counter() - started < 60
    assert_reads_digits(result)
    directory = Path(result.table["run directory"])
    assert (directory / "rank_0" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert mirrored(directory) == stored(store_folder(result))
    assert int(result.table["files stored"]) == len(mirrored(directory))
    assert "checkpoints/latest-rank0.pt.symlink" in mirrored(directory)
    assert (
        len([key for key in mirrored(directory) if re.search(r"checkpoints/ep\d+", key)]) == EPOCHS
    )
    assert any(key.startswith("rank_0/") and key.endswith(".txt") for key in mirrored(directory))

    run(*result.verify, cwd=tmp_path)
    victim = store_folder(result) / "rank_0" / "curves.png"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    assert "rank_0/curves.png" in run(*result.verify, cwd=tmp_path, code=1)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_reach_the_same_accuracy_and_everything_arrives(tmp_path, parallel):
    launcher = str(COMMANDS / "stretto")
    where = ("-n", "2", "--run_directory", "runs/two")
    result = parse(run(launcher, *where, EXAMPLE, "--parallel", parallel, cwd=tmp_path))
    assert_reads_digits(result)
    assert Path(result.table["run directory"]) == tmp_path / "runs" / "two"
    keys = stored(store_folder(result))
    assert keys == mirrored(tmp_path / "runs" / "two")
    for folder in ("rank_0/", "rank_1/", "checkpoints/", "logs/"):
        assert any(key.startswith(folder) for key in keys), (folder, sorted(keys))
    run(*result.verify, cwd=tmp_path)


def wait_for(path: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


@pytest.mark.slow
def test_after_kill_9_of_the_process_group_resume_goes_on_and_the_store_ends_complete(tmp_path):
    directory = tmp_path / "runs" / "killed"
    command = [sys.executable, EXAMPLE, "--run-directory", str(directory)]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(directory / "checkpoints" / f"ep4-ba{4 * BATCHES_A_EPOCH}-rank0.pt")
    time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(timeout=30) == -signal.SIGKILL
    assert not (
        directory / "checkpoints" / f"ep{EPOCHS}-ba{EPOCHS * BATCHES_A_EPOCH}-rank0.pt"
    ).exists()

    result = parse(run(*command, "--resume", cwd=tmp_path))
    assert_reads_digits(result)
    assert batches(directory / "checkpoints" / "latest-rank0.pt") == EPOCHS * BATCHES_A_EPOCH
    assert mirrored(directory) == stored(store_folder(result))
    run(*result.verify, cwd=tmp_path)
