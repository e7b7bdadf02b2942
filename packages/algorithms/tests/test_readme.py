"""What the README shows runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_there_is_something_to_run():
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, str(README), "exec"), {})
    assert "1: MaxPool2d -> BlurMaxPool2d" in capsys.readouterr().out
