"""Every N of a unit, and once at the end: one mechanism for all who need it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol, TypeAlias

from stretto.core_events.elapsed import elapsed_ratio
from stretto.core_events.event import Event
from stretto.core_events.time import Time, TimeInput, ensure_time
from stretto.core_events.time_unit import TimeUnit
from stretto.core_events.timestamp import Timestamp

if TYPE_CHECKING:
    from fractions import Fraction

__all__ = ["IntervalScheduler", "ProgressState", "create_interval_scheduler"]


class ProgressState(Protocol):
    """What an interval needs to know of a state."""

    @property
    def timestamp(self) -> Timestamp:
        """Progress of the training."""
        ...

    @property
    def max_duration(self) -> Time | None:
        """How long the training lasts."""
        ...

    @property
    def dataloader_len(self) -> int | None:
        """Batches an epoch."""
        ...

    @property
    def iteration_length(self) -> Time | None:
        """Length of an iteration, where iterations are used."""
        ...


IntervalScheduler: TypeAlias = Callable[[ProgressState, Event], bool]
"""Called at events, says whether it is time."""


def create_interval_scheduler(
    interval: TimeInput | IntervalScheduler,
    include_end_of_training: bool = True,
    checkpoint_events: bool = True,
    final_events: Collection[Event] | None = None,
) -> IntervalScheduler:
    """Make a function that says at which events it is time: every `interval`, and at the end.

    Intervals in ``ep`` are looked at when an epoch ends, in ``iter`` when an iteration ends, all
    others when a batch ends. It is time when a multiple of the interval has been reached or
    passed since the batch (epoch, iteration) before, so nothing is missed where a batch jumps
    over a threshold, and a run resumed in the middle of an interval goes on in step. It is never
    time twice after the same batch.

    Args:
        interval: A time, a number of epochs, or a function with the same signature as the result,
            which is returned as it is. Zero or less never fires, not at the end either.
        include_end_of_training: Whether to fire when `max_duration` is reached.
        checkpoint_events: Whether to look at ``*_CHECKPOINT`` events rather than ``*_END``.
        final_events: The events at which the end of training is looked for. Default: those that
            follow a batch, an epoch and an iteration, of the kind that `checkpoint_events` says.

    Raises:
        TimeStringError: `interval` is no time.
        TypeError: `interval` is of another type.
    """
    if callable(interval):
        return interval
    time = ensure_time(interval, TimeUnit.EPOCH)
    if time.value <= 0:
        return _never
    after_batch, after_epoch, after_iteration = (
        (Event.BATCH_CHECKPOINT, Event.EPOCH_CHECKPOINT, Event.ITERATION_CHECKPOINT)
        if checkpoint_events
        else (Event.BATCH_END, Event.EPOCH_END, Event.ITERATION_END)
    )
    if time.unit is TimeUnit.EPOCH:
        at = after_epoch
    elif time.unit is TimeUnit.ITERATION:
        at = after_iteration
    else:
        at = after_batch
    final: Collection[Event] = ()
    if include_end_of_training:
        final = (
            (after_batch, after_epoch, after_iteration) if final_events is None else final_events
        )
    return _Interval(time, at, frozenset(final))


def _never(state: ProgressState, event: Event) -> bool:
    del state, event
    return False


class _Interval:
    """Decides from the timestamp alone, which knows the step it came from."""

    def __init__(self, interval: Time, at: Event, final: frozenset[Event]) -> None:
        self._interval = interval
        self._at = at
        self._final = final
        self._last_fired: tuple[int, object] | None = None

    def __call__(self, state: ProgressState, event: Event) -> bool:
        due = event is self._at and self._crossed(state)
        if not due and event in self._final:
            due = event is Event.FIT_END or _has_ended(state)
        if not due:
            return False
        # Several events follow the same batch, and the end may coincide with a threshold.
        moment = state.timestamp.batch_moment
        if moment == self._last_fired:
            return False
        self._last_fired = moment
        return True

    def _crossed(self, state: ProgressState) -> bool:
        timestamp, unit, every = state.timestamp, self._interval.unit, self._interval.value
        if unit is TimeUnit.EPOCH:
            # Mid-epoch, an EPOCH_* event means that training was cut short: no epoch was completed.
            whole = timestamp.batch_in_epoch_count == 0 and timestamp.epoch_count > 0
            return whole and timestamp.epoch_count % every == 0
        if unit is TimeUnit.ITERATION:
            fresh = timestamp.epoch_in_iteration_count == 0
            fresh = fresh and timestamp.token_in_iteration_count == 0
            return (
                fresh and timestamp.iteration_count > 0 and timestamp.iteration_count % every == 0
            )
        if unit is TimeUnit.DURATION:
            return _crossed_fraction(state, every)
        if unit is TimeUnit.SECOND:
            # Whole microseconds divide exactly, float seconds do not.
            step = max(datetime.timedelta(seconds=every), datetime.timedelta.resolution)
            earlier, later = timestamp.clock_step
            return earlier // step < later // step
        before, now = timestamp.step_in(unit)
        return before // every < now // every


def _has_ended(state: ProgressState) -> bool:
    maximum = state.max_duration
    return maximum is not None and state.timestamp >= maximum


def _crossed_fraction(state: ProgressState, every: float) -> bool:
    """Whether a multiple of a fraction of the run was reached, in exact arithmetic."""
    from fractions import Fraction  # slow to import, and few intervals are fractions

    maximum = state.max_duration
    if maximum is None:
        raise ValueError(
            f"an interval of {every}dur needs to know how long the run is. Set max_duration, or "
            "give the interval in ba, sp, tok or sec."
        )
    step = Fraction(repr(every))  # 0.1 is meant as a tenth, not as the float next to it
    timestamp = state.timestamp
    before, now = (
        _exact(elapsed_ratio(moment, maximum, state.dataloader_len, state.iteration_length))
        for moment in (timestamp.before_last_batch(), timestamp)
    )
    return before // step < now // step


def _exact(ratio: tuple[int | float, int | float]) -> Fraction:
    from fractions import Fraction

    return Fraction(repr(ratio[0])) / Fraction(repr(ratio[1]))
