from __future__ import annotations

import os
from pathlib import Path

import pytest

_PREFIXES = ("STRETTO_", "COMPOSER_", "SLURM_", "OMPI_", "TORCHELASTIC_")
_NAMES = (
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own, and an environment without a run in it."""
    for name in list(os.environ):
        if name.startswith(_PREFIXES) or name in _NAMES:
            monkeypatch.delenv(name)
    for name in ("STRETTO_RUN_DIRECTORY", "COMPOSER_RUN_DIRECTORY"):
        # So that what the code under test exports is taken back, too.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
