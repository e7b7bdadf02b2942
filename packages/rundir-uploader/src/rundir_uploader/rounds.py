"""When to scan: requests, numbers and intervals."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rundir_uploader.staging import Stager


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One scan that is to be made.

    Attributes:
        number: Counts the scans, from 1.
        urgent: Whether somebody waits for what it finds.
        stager: Takes copies of what is to be sent; None for none.
    """

    number: int
    urgent: bool
    stager: Stager | None


class Rounds:
    """Hands out scans to one thread, on behalf of many.

    Many requests for a scan that has not begun are one. A request during a scan is for the next.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._asked = 0
        self._asked_urgent = 0
        self._ended = 0
        self._running = False
        self._stopped = False
        self._stager: Stager | None = None

    @property
    def ended(self) -> int:
        """Number of the last scan that ended; 0 before the first."""
        return self._ended

    @property
    def stopped(self) -> bool:
        """Whether there are to be no more scans."""
        return self._stopped

    def ask(self, *, urgent: bool = False, stager: Stager | None = None) -> int:
        """Ask for a scan that has not begun yet.

        Args:
            urgent: Whether somebody waits for what it finds.
            stager: Takes copies of what is to be sent; None for none.

        Returns:
            The number it will have.
        """
        with self._condition:
            number = self._ended + (2 if self._running else 1)
            self._asked = max(self._asked, number)
            if urgent:
                self._asked_urgent = max(self._asked_urgent, number)
            self._stager = stager or self._stager
            self._condition.notify_all()
            return number

    def wait(self, number: int, timeout: float | None = None) -> bool:
        """Wait for the end of a scan.

        Args:
            number: Which one.
            timeout: At most so many seconds.

        Returns:
            Whether it ended.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._ended >= number or self._stopped, timeout)
            return self._ended >= number

    def begin(self, interval: float) -> Round | None:
        """Wait for the next scan to be due, and begin it; `end` must follow.

        Args:
            interval: Seconds after which one is due though nobody asked.

        Returns:
            The scan; None when there are to be no more.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._asked > self._ended or self._stopped, interval)
            if self._stopped:
                return None
            self._running = True
            number = self._ended + 1
            stager, self._stager = self._stager, None
            return Round(number=number, urgent=self._asked_urgent >= number, stager=stager)

    def end(self) -> None:
        """Say that the scan that was begun has ended."""
        with self._condition:
            self._running = False
            self._ended += 1
            self._condition.notify_all()

    def stop(self) -> None:
        """Let there be no more scans."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def pause(self, seconds: float) -> bool:
        """Sleep until there are to be no more scans.

        Args:
            seconds: At most so many.

        Returns:
            Whether that came to pass.
        """
        with self._condition:
            return self._condition.wait_for(lambda: self._stopped, seconds)
