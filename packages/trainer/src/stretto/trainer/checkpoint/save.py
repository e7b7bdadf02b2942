"""Writing a checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from stretto.core_events import Timestamp
from stretto.trainer import _torch
from stretto.trainer.checkpoint import errors
from stretto.trainer.checkpoint.commit import commit_file, move_pointer
from stretto.trainer.checkpoint.naming import check_template, format_template
from stretto.trainer.checkpoint.plain import plain
from stretto.trainer.checkpoint.rng import capture_rng_state
from stretto.trainer.dist import all_gather_object
from stretto.trainer.distributed.outcome import Outcome, share_outcome
from stretto.trainer.distributed.topology import Topology
from stretto.trainer.serialization import collect_weights

_log = logging.getLogger(__name__)

FORMAT_VERSION = 1


class SavableState(Protocol):
    """What saving needs of a state."""

    @property
    def run_name(self) -> str:
        """Name of the run."""
        ...

    @property
    def timestamp(self) -> Timestamp:
        """How far it has come."""
        ...

    @property
    def topology(self) -> Topology:
        """Its ranks."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything; called on every rank."""
        ...

    def model_state_dict(self) -> dict[str, Any]:
        """Return parameters and buffers; called on every rank."""
        ...


def save_checkpoint(
    state: SavableState,
    name: str = "ep{epoch}-ba{batch}-rank{rank}",
    *,
    weights_only: bool = False,
    folder: str | Path | None = None,
    pointer: str | None = None,
) -> str:
    """Write one file with the whole state; every rank must call it.

    Rank 0 writes. The others look whether it is done, without holding a collective open.

    Args:
        state: What to save.
        name: File name, with variables (see :mod:`~stretto.trainer.checkpoint.naming`).
        weights_only: Save parameters and buffers, and the names of algorithms they do not fit
            without, nothing else.
        folder: Where. Default: the working directory, and the name may then be a whole path, which
            ``~`` may begin.
        pointer: Name of the pointer to the newest checkpoint, with variables; None for none.

    Returns:
        The path, on every rank.

    Raises:
        ValueError: The name has an unknown variable, or leads out of the folder: by ``..``, or, if
            a folder is given, by being a whole path.
        UnsafeCheckpointError: The state holds more than tensors and plain data.
        CheckpointError: The file could not be written. Raised on every rank.
    """
    where = Path.cwd() if folder is None else Path(folder)
    path = where / _formatted(state, name, "The name of a checkpoint", whole=folder is None)
    content = _content(state, weights_only=weights_only)
    raise_failures(share_outcome(state.topology, lambda: _write(path, content)))
    if pointer is not None:
        link = where / _formatted(state, pointer, "save_latest_filename")
        raise_failures(share_outcome(state.topology, lambda: _point(link, path)))
    if state.topology.is_rank_zero:
        _log.info("Saved the checkpoint %s", path)
    return str(path)


def check_file_name(what: str, template: str) -> str:
    """Return a template of a file name unchanged, if it stays in its folder.

    Args:
        what: The argument it comes from, for the message.
        template: The template.

    Raises:
        ValueError: It is empty, absolute, leads upward, or has an unknown variable.
    """
    check_template(what, template)
    if template.endswith("/") or _leads_out(template):
        raise ValueError(
            f"{what} is {template!r}; give a file name, relative to the folder and without '..'."
        )
    return template


def raise_failures(outcomes: Sequence[Outcome]) -> None:
    """Raise what went wrong on another rank, as an error of this package.

    Args:
        outcomes: What the ranks that worked said.
    """
    for outcome in outcomes:
        if outcome.error is not None:
            name, _, message = outcome.error.partition(": ")
            kind = getattr(errors, name, None)
            if isinstance(kind, type) and issubclass(kind, errors.CheckpointError):
                raise kind(message)
            raise errors.CheckpointError(f"Rank {outcome.rank} failed with {outcome.error}")


def _expanded(name: str) -> str:
    # Path.expanduser() raises for a file called ~x.pt, which is none of a user's home.
    return os.path.expanduser(name)  # noqa: PTH111


def _leads_out(name: str) -> bool:
    path = Path(_expanded(name))
    return not path.parts or path.is_absolute() or ".." in path.parts


def _formatted(state: SavableState, template: str, what: str, *, whole: bool = False) -> str:
    check_template(what, template)
    name = format_template(
        template, run_name=state.run_name, topology=state.topology, timestamp=state.timestamp
    )
    path = Path(_expanded(name))
    allowed = whole and path.is_absolute() and ".." not in path.parts
    if _leads_out(name) and not allowed:
        raise ValueError(
            f"{what} is {template!r}, which means {name!r} here and leads out of the folder. Give "
            f"a name relative to the folder and without '..'"
            f"{', or a whole path without it' if whole else ''}."
        )
    return str(path)


def _content(state: SavableState, *, weights_only: bool) -> dict[str, Any]:
    """Gather what the file will hold; what ranks other than 0 get of it is of no use."""
    if weights_only:
        return {
            "version": FORMAT_VERSION,
            "state": collect_weights(state),
            "rng": [],
        }
    return {
        "version": FORMAT_VERSION,
        "state": state.state_dict(),
        "rng": all_gather_object(capture_rng_state()),
    }


def _write(path: Path, content: dict[str, Any]) -> str:
    checked = {key: plain(value, key) for key, value in content.items()}
    commit_file(path, lambda temporary: _torch.save_file(checked, temporary))
    return str(path)


def _point(pointer: Path, target: Path) -> str:
    move_pointer(pointer, target)
    return str(pointer)
