"""Saving a run so that it can go on, and going on.

A checkpoint is one file of tensors and plain data, written whole or not at all; a pointer names the
newest. What is in it is the state's business, how and where it is kept is this package's.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.trainer.checkpoint.errors import (
        CheckpointError,
        CheckpointExistsError,
        CheckpointMismatchError,
        CheckpointNotFoundError,
        TornCheckpointError,
        UnsafeCheckpointError,
    )
    from stretto.trainer.checkpoint.load import load_checkpoint
    from stretto.trainer.checkpoint.rng import capture_rng_state, restore_rng_state
    from stretto.trainer.checkpoint.save import save_checkpoint
    from stretto.trainer.checkpoint.saver import CheckpointSaver

__all__ = [
    "CheckpointError",
    "CheckpointExistsError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointSaver",
    "TornCheckpointError",
    "UnsafeCheckpointError",
    "capture_rng_state",
    "load_checkpoint",
    "restore_rng_state",
    "save_checkpoint",
]

_ELSEWHERE = {
    "CheckpointSaver": "saver",
    "capture_rng_state": "rng",
    "load_checkpoint": "load",
    "restore_rng_state": "rng",
    "save_checkpoint": "save",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'errors')}"), name)
    globals()[name] = value
    return value
