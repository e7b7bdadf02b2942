"""In which order the ranks of this node ended.

torch looks at its processes every tenth of a second, and of several that failed in between it takes
the one with the lowest rank for the first. But when one rank fails, the others, waiting for it in a
collective, fail within milliseconds; which exit code counts is then a matter of luck. The kernel
tells each death at once.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

RankT = TypeVar("RankT")

_LOOK_SECONDS = 0.01


class DeathWatch:
    """Notes the deaths of processes whose numbers turn up as names of files in a folder.

    Args:
        folder: Where each process puts an empty file named by its number when it starts.
        count: How many will come.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        self._order: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="death-watch", daemon=True)

    def __enter__(self) -> Self:
        if hasattr(os, "pidfd_open"):  # Linux; elsewhere torch's order has to do
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def first(self, processes: Mapping[RankT, int]) -> RankT | None:
        """Return whose process ended first.

        Args:
            processes: The numbers of some processes.

        Returns:
            The key of the first; None where no death of any of them was seen.
        """
        seen = [key for key, process in processes.items() if process in self._order]
        return min(seen, key=lambda key: self._order.index(processes[key]), default=None)

    def _watch(self) -> None:
        known: dict[int, int] = {}
        poll = select.poll()
        while not self._ended.is_set():
            if len(known) < self._count:
                self._look_for_new(known, poll)
            wait = _LOOK_SECONDS if len(known) < self._count else 10 * _LOOK_SECONDS
            for descriptor, _ in poll.poll(wait * 1000):
                poll.unregister(descriptor)
                self._order += [pid for pid, opened in known.items() if opened == descriptor]
        for descriptor in known.values():
            if descriptor >= 0:
                os.close(descriptor)

    def _look_for_new(self, known: dict[int, int], poll: select.poll) -> None:
        for path in self._folder.iterdir():
            process = int(path.name)
            if process in known:
                continue
            try:
                known[process] = os.pidfd_open(process)
            except ProcessLookupError:  # it did not live long enough to be found
                known[process] = -1
                self._order.append(process)
            else:
                poll.register(known[process], select.POLLIN)
