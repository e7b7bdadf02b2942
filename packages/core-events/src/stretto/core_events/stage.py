"""When, within its group, a member of the engine runs."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Stage"]


class Stage(IntEnum):
    """The coarse order of callbacks, of algorithms and of loggers within their own group."""

    NORMAL = 0
    """Where almost everything belongs."""
    PERSIST = 1
    """After the others, for members that keep what the others have written (an uploader);
    post-closed last of all."""
