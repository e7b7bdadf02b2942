"""Turn the times a scheduler is given into numbers that can be compared while training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.core_events import Time, TimeUnit, ensure_time

if TYPE_CHECKING:
    from stretto.core_events import State, TimeInput


def read_time(name: str, value: TimeInput) -> Time:
    """Return a scheduler's argument as a time; a bare number is in epochs.

    Raises:
        ValueError: If it is no time, is negative, or is in seconds.
    """
    time = ensure_time(value)
    if time.unit is TimeUnit.SECOND:
        raise ValueError(
            f"{name}={time} is in seconds, which a schedule cannot follow: "
            "use ep, ba, sp, tok or dur, such as '0.1dur'"
        )
    if time.value < 0:
        raise ValueError(f"{name} must not be negative, got {time}")
    return time


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of training from its start: `length` of a unit."""

    length: float
    unit: TimeUnit

    def position(self, state: State) -> float:
        """Return how much of the unit has passed in a run."""
        return position(state, self.unit)


def position(state: State, unit: TimeUnit) -> float:
    """Return how much of a unit has passed since training began."""
    if unit is TimeUnit.BATCH:
        return state.timestamp.batch_count
    return float(state.timestamp.get(unit).value)


def resolve(name: str, time: Time, state: State, factor: float = 1.0) -> Span:
    """Return a time as a span in the finest unit that the run allows.

    A fraction of the run (dur) takes the unit of `max_duration`; epochs become batches where the
    length of the dataloader is known.

    Args:
        name: The argument's name, for messages.
        time: The argument.
        state: The run.
        factor: Scales the result.

    Raises:
        ValueError: If a fraction is given and the run has no maximum duration.
    """
    value, unit = float(time.value), time.unit
    if unit is TimeUnit.DURATION:
        whole = state.max_duration
        if whole is None:
            raise ValueError(
                f"{name}={time} is a fraction of the run, but max_duration is not set: "
                "set it, or give the time in ep, ba, sp or tok"
            )
        value, unit = value * whole.value, whole.unit
    if unit is TimeUnit.EPOCH and state.dataloader_len is not None:
        value, unit = value * state.dataloader_len, TimeUnit.BATCH
    return Span(length=value * factor, unit=unit)


def same_unit(first: tuple[str, Time, Span], second: tuple[str, Time, Span]) -> None:
    """Check that two spans can be compared.

    Raises:
        ValueError: If their units differ.
    """
    (name, time, span), (other_name, other_time, other_span) = first, second
    if span.unit is not other_span.unit:
        raise ValueError(
            f"{name}={time} and {other_name}={other_time} come out in different units here "
            f"({span.unit.value} and {other_span.unit.value}): give both in the unit of "
            "max_duration, or as fractions of the run (dur)"
        )
