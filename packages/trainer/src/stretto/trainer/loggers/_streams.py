"""Stand-ins for the standard streams."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    _Stream = TextIO
else:
    _Stream = object  # so that what is not defined here is asked of the original


class StreamCopy(_Stream):
    """Stands in for a standard stream: passes everything on, and hands on whole lines, too.

    It stays harmless when something else has been put over it and cannot be taken away: after
    `stop` it only passes on. So it does in a forked child, which has no business with the log.

    Args:
        name: ``stdout`` or ``stderr``.
        take_line: Called with each line that is complete, without its end.
    """

    def __init__(self, name: str, take_line: Callable[[str], None]) -> None:
        self._name = name
        self._take_line: Callable[[str], None] | None = take_line
        self._process = os.getpid()
        self._begun = ""
        self.original: TextIO = getattr(sys, name)
        setattr(sys, name, self)

    def write(self, text: str) -> int:
        self.copy(text)
        return self.original.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def copy(self, text: str) -> None:
        """Hand on the lines of a text without writing it."""
        if self._take_line is None or os.getpid() != self._process:
            return
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._take_line(line)

    def stop(self) -> None:
        """Give the stream back, as far as it is still ours to give."""
        if self._take_line is not None and self._begun:
            self._take_line(self._begun)
        self._take_line = None
        if getattr(sys, self._name) is self:
            setattr(sys, self._name, self.original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


class AboveBars(_Stream):
    """Stands in for a terminal's stream while bars are drawn: what is written appears above them.

    rich has such a stand-in, but it takes the stream's place even when the stream is a file,
    and hides what it gets from a `StreamCopy`.

    Args:
        name: ``stdout`` or ``stderr``.
        print_above: Writes whole lines above the bars.
    """

    def __init__(self, name: str, print_above: Callable[[str], None]) -> None:
        self._name = name
        self._print_above: Callable[[str], None] | None = print_above
        self._begun = ""
        self._original: TextIO = getattr(sys, name)
        setattr(sys, name, self)

    def write(self, text: str) -> int:
        if self._print_above is None:
            return self._original.write(text)
        if isinstance(self._original, StreamCopy):
            self._original.copy(text)
        whole, end, self._begun = (self._begun + text).rpartition("\n")
        if end:
            self._print_above(whole)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def stop(self) -> None:
        """Give the stream back, as far as it is still ours to give."""
        self._print_above = None
        if self._begun:
            begun, self._begun = self._begun, ""
            below = self._original
            # A copy has been made already.
            (below.original if isinstance(below, StreamCopy) else below).write(begun)
        if getattr(sys, self._name) is self:
            setattr(sys, self._name, self._original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is open and leads to a terminal."""
    try:
        return stream.isatty()
    except ValueError:  # it is closed
        return False
