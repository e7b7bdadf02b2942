"""When training ends, and whether that can be known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.core_events import Time, TimeUnit, ensure_time

if TYPE_CHECKING:
    from stretto.core_events import State, TimeInput


def is_finished(state: State) -> bool:
    """Whether the run has reached its maximum duration."""
    maximum = state.max_duration
    return maximum is not None and state.timestamp >= maximum


def check_duration(state: State) -> Time:
    """Return the maximum duration of a run that is about to train.

    Raises:
        ValueError: If there is none, or it is in a unit that this run cannot count.
    """
    maximum = state.max_duration
    if maximum is None:
        raise ValueError(
            "no duration: pass max_duration to Trainer(...) or duration to fit(...), such as "
            "'2ep' or '1000ba'"
        )
    if maximum.unit is TimeUnit.EPOCH and state.dataloader_len is None:
        raise ValueError(
            f"max_duration={maximum} is in epochs, but the training dataloader has no length, so "
            "its epochs may never end: give max_duration in ba, sp, tok or sec, or pass "
            "train_subset_num_batches"
        )
    if maximum.unit is TimeUnit.ITERATION and state.iteration_length is None:
        raise ValueError(
            f"max_duration={maximum} is in iterations, but state.iteration_length is not set: "
            "set it, or give max_duration in ep, ba, sp, tok or sec"
        )
    return maximum


def check_extension(duration: TimeInput, scale_schedule_ratio: float = 1.0) -> Time:
    """Return for how long a run is to go on, stretched by the scale schedule ratio.

    Raises:
        ValueError: If the duration is not above 0 or a fraction.
    """
    time = scale_duration(ensure_time(duration), scale_schedule_ratio)
    if time.value <= 0:
        raise ValueError(f"duration must be above 0, got {time}")
    if time.unit is TimeUnit.DURATION:
        raise ValueError(f"duration={time} is a fraction: give it in ep, ba, sp, tok or sec")
    return time


def scale_duration(duration: Time, ratio: float) -> Time:
    """Return a duration stretched by the scale schedule ratio.

    Raises:
        ValueError: If the ratio is not above 0 or nothing is left.
    """
    if not ratio > 0:
        raise ValueError(f"scale_schedule_ratio must be above 0, got {ratio}")
    scaled = duration if ratio == 1.0 else duration * ratio
    if duration.value > 0 and scaled.value <= 0:
        raise ValueError(f"scale_schedule_ratio={ratio} leaves nothing of {duration}")
    return scaled
