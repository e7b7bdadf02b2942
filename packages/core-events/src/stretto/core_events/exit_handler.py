"""Closing, at the interpreter's end, the engines that nobody closed."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from typing import Protocol

__all__ = ["ExitHandler"]


class _Closable(Protocol):
    def close(self) -> None: ...


class ExitHandler:
    """Closes one object at the interpreter's end, without keeping it alive until then.

    It acts only in the process that made it: a forked child does not close its parent's engine.
    An error is printed and makes the exit status of the process 1.

    Args:
        target: What to close.
    """

    def __init__(self, target: _Closable) -> None:
        self._target = weakref.ref(target)
        self._process = os.getpid()
        # A bound method is equal only to that of the same object, so unregistering one handler
        # leaves those of the other engines alone.
        atexit.register(self._run)

    @property
    def in_own_process(self) -> bool:
        """Whether this is still the process that made the handler."""
        return os.getpid() == self._process

    def cancel(self) -> None:
        """Forget about it: the target has been closed, or is gone."""
        atexit.unregister(self._run)

    def _run(self) -> None:
        target = self._target()
        if target is None or not self.in_own_process:
            return
        try:
            target.close()
        except BaseException:
            import traceback  # slow to import, and seldom needed

            traceback.print_exc()
            _fail_at_end()


class _FailingEnd:
    """Ends the process with status 1 when the interpreter lets go of it, after every handler.

    The interpreter ignores errors of exit handlers, and ending the process in one would skip the
    others. This object lives until the modules are cleared, which comes after them.
    """

    def __del__(
        self,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        leave(1)


_failing_end: list[_FailingEnd] = []


def _fail_at_end() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # pyright: ignore[reportUnnecessaryComparison]
            stream.flush()
    if not _failing_end:
        _failing_end.append(_FailingEnd())
