"""The errors of this package.

::

    CoreEventsError
    ├── TimeStringError          (ValueError)    a time that cannot be read
    ├── TimeUnitError            (TypeError)     times of different units, or a unit-less number
    ├── UnknownLengthError       (ValueError)    elapsed duration needs a length nobody gave
    ├── HookError                (TypeError)     a hook that can never be called as written
    ├── OrderingError            (ValueError)    wishes about the order contradict each other
    ├── EngineClosedError        (RuntimeError)  an engine used after ``close``
    └── CallbackInUseError       (RuntimeError)  a callback still open in another engine
"""

from __future__ import annotations

__all__ = [
    "CallbackInUseError",
    "CoreEventsError",
    "EngineClosedError",
    "HookError",
    "OrderingError",
    "TimeStringError",
    "TimeUnitError",
    "UnknownLengthError",
]


class CoreEventsError(Exception):
    """Base of every error that this package defines."""


class TimeStringError(CoreEventsError, ValueError):
    """A value cannot be read as a time."""


class TimeUnitError(CoreEventsError, TypeError):
    """Two times have different units, or a number came without one."""


class UnknownLengthError(CoreEventsError, ValueError):
    """The elapsed duration depends on a length that is not known."""


class HookError(CoreEventsError, TypeError):
    """A callback or an algorithm has a method that the engine could never call as intended."""


class OrderingError(CoreEventsError, ValueError):
    """The wishes in ``run_before``, ``run_after`` and ``stage`` cannot all hold."""


class EngineClosedError(CoreEventsError, RuntimeError):
    """The engine has been closed and runs no more events."""


class CallbackInUseError(CoreEventsError, RuntimeError):
    """A callback belongs to another engine that is still open."""
