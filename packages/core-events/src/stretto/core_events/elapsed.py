"""How much of a run is over, exactly."""

from __future__ import annotations

from stretto.core_events.errors import UnknownLengthError
from stretto.core_events.time import Time
from stretto.core_events.time_unit import TimeUnit
from stretto.core_events.timestamp import Timestamp

__all__ = ["elapsed_ratio"]


def elapsed_ratio(
    timestamp: Timestamp,
    max_duration: Time,
    dataloader_len: int | None,
    iteration_length: Time | None,
) -> tuple[int | float, int | float]:
    """Return the part of the run that is over as numerator and denominator, 0/1 to 1/1.

    Whole numbers stay whole, so the ratio is exact for every unit but seconds.

    Args:
        timestamp: Progress of the training.
        max_duration: How long the training lasts.
        dataloader_len: Batches an epoch, or None if unknown.
        iteration_length: Length of an iteration in ``ep`` or ``tok``, or None if unknown.

    Raises:
        UnknownLengthError: A length that the ratio depends on is not known.
    """
    unit, end = max_duration.unit, max_duration.value
    done = timestamp.read(unit)
    if done >= end:
        return 1, 1
    if unit is TimeUnit.EPOCH:
        part, whole = _part_of_epoch(timestamp, max_duration, dataloader_len)
    elif unit is TimeUnit.ITERATION:
        part, whole = _part_of_iteration(timestamp, max_duration, dataloader_len, iteration_length)
    else:
        return done, end
    return done * whole + part, end * whole


def _part_of_epoch(
    timestamp: Timestamp, max_duration: Time, dataloader_len: int | None
) -> tuple[int | float, int | float]:
    batch = timestamp.batch_in_epoch_count
    if batch == 0:
        return 0, 1
    if not dataloader_len:
        raise UnknownLengthError(
            f"max_duration={max_duration} depends on the length of an epoch, and the loader's "
            f"length is not known, so how much of the epoch {batch} batches are cannot be told. "
            "Give max_duration in ba, sp, tok or sec, or set dataloader_len."
        )
    return min(batch, dataloader_len), dataloader_len


def _part_of_iteration(
    timestamp: Timestamp,
    max_duration: Time,
    dataloader_len: int | None,
    iteration_length: Time | None,
) -> tuple[int | float, int | float]:
    tokens, epochs = timestamp.token_in_iteration_count, timestamp.epoch_in_iteration_count
    if epochs == 0 and tokens == 0 and timestamp.batch_in_epoch_count == 0:
        return 0, 1
    if iteration_length is None or iteration_length.value <= 0:
        raise UnknownLengthError(
            f"max_duration={max_duration} is in iterations, and the length of one is not known. "
            "Give max_duration in ba, sp, tok or sec, or set iteration_length."
        )
    length = iteration_length.value
    if iteration_length.unit is TimeUnit.TOKEN:
        return min(tokens, length), length
    part, whole = _part_of_epoch(timestamp, max_duration, dataloader_len)
    return min(epochs * whole + part, length * whole), length * whole
