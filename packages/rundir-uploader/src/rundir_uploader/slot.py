"""All that is going on for one path of the queue."""

from __future__ import annotations

from enum import Enum, auto

from rundir_uploader.task import Task


class SlotState(Enum):
    """What a slot waits for."""

    READY = auto()
    """For a free transfer."""
    DELAYED = auto()
    """For a moment in time."""
    WAITING = auto()
    """For other paths to be stored."""
    RUNNING = auto()
    """For its transfer to end."""


class Slot:
    """The version of a path that is in the queue, and at most one that follows it.

    A version that is in flight, or that waits for other paths, is followed by the newest one asked
    for meanwhile: so something is stored now and then, however fast newer versions come.

    Args:
        task: The version.
        now: Monotonic seconds.

    Attributes:
        task: The version.
        waits: Paths it waits for.
        since: The first scan that asked for what the slot owes.
        first_seen: Monotonic seconds of that scan.
        follower: The newest version asked for after `task`; None for none.
        follower_waits: Paths that the follower waits for.
        follower_since: The first scan that asked for a follower.
        state: What the slot waits for.
        due: Monotonic seconds before which it is not taken.
        ticket: Number of its entry among those that are ready or delayed.
        attempts: Failures in a row.
        reason: Why the last one failed; empty if it did not.
        final: Whether another try is unlikely to help.
        failed_at: Monotonic seconds of the last failure.
    """

    __slots__ = (
        "attempts",
        "due",
        "failed_at",
        "final",
        "first_seen",
        "follower",
        "follower_since",
        "follower_waits",
        "reason",
        "since",
        "state",
        "task",
        "ticket",
        "waits",
    )

    def __init__(self, task: Task, now: float) -> None:
        self.task = task
        self.waits: set[str] = set()
        self.since = task.generation
        self.first_seen = now
        self.follower: Task | None = None
        self.follower_waits: set[str] = set()
        self.follower_since = 0
        self.state = SlotState.READY
        self.due = 0.0
        self.ticket = 0
        self.attempts = 0
        self.reason = ""
        self.final = False
        self.failed_at = -1.0

    @property
    def newest(self) -> Task:
        """The newest version asked for."""
        return self.follower or self.task

    def follow(self, task: Task, waits: set[str]) -> None:
        """Let a version come after the present one, in place of any other that was to.

        Args:
            task: The version.
            waits: Paths that it waits for.
        """
        if self.follower is None:
            self.follower_since = task.generation
        self.follower = task
        self.follower_waits = waits

    def promote(self, *, owed: bool) -> bool:
        """Let the follower take the place of the present version.

        Args:
            owed: Whether the present version was not stored, so that its scan is still owed.

        Returns:
            Whether there was one.
        """
        if self.follower is None:
            return False
        self.task, self.waits = self.follower, self.follower_waits
        if not owed:
            self.since = self.follower_since
        self.follower, self.follower_waits = None, set()
        return True

    def failed_for_good(self, since: float) -> bool:
        """Whether it failed after a moment, and another try is unlikely to help.

        Args:
            since: The moment, in monotonic seconds.
        """
        return self.state is not SlotState.RUNNING and self.final and self.failed_at >= since
