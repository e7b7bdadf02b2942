"""What the README shows, done as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_first_minute(tmp_path: Path) -> None:
    commands = [line[2:] for line in blocks("console")[0].splitlines() if line.startswith("$ ")]
    script = "\n".join(commands).replace("/tmp/mirror", str(tmp_path / "mirror"))
    places = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "everything is stored (1 files, 6 B" in done.stdout
    assert f"runs/first and {tmp_path}/mirror agree: 1 files, 6 B" in done.stdout


def test_the_example_for_any_program(tmp_path: Path, files_of) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", blocks("python")[0]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    log = files_of(tmp_path / "store" / "mine")["log.txt"]
    assert log == (tmp_path / "runs/mine/log.txt").read_bytes()
    assert log.count(b"\n") == 1000
