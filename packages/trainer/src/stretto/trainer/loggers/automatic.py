"""The loggers that a trainer adds of its own accord."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any, TextIO

from stretto.core_events import LoggerDestination, Time
from stretto.trainer.loggers.console import ConsoleLogger
from stretto.trainer.loggers.progress_bar import ProgressBarLogger


def make_automatic_loggers(
    given_loggers: Iterable[LoggerDestination[Any]],
    *,
    progress_bar: bool,
    log_to_console: bool,
    console_stream: str | TextIO,
    console_log_interval: int | str | Time,
) -> list[LoggerDestination[Any]]:
    """Return the progress bar and the console logger, where asked for and not given already.

    Args:
        given_loggers: What the user gave; one of the same class takes the automatic one's place.
        progress_bar: Whether a progress bar is asked for.
        log_to_console: Whether a console logger is asked for.
        console_stream: ``"stderr"``, ``"stdout"`` or a stream, for both.
        console_log_interval: How often the console logger writes.

    Raises:
        ValueError: `console_stream` is another string.
    """
    stream = _find_stream(console_stream)
    given = list(given_loggers)
    made: list[LoggerDestination[Any]] = []
    if progress_bar and not _has(given, ProgressBarLogger, "progress_bar"):
        made.append(ProgressBarLogger(stream))
    if log_to_console and not _has(given, ConsoleLogger, "log_to_console"):
        made.append(ConsoleLogger(console_log_interval, stream))
    if len(made) > 1:
        warnings.warn(
            "progress_bar and log_to_console are both on, and both write to the console: "
            "progress_bar=False keeps the lines apart from the bar",
            stacklevel=2,
        )
    return made


def _has(given: list[LoggerDestination[Any]], kind: type[object], argument: str) -> bool:
    found = any(isinstance(logger, kind) for logger in given)
    if found and argument == "log_to_console":
        warnings.warn(
            f"loggers hold a {kind.__name__}; {argument}=True adds no second one", stacklevel=3
        )
    return found


def _find_stream(stream: str | TextIO) -> TextIO:
    if not isinstance(stream, str):
        return stream
    if stream not in ("stderr", "stdout"):
        raise ValueError(
            f"console_stream is {stream!r}. Give 'stderr', 'stdout' or an open stream."
        )
    return sys.stderr if stream == "stderr" else sys.stdout
