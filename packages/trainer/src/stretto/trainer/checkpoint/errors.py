"""What can go wrong with a checkpoint.

::

    CheckpointError
    ├── CheckpointNotFoundError   (a FileNotFoundError)
    ├── CheckpointExistsError     (a FileExistsError)
    ├── TornCheckpointError       cut off, or not a checkpoint at all
    ├── UnsafeCheckpointError     holds more than tensors and plain data
    └── CheckpointMismatchError   of another model or optimizer
"""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at a path."""


class CheckpointExistsError(CheckpointError, FileExistsError):
    """A file of an earlier run is in the way."""


class TornCheckpointError(CheckpointError):
    """A file is cut off, or no checkpoint of this trainer."""


class UnsafeCheckpointError(CheckpointError):
    """A file, or a state about to be written, holds more than tensors and plain data."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint belongs to another model or optimizer."""
