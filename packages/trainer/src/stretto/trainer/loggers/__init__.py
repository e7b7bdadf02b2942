"""Where a run's reports go: a progress bar, the console, a file, memory.

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.trainer.loggers.console import ConsoleLogger
    from stretto.trainer.loggers.file import FileLogger
    from stretto.trainer.loggers.in_memory import InMemoryLogger
    from stretto.trainer.loggers.progress_bar import ProgressBarLogger

__all__ = ["ConsoleLogger", "FileLogger", "InMemoryLogger", "ProgressBarLogger"]

_HOMES = {
    "ConsoleLogger": "console",
    "FileLogger": "file",
    "InMemoryLogger": "in_memory",
    "ProgressBarLogger": "progress_bar",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
