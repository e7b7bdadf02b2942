"""The queue of what is to be stored: one slot a path, one transfer a slot, newest version wins."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from rundir_uploader.slot import Slot, SlotState
from rundir_uploader.task import Pending, Task
from stretto.run_directory import FileEntry


class UploadQueue:
    """A thread-safe keyed queue.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slots: dict[str, Slot] = {}
        self._ready: deque[tuple[str, int]] = deque()
        self._delayed: list[tuple[float, int, str]] = []
        self._dependents: dict[str, set[str]] = {}
        self._tickets = itertools.count(1)
        lock = threading.RLock()
        self._condition = threading.Condition(lock)
        self._watchers = threading.Condition(lock)
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
                slot = self._slots[path] = Slot(task, self._clock())
                self._wait_on(path, slot, waits_for)
                self._arrange(path, slot, not_before)
                return
            newest = slot.newest
            same = newest.entry.fingerprint == task.entry.fingerprint
            if newest.urgent and not task.urgent and slot.state is not SlotState.RUNNING:
                task = replace(task, urgent=True)  # somebody waits for this path still
            if slot.state is SlotState.RUNNING or (slot.state is SlotState.WAITING and not same):
                self._follow(path, slot, task, waits_for)
                return
            slot.task = task
            self._wait_on(path, slot, waits_for)
            if task.urgent:
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
            return self._slots[task.entry.path].follower

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
            if slot.follower is dropping or not slot.promote(owed=False):
                self._remove(path)
            else:
                slot.first_seen = self._clock()
                slot.attempts = 0
                slot.reason = ""
                slot.final = False
                self._arrange(path, slot, 0.0)
            if not self._slots:
                self._watchers.notify_all()

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
            slot.promote(owed=True)
            slot.attempts += 1
            slot.reason = reason
            slot.final = final
            slot.failed_at = now
            self._arrange(path, slot, now + delay)
            if final:
                self._watchers.notify_all()

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
            if not slot.promote(owed=True) and entry is not None:
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
            if slot is None or slot.state is SlotState.RUNNING:
                return False
            self._remove(path)
            self._watchers.notify_all()
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
            self._watchers.notify_all()

    def wait(self, timeout: float) -> None:
        """Wait until the queue is empty, or something failed for good.

        Args:
            timeout: At most so many seconds.
        """
        with self._watchers:
            if self._slots:
                self._watchers.wait(timeout)

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

    def _reason(self, slot: Slot) -> str:
        if slot.reason:
            return slot.reason
        if slot.state is SlotState.WAITING:
            return f"waits for {', '.join(sorted(slot.waits)[:3])}"
        return "not sent yet"

    def _is_settled(self, slot: Slot, since: float) -> bool:
        if slot.state is not SlotState.WAITING:
            return slot.failed_for_good(since)
        targets = slot.waits | slot.follower_waits
        return all(self._slots[target].failed_for_good(since) for target in targets)

    def _present(self, path: str, targets: Iterable[str]) -> set[str]:
        """Return which targets are in the queue, and note that a path waits for them."""
        found = {target for target in targets if target in self._slots and target != path}
        for target in found:
            self._dependents.setdefault(target, set()).add(path)
        return found

    def _wait_on(self, path: str, slot: Slot, targets: Iterable[str]) -> None:
        slot.waits = self._present(path, targets)

    def _follow(self, path: str, slot: Slot, task: Task, targets: Iterable[str]) -> None:
        """Let a version follow one that is in flight or waits; one that can go at once, goes."""
        slot.follow(task, self._present(path, targets))
        if slot.state is SlotState.WAITING and not slot.follower_waits:
            slot.promote(owed=True)
            self._arrange(path, slot, 0.0)

    def _remove(self, path: str) -> None:
        """Take a slot out, and let go what waited for it."""
        del self._slots[path]
        for dependent in self._dependents.pop(path, ()):
            other = self._slots.get(dependent)
            if other is None:
                continue
            other.waits.discard(path)
            other.follower_waits.discard(path)
            if other.state is not SlotState.WAITING:
                continue
            if other.waits and other.follower is not None and not other.follower_waits:
                other.promote(owed=True)
            if not other.waits:
                self._arrange(dependent, other, 0.0)

    def _arrange(self, path: str, slot: Slot, not_before: float) -> None:
        """Put a slot where it belongs; an older ticket of it counts no more."""
        if slot.state is SlotState.DELAYED and slot.due == not_before and not slot.waits:
            return
        slot.due = not_before
        if slot.waits:
            slot.state = SlotState.WAITING
        elif not_before > self._clock():
            slot.state = SlotState.DELAYED
            slot.ticket = next(self._tickets)
            heapq.heappush(self._delayed, (not_before, slot.ticket, path))
            if self._idle_takers and self._delayed[0][1] == slot.ticket:
                self._condition.notify_all()
        elif slot.state is not SlotState.READY or slot.ticket == 0:
            slot.state = SlotState.READY
            slot.ticket = next(self._tickets)
            self._ready.append((path, slot.ticket))
            if self._idle_takers:
                self._condition.notify()

    def _next(self) -> Task | None:
        now = self._clock()
        while self._delayed and self._delayed[0][0] <= now:
            _, ticket, path = heapq.heappop(self._delayed)
            slot = self._slots.get(path)
            if slot is not None and slot.ticket == ticket and slot.state is SlotState.DELAYED:
                return self._start(slot)
        while self._ready:
            path, ticket = self._ready.popleft()
            slot = self._slots.get(path)
            if slot is not None and slot.ticket == ticket and slot.state is SlotState.READY:
                return self._start(slot)
        return None

    def _start(self, slot: Slot) -> Task:
        slot.state = SlotState.RUNNING
        self._running += 1
        return slot.task
