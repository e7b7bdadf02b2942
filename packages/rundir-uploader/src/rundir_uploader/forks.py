"""Descriptors that a forked child of the trainer must not keep open.

A data loader's worker that inherited the uploader's pipe, or its lock, would keep them alive after
the trainer's death. Children made with ``exec`` are no concern: Python's descriptors do not survive
that.
"""

from __future__ import annotations

import contextlib
import os

_descriptors: set[int] = set()
_registered = False


def guard(descriptor: int) -> None:
    """Close a descriptor in every child that is forked from now on.

    Args:
        descriptor: Open, ours.
    """
    global _registered
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_close_all)
    _descriptors.add(descriptor)


def is_guarded(descriptor: int) -> bool:
    """Whether a descriptor is still the one that was guarded in this process.

    Args:
        descriptor: As given to `guard`.
    """
    return descriptor in _descriptors


def close_guarded(descriptor: int) -> None:
    """Close a descriptor that was guarded.

    Args:
        descriptor: As given to `guard`.
    """
    if descriptor in _descriptors:
        _descriptors.discard(descriptor)
        os.close(descriptor)


def _close_all() -> None:
    for descriptor in _descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()
