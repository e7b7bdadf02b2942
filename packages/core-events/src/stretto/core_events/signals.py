"""Ending a run in good order when the system asks the process to stop; only for who asks for it."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType

__all__ = ["exit_on_signals"]


@contextmanager
def exit_on_signals(signals: Sequence[signal.Signals] = (signal.SIGTERM,)) -> Generator[None]:
    """Turn signals into `SystemExit` while the block runs, so that engines are closed.

    Python ends without running exit handlers on ``SIGTERM``. In this block it raises
    ``SystemExit(128 + number)`` in the main thread instead, which unwinds the stack. The handlers
    that were there before are put back at the end. In another thread than the main one nothing
    can be done: it warns and goes on.

    Args:
        signals: The signals to turn into an exit. Default: ``SIGTERM``.
    """
    if threading.current_thread() is not threading.main_thread():
        warnings.warn(
            "exit_on_signals has no effect outside the main thread: signal handlers can only be "
            "set there. Enter it in the main thread.",
            RuntimeWarning,
            stacklevel=3,
        )
        yield
        return
    previous = {number: signal.signal(number, _leave) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            # None is a handler that was not set from Python, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)
