"""What the end of a transfer means for the queue, and for those who watch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from rundir_uploader.conditions import Conditions
from rundir_uploader.keys import printable
from rundir_uploader.planner import Planner
from rundir_uploader.queue import UploadQueue
from rundir_uploader.task import Task
from rundir_uploader.transfer import Outcome, Result

_BUSY_TRIES = 8
_MAX_BACKOFF = 60.0


class Outcomes:
    """Takes in how transfers ended, from many threads.

    Args:
        queue: Where the tasks came from.
        planner: Tells whether a version asked for meanwhile is still wanted.
        conditions: Where what is wrong is reported.
        settle: Seconds after which a file that is being written is looked at again.
        rescan: Asks for a scan.
        clock: Monotonic seconds.

    Attributes:
        sent: Bytes that went to the store.
        done: Transfers that ended well.
        failures: Transfers that failed.
        last_success: Monotonic seconds when something last got on.
    """

    def __init__(
        self,
        queue: UploadQueue,
        planner: Planner,
        conditions: Conditions,
        *,
        settle: float,
        rescan: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._planner = planner
        self._conditions = conditions
        self._settle_for = settle
        self._rescan = rescan
        self._clock = clock
        self.sent = 0
        self.done = 0
        self.failures = 0
        self.last_success = clock()

    def on_progress(self, _size: int) -> None:
        """Note that a large file gets on.

        Args:
            _size: Bytes.
        """
        self.last_success = self._clock()

    def settle(self, task: Task, outcome: Outcome) -> None:
        """Take in how a transfer ended.

        Args:
            task: What was to be done.
            outcome: How it ended.
        """
        try:
            self._settle(task, outcome)
        except Exception as error:  # or the path would count as in flight for ever
            self._retry(task, f"{type(error).__name__}: {error}", final=False)

    def _settle(self, task: Task, outcome: Outcome) -> None:
        path = task.entry.path
        if outcome.result is Result.FAILED:
            self.failures += 1
            self._conditions.begin(
                outcome.condition,
                f"{printable(path)} could not be stored: {outcome.reason}. "
                "The run goes on, and it is tried again.",
            )
            self._retry(task, outcome.reason, final=outcome.final)
        elif outcome.result is Result.CHANGED:
            if outcome.entry is not None:
                self._queue.put_off(task, self._settle_for, outcome.entry)
            else:
                tries = self._queue.attempts(path) + 1
                self._queue.retry(
                    task,
                    delay=0.1 * tries,
                    reason="changes while it is read",
                    final=tries >= _BUSY_TRIES,
                )
        elif outcome.result is Result.OUTDATED:
            self._retry(task, "became something else while it was queued", final=False)
            self._rescan()
        else:
            self._done(task, outcome)

    def _done(self, task: Task, outcome: Outcome) -> None:
        if outcome.result is Result.GONE:
            self._planner.gone += 1
            self._conditions.info(f"{printable(task.entry.path)} was deleted before it was stored")
        else:
            self.sent += outcome.sent
            self.done += 1
            self.last_success = self._clock()
            if outcome.result is Result.SENT:
                self._conditions.end_all("store:", "the store can be written to again")
            if self._queue.attempts(task.entry.path):
                self._conditions.end_all("refused:", "what the store had refused, it takes now")
                self._conditions.end(
                    f"source:{task.entry.path}", f"{printable(task.entry.path)} can be read again"
                )
        newer = self._queue.newer(task)
        dropping = newer if newer is not None and not self._planner.wants(newer) else None
        self._queue.finish(task, dropping=dropping)

    def _retry(self, task: Task, reason: str, *, final: bool) -> None:
        attempts = self._queue.attempts(task.entry.path)
        delay = min(_MAX_BACKOFF, 0.25 * 2.0 ** min(attempts, 10)) * random.uniform(0.75, 1.25)
        self._queue.retry(task, delay=delay, reason=reason, final=final)
