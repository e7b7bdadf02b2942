"""The queue of what is to be stored: one slot a path, one transfer a slot, newest version wins."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from enum import Enum, auto

from rundir_uploader.task import Pending, Task
from stretto.run_directory import FileEntry


class _State(Enum):
    READY = auto()
    DELAYED = auto()
    WAITING = auto()
    RUNNING = auto()


class _Slot:
    """All that is going on for one path."""

    __slots__ = (
        "again_since",
        "attempts",
        "due",
        "failed_at",
        "final",
        "first_seen",
        "reason",
        "since",
        "state",
        "task",
        "ticket",
        "waits",
    )

    def __init__(self, task: Task, now: float) -> None:
        self.task = task
        self.state = _State.READY
        self.since = task.generation
        self.again_since: int | None = None
        self.first_seen = now
        self.due = 0.0
        self.attempts = 0
        self.reason = ""
        self.final = False
        self.failed_at = -1.0
        self.ticket = 0
        self.waits: set[str] = set()


class UploadQueue:
    """A thread-safe keyed queue.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slots: dict[str, _Slot] = {}
        self._ready: deque[tuple[str, int]] = deque()
        self._delayed: list[tuple[float, int, str]] = []
        self._dependents: dict[str, set[str]] = {}
        self._tickets = itertools.count(1)
        self._condition = threading.Condition()
        self._idle_takers = 0
        self._running = 0
        self._stopped = False

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, path: str) -> bool:
        return path in self._slots

    @property
    def running(self) -> int:
        """How many transfers are in flight."""
        return self._running

    def offer(
        self, task: Task, *, not_before: float = 0.0, waits_for: Collection[str] = ()
    ) -> None:
        """Ask for a version; an older one that waits is replaced, one in flight is followed up.

        Args:
            task: What to store.
            not_before: Monotonic seconds before which it is not taken.
            waits_for: Paths that must be stored first; those not in the queue count as stored.
        """
        path = task.entry.path
        with self._condition:
            slot = self._slots.get(path)
            if slot is None:
                slot = self._slots[path] = _Slot(task, self._clock())
                self._wait_on(path, slot, waits_for)
                self._arrange(path, slot, not_before)
                return
            same = slot.task.entry.fingerprint == task.entry.fingerprint
            queued = slot.state is not _State.RUNNING or slot.again_since is not None
            if queued and slot.task.urgent and not task.urgent:
                task = replace(task, urgent=True)  # somebody waits for this path still
            slot.task = task
            self._wait_on(path, slot, waits_for)
            if slot.state is _State.RUNNING:
                if slot.again_since is None:
                    slot.again_since = task.generation
            elif task.urgent:
                self._arrange(path, slot, 0.0)
            elif slot.reason or same:
                self._arrange(path, slot, slot.due)
            else:
                self._arrange(path, slot, not_before)

    def take(self, timeout: float | None = None) -> Task | None:
        """Take the next task that may run; `finish` or `retry` must follow.

        Args:
            timeout: Seconds to wait for one; None for as long as the queue is not stopped.

        Returns:
            A task; None when the time is up or the queue is stopped.
        """
        deadline = None if timeout is None else self._clock() + timeout
        with self._condition:
            while not self._stopped:
                task = self._next()
                if task is not None:
                    return task
                now = self._clock()
                if deadline is not None and now >= deadline:
                    return None
                limits = [deadline] if deadline is not None else []
                if self._delayed:
                    limits.append(self._delayed[0][0])
                self._idle_takers += 1
                try:
                    self._condition.wait(max(0.0, min(limits) - now) if limits else None)
                finally:
                    self._idle_takers -= 1
        return None

    def newer(self, task: Task) -> Task | None:
        """Return the version that was asked for while a task was in flight, if there is one.

        Args:
            task: What `take` gave.
        """
        with self._condition:
            slot = self._slots[task.entry.path]
            return slot.task if slot.task is not task else None

    def finish(self, task: Task, *, dropping: Task | None = None) -> None:
        """Report that a task is done: stored, recorded, or its file is gone.

        A version that was asked for meanwhile is next, except one that is to be dropped.

        Args:
            task: What `take` gave.
            dropping: What `newer` gave, if that is not wanted after all.
        """
        path = task.entry.path
        with self._condition:
            slot = self._slots[path]
            self._running -= 1
            if slot.task is task or slot.task is dropping:
                del self._slots[path]
                self._wait_on(path, slot, ())
                self._release(path)
            else:
                slot.since = slot.task.generation if slot.again_since is None else slot.again_since
                slot.again_since = None
                slot.first_seen = self._clock()
                slot.attempts = 0
                slot.reason = ""
                slot.final = False
                self._arrange(path, slot, 0.0)
            self._condition.notify_all()

    def retry(self, task: Task, *, delay: float, reason: str, final: bool) -> None:
        """Report that a task failed and is to be tried again.

        Args:
            task: What `take` gave.
            delay: Seconds to wait.
            reason: Why it failed.
            final: Whether another try is unlikely to help.
        """
        path = task.entry.path
        now = self._clock()
        with self._condition:
            slot = self._slots[path]
            self._running -= 1
            slot.again_since = None
            slot.attempts += 1
            slot.reason = reason
            slot.final = final
            slot.failed_at = now
            self._arrange(path, slot, now + delay)
            self._condition.notify_all()

    def put_off(self, task: Task, delay: float, entry: FileEntry | None = None) -> None:
        """Put a task back that only has to wait a little; that is no failure.

        Args:
            task: What `take` gave.
            delay: Seconds to wait.
            entry: What is at the path by now.
        """
        path = task.entry.path
        with self._condition:
            slot = self._slots[path]
            self._running -= 1
            slot.again_since = None
            if slot.task is task and entry is not None:
                slot.task = replace(task, entry=entry)
            hurry = slot.task.urgent and not task.urgent
            self._arrange(path, slot, self._clock() + (0.0 if hurry else delay))

    def discard(self, path: str) -> bool:
        """Drop a task whose file is gone, unless its transfer is in flight.

        Args:
            path: Which one.

        Returns:
            Whether there was one to drop.
        """
        with self._condition:
            slot = self._slots.get(path)
            if slot is None or slot.state is _State.RUNNING:
                return False
            del self._slots[path]
            self._wait_on(path, slot, ())
            self._release(path)
            self._condition.notify_all()
            return True

    def paths(self) -> list[str]:
        """Return the paths of everything in the queue."""
        with self._condition:
            return list(self._slots)

    def attempts(self, path: str) -> int:
        """Return how often a path has failed in a row.

        Args:
            path: Which one.
        """
        slot = self._slots.get(path)
        return slot.attempts if slot else 0

    def age(self, path: str) -> float:
        """Return the seconds since the oldest unsent change of a path was seen.

        Args:
            path: Which one.
        """
        slot = self._slots.get(path)
        return self._clock() - slot.first_seen if slot else 0.0

    def stop(self) -> None:
        """Give out no more tasks; what is in flight may be reported still."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def wait(self, timeout: float) -> None:
        """Wait for something to be reported.

        Args:
            timeout: At most so many seconds.
        """
        with self._condition:
            self._condition.wait(timeout)

    def unsettled(self, generation: int, since: float) -> bool:
        """Whether anything of a scan, or an earlier one, is still worth waiting for.

        Not worth it is what failed for good after a moment, and what waits only for that.

        Args:
            generation: The scan.
            since: The moment, in monotonic seconds.
        """
        with self._condition:
            return any(
                slot.since <= generation and not self._is_settled(slot, since)
                for slot in self._slots.values()
            )

    def pending(self, generation: int | None = None) -> list[Pending]:
        """Return what is not stored yet.

        Args:
            generation: Only what this scan or an earlier one saw; None for all.
        """
        now = self._clock()
        with self._condition:
            return [
                Pending(
                    path=path,
                    reason=self._reason(slot),
                    failed=bool(slot.reason),
                    age=now - slot.first_seen,
                    size=slot.task.entry.fingerprint.size,
                )
                for path, slot in self._slots.items()
                if generation is None or slot.since <= generation
            ]

    def _reason(self, slot: _Slot) -> str:
        if slot.reason:
            return slot.reason
        if slot.state is _State.WAITING:
            return f"waits for {', '.join(sorted(slot.waits)[:3])}"
        return "not sent yet"

    def _is_settled(self, slot: _Slot, since: float) -> bool:
        if slot.state is _State.WAITING:
            return all(self._failed_for_good(target, since) for target in slot.waits)
        return slot.state is not _State.RUNNING and slot.final and slot.failed_at >= since

    def _failed_for_good(self, path: str, since: float) -> bool:
        slot = self._slots[path]
        return slot.state is not _State.RUNNING and slot.final and slot.failed_at >= since

    def _wait_on(self, path: str, slot: _Slot, targets: Iterable[str]) -> None:
        for target in slot.waits:
            self._dependents.get(target, set()).discard(path)
        slot.waits = {target for target in targets if target in self._slots and target != path}
        for target in slot.waits:
            self._dependents.setdefault(target, set()).add(path)

    def _release(self, path: str) -> None:
        for dependent in self._dependents.pop(path, ()):
            slot = self._slots.get(dependent)
            if slot is not None:
                slot.waits.discard(path)
                if not slot.waits and slot.state is _State.WAITING:
                    self._arrange(dependent, slot, 0.0)

    def _arrange(self, path: str, slot: _Slot, not_before: float) -> None:
        """Put a slot where it belongs; an older ticket of it counts no more."""
        if slot.state is _State.DELAYED and slot.due == not_before and not slot.waits:
            return
        slot.due = not_before
        if slot.waits:
            slot.state = _State.WAITING
        elif not_before > self._clock():
            slot.state = _State.DELAYED
            slot.ticket = next(self._tickets)
            heapq.heappush(self._delayed, (not_before, slot.ticket, path))
            if self._idle_takers and self._delayed[0][1] == slot.ticket:
                self._condition.notify_all()
        elif slot.state is not _State.READY or slot.ticket == 0:
            slot.state = _State.READY
            slot.ticket = next(self._tickets)
            self._ready.append((path, slot.ticket))
            if self._idle_takers:
                self._condition.notify()

    def _next(self) -> Task | None:
        now = self._clock()
        while self._delayed and self._delayed[0][0] <= now:
            _, ticket, path = heapq.heappop(self._delayed)
            slot = self._slots.get(path)
            if slot is not None and slot.ticket == ticket and slot.state is _State.DELAYED:
                return self._start(slot)
        while self._ready:
            path, ticket = self._ready.popleft()
            slot = self._slots.get(path)
            if slot is not None and slot.ticket == ticket and slot.state is _State.READY:
                return self._start(slot)
        return None

    def _start(self, slot: _Slot) -> Task:
        slot.state = _State.RUNNING
        self._running += 1
        return slot.task
