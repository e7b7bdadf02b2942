"""The example of an own loop, run as a newcomer would run it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "own_loop.py"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run the example in an empty folder; return the folder and what it printed."""
    folder = tmp_path_factory.mktemp("newcomer")
    drop = ("STRETTO_", "COMPOSER_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=folder,
        env=kept | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    return folder, dict(lines)


def mirrored(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".rundir-uploader" not in path.parts
    }


def test_the_store_holds_the_run_directory_byte_for_byte(finished):
    folder, told = finished
    rank_folder = Path(told["run directory"])
    local = mirrored(rank_folder.parent)
    assert {"rank_0/loss.csv", "rank_0/model.pt"} <= set(local)
    assert mirrored(folder / "store" / rank_folder.parent.name) == local
    assert told["stored"].endswith(f"/{rank_folder.parent.name}/rank_0/model.pt")


def test_the_loss_falls_and_the_weights_come_back(finished):
    _, told = finished
    rank_folder = Path(told["run directory"])
    rows = [line.split(",") for line in (rank_folder / "loss.csv").read_text().splitlines()]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert float(rows[-1][1]) < float(rows[0][1]) / 2
    weights = torch.load(rank_folder / "model.pt", weights_only=True)
    assert [tuple(weight.shape) for weight in weights.values()] == [(64, 16), (64,), (4, 64), (4,)]


def test_it_stays_as_short_as_it_claims():
    body = ast.parse(EXAMPLE.read_text(encoding="utf-8")).body
    (main,) = [node for node in body if isinstance(node, ast.If)]
    assert main.end_lineno - main.lineno < 40
