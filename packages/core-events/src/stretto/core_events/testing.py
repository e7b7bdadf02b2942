"""What tests of callbacks, algorithms and training loops need."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from stretto.core_events.callback import Callback
from stretto.core_events.event import Event
from stretto.core_events.grammar import SequenceFault, check_sequence
from stretto.core_events.logging import Logger
from stretto.core_events.state import State
from stretto.core_events.time import TimeInput

__all__ = [
    "EventRecorder",
    "FakeClock",
    "ScriptedState",
    "SequenceFault",
    "check_sequence",
    "expand",
]


class EventRecorder(Callback[Any]):
    """Records the value of every event that is run, in order.

    Args:
        snapshot: Called with the state at each event; what it returns is kept beside the event.
        only: Record these events only. Default: all.

    Attributes:
        events: The values recorded, such as ``"batch_end"``.
        snapshots: What `snapshot` returned, one for each recorded event.
        closed: ``"close"`` and ``"post_close"`` as they were called.
    """

    def __init__(
        self,
        snapshot: Callable[[Any], object] | None = None,
        *,
        only: Iterable[Event] | None = None,
    ) -> None:
        self.events: list[str] = []
        self.snapshots: list[object] = []
        self.closed: list[str] = []
        self._snapshot = snapshot
        self._only = None if only is None else frozenset(only)

    def run_event(self, event: Event, state: Any, logger: Logger) -> None:
        """Record the event."""
        del logger
        if self._only is not None and event not in self._only:
            return
        self.events.append(event.value)
        if self._snapshot is not None:
            self.snapshots.append(self._snapshot(state))

    def close(self, state: Any, logger: Logger) -> None:
        """Record being closed."""
        del state, logger
        self.closed.append("close")

    def post_close(self) -> None:
        """Record being post-closed."""
        self.closed.append("post_close")

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self.events.clear()
        self.snapshots.clear()

    def difference(self, expected: Sequence[str]) -> str:
        """Say where the record departs from what was expected; empty if nowhere.

        Args:
            expected: Event values, in order.
        """
        for index, (have, want) in enumerate(zip(self.events, expected, strict=False)):
            if have != want:
                before = ", ".join(self.events[max(0, index - 3) : index]) or "the start"
                return f"event {index} is {have}, expected {want}, after {before}"
        if len(self.events) != len(expected):
            count = min(len(self.events), len(expected))
            rest = (*self.events[count : count + 3], *expected[count : count + 3])
            return (
                f"{len(self.events)} events recorded, {len(expected)} expected; "
                f"the odd ones begin with {', '.join(rest)}"
            )
        return ""


def expand(*parts: Any) -> list[str]:
    """Spell out an event sequence that is written with repetitions.

    ``expand("epoch_start", (2, ["batch_start", "batch_end"]), "epoch_end")`` has six entries.

    Args:
        parts: Event values; lists of parts; and tuples of a count and a list of parts.

    Returns:
        Event values in order, as `EventRecorder.events` holds them.

    Raises:
        ValueError: A string that is no event.
    """
    sequence: list[str] = []
    for part in parts:
        if isinstance(part, str):
            sequence.append(Event(part).value)
        elif isinstance(part, tuple):
            count, body = cast("tuple[int, Sequence[Any]]", part)
            sequence.extend(expand(*body) * count)
        else:
            sequence.extend(expand(*part))
    return sequence


class ScriptedState(State):
    """A state that can be moved on by hand, for tests without a loop.

    Args:
        max_duration: See `State`. Default: one epoch.
        dataloader_len: Batches an epoch.
        run_name: See `State`.
        samples_per_batch: Samples that a step adds.
        tokens_per_batch: Tokens that a step adds.
        seconds_per_batch: Wall-clock seconds that a step adds.
        keywords: The other arguments of `State`.
    """

    def __init__(
        self,
        *,
        max_duration: TimeInput | None = "1ep",
        dataloader_len: int | None = 3,
        run_name: str = "scripted",
        samples_per_batch: int = 1,
        tokens_per_batch: int = 0,
        seconds_per_batch: float = 0.0,
        **keywords: Any,
    ) -> None:
        super().__init__(
            run_name=run_name,
            max_duration=max_duration,
            dataloader_len=dataloader_len,
            **keywords,
        )
        self.samples_per_batch = samples_per_batch
        self.tokens_per_batch = tokens_per_batch
        self.seconds_per_batch = seconds_per_batch

    def step(self, batches: int = 1) -> None:
        """Move the timestamp on by some batches, without ending an epoch."""
        duration = datetime.timedelta(seconds=self.seconds_per_batch)
        for _ in range(batches):
            self.timestamp = self.timestamp.to_next_batch(
                self.samples_per_batch, self.tokens_per_batch, duration
            )

    def end_epoch(self) -> None:
        """Move the timestamp on to the next epoch."""
        self.timestamp = self.timestamp.to_next_epoch()


class FakeClock:
    """A clock that stands still until it is told to move.

    Args:
        now: Seconds that it shows at first.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the seconds shown."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock; a negative number sets it back, as an operator might."""
        self._now += seconds
