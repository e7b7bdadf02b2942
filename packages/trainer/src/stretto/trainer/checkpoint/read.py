"""Reading a checkpoint's file, on one rank and for all."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from stretto.trainer import _torch
from stretto.trainer.checkpoint.errors import (
    CheckpointError,
    TornCheckpointError,
    UnsafeCheckpointError,
)
from stretto.trainer.checkpoint.plain import mapped
from stretto.trainer.checkpoint.save import FORMAT_VERSION, raise_failures
from stretto.trainer.checkpoint.send import broadcast_tree
from stretto.trainer.checkpoint.source import local_file
from stretto.trainer.distributed.outcome import share_outcome
from stretto.trainer.distributed.topology import Topology

_LARGE = ("model", "optimizers")


def read_checkpoint(source: str, topology: Topology, hold: ExitStack) -> dict[str, Any]:
    """Return the content of a checkpoint on every rank; every rank must call it.

    Rank 0 finds the file, so that a pointer that moves meanwhile means the same to all. Ranks that
    see that file read it themselves, mapped, so the ranks of a node share its pages; where one does
    not see it, rank 0 sends it to all.

    Args:
        source: A path or a URL, of a checkpoint or of a pointer to one. Only rank 0's counts.
        topology: The ranks.
        hold: Keeps a download alive.

    Raises:
        CheckpointNotFoundError: It is not there.
        TornCheckpointError: It is cut off, or no checkpoint.
        UnsafeCheckpointError: It holds more than tensors and plain data.
    """
    found: list[dict[str, Any]] = []

    def read_first() -> str:
        path = hold.enter_context(local_file(source)).absolute()
        found.append(read_file(path))
        return f"{_identity(path)} {path}"

    outcomes = share_outcome(topology, read_first)
    raise_failures(outcomes)
    if topology.world_size == 1:
        return found[0]
    if not topology.is_rank_zero:
        identity, _, path = outcomes[0].value.partition(" ")
        found += _read_same(Path(path), identity)
    if all(_torch.all_gather_objects(bool(found))):
        return found[0]
    return cast("dict[str, Any]", broadcast_tree(found[0] if topology.is_rank_zero else None))


def read_file(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's file.

    The weights and the optimizers' state are mapped: they are read when they are copied. The rest
    is in memory.

    Args:
        path: The file.

    Raises:
        TornCheckpointError: It is cut off, or no checkpoint.
        UnsafeCheckpointError: It holds more than tensors and plain data.
        CheckpointError: It may not be read.
    """
    if not os.access(path, os.R_OK):
        raise CheckpointError(f"{path} may not be read. Change its permissions.")
    if not zipfile.is_zipfile(path):
        size = path.stat().st_size
        raise TornCheckpointError(
            f"{path} ({size} bytes) is cut off, or was never a checkpoint. Load an earlier one."
        )
    try:
        content = _torch.load_file(path, mmap=True)
    except pickle.UnpicklingError as error:
        raise UnsafeCheckpointError(
            f"{path} was refused: reading it would run code that is in the file, or it holds "
            f"objects beyond tensors and plain data. Load only checkpoints of this trainer. "
            f"({_first_line(error)})"
        ) from error
    except (RuntimeError, EOFError, OSError, KeyError, ValueError) as error:
        raise TornCheckpointError(
            f"{path} is damaged and cannot be read. Load an earlier one. ({_first_line(error)})"
        ) from error
    return _checked(path, content)


def _checked(path: Path, content: Any) -> dict[str, Any]:
    entries = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    state = entries.get("state")
    if not isinstance(state, Mapping) or "model" not in state:
        raise TornCheckpointError(
            f"{path} is a file of torch.save, but no checkpoint of this trainer: it has no weights "
            f"under 'state' and 'model'. Load plain weights with model.load_state_dict()."
        )
    version = entries.get("version", FORMAT_VERSION)
    if version > FORMAT_VERSION:
        raise TornCheckpointError(
            f"{path} has the format {version}, and this version of stretto-trainer reads up to "
            f"{FORMAT_VERSION}. Update stretto-trainer."
        )
    parts = cast("dict[str, Any]", state)
    in_memory = {
        key: part if key in _LARGE else mapped(part, Tensor, Tensor.clone)
        for key, part in parts.items()
    }
    rng = mapped(entries.get("rng", []), Tensor, Tensor.clone)
    return {**entries, "state": in_memory, "rng": rng}


def _read_same(path: Path, identity: str) -> list[dict[str, Any]]:
    """Return the content if this rank sees the very file that rank 0 read, else nothing."""
    try:
        return [read_file(path)] if _identity(path) == identity else []
    except (OSError, RuntimeError):
        return []


def _identity(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
