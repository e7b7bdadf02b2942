"""The README's code runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_first_example_runs_as_it_stands(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(BLOCKS[0].replace("/tmp/log.txt", str(tmp_path / "log.txt")))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "['one/log.txt', 'one/readme.md']\nb'step'\n"
    assert (tmp_path / "log.txt").read_text() == "step 1\n"


def test_the_suites_example_is_a_suite(tmp_path: Path) -> None:
    script = tmp_path / "test_mine.py"
    script.write_text(BLOCKS[1])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(script)]
    done = subprocess.run(
        [*command, "-k", "ranges or prefixes"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
