"""One log line for a condition, not for every attempt that meets it."""

from __future__ import annotations

import threading
from collections.abc import Callable

Report = Callable[[str, str], None]
"""Called with a level (``info`` or ``warning``) and a sentence."""


class Conditions:
    """Keeps what is wrong at present, and reports beginnings and ends.

    Args:
        report: Where the sentences go.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._present: dict[str, int] = {}
        self._warned: set[str] = set()

    def info(self, sentence: str) -> None:
        """Report something that is not wrong.

        Args:
            sentence: What to say.
        """
        self._report("info", sentence)

    def warn_once(self, name: str, sentence: str) -> None:
        """Report something odd the first time it is seen.

        Args:
            name: What it is, for recognition.
            sentence: What to say.
        """
        with self._lock:
            if name in self._warned:
                return
            self._warned.add(name)
        self._report("warning", sentence)

    def holds(self, beginning: str) -> bool:
        """Whether something of a kind is wrong at present.

        Args:
            beginning: What its name begins with.
        """
        with self._lock:
            return any(name.startswith(beginning) for name in self._present)

    def begin(self, name: str, sentence: str) -> None:
        """Note that something is wrong.

        Args:
            name: What it is, for recognition.
            sentence: What to say the first time.
        """
        with self._lock:
            self._present[name] = times = self._present.get(name, 0) + 1
        if times == 1:
            self._report("warning", sentence)

    def end(self, name: str, sentence: str) -> None:
        """Note that it is not wrong any more.

        Args:
            name: What it was.
            sentence: What to say if it was wrong.
        """
        if not self._present:
            return
        with self._lock:
            times = self._present.pop(name, 0)
        if times:
            self._report("info", sentence)

    def end_all(self, beginning: str, sentence: str) -> None:
        """Note that a whole kind of things is not wrong any more.

        Args:
            beginning: What their names begin with.
            sentence: What to say if one of them was wrong.
        """
        if not self._present:
            return
        with self._lock:
            ended = [name for name in self._present if name.startswith(beginning)]
            for name in ended:
                del self._present[name]
        if ended:
            self._report("info", sentence)
