"""The fields of a timestamp: how they are kept, checked and read."""

from __future__ import annotations

import datetime
import operator

from stretto.core_events.errors import TimeUnitError
from stretto.core_events.time import Time, unchecked_time
from stretto.core_events.time_unit import TimeUnit

__all__ = ["CLOCKS", "COUNTS", "ZERO", "Readings", "read_count"]

COUNTS: dict[str, TimeUnit] = {
    "iteration": TimeUnit.ITERATION,
    "epoch": TimeUnit.EPOCH,
    "batch": TimeUnit.BATCH,
    "sample": TimeUnit.SAMPLE,
    "token": TimeUnit.TOKEN,
    "epoch_in_iteration": TimeUnit.EPOCH,
    "token_in_iteration": TimeUnit.TOKEN,
    "batch_in_epoch": TimeUnit.BATCH,
    "sample_in_epoch": TimeUnit.SAMPLE,
    "token_in_epoch": TimeUnit.TOKEN,
}
"""The counted fields, each with its unit."""
CLOCKS = ("total_wct", "iteration_wct", "epoch_wct", "batch_wct")
"""The wall-clock fields."""
ZERO = datetime.timedelta()
"""No time at all."""


class Readings:
    """The fields of a `Timestamp`, which documents them."""

    __slots__ = (
        "_batch",
        "_batch_in_epoch",
        "_batch_wct",
        "_epoch",
        "_epoch_in_iteration",
        "_epoch_wct",
        "_iteration",
        "_iteration_wct",
        "_previous_sample",
        "_previous_token",
        "_previous_wct",
        "_sample",
        "_sample_in_epoch",
        "_token",
        "_token_in_epoch",
        "_token_in_iteration",
        "_total_wct",
        "_wct_at_batch",
    )

    def __init__(
        self,
        iteration: int | Time = 0,
        epoch: int | Time = 0,
        batch: int | Time = 0,
        sample: int | Time = 0,
        token: int | Time = 0,
        epoch_in_iteration: int | Time = 0,
        token_in_iteration: int | Time = 0,
        batch_in_epoch: int | Time = 0,
        sample_in_epoch: int | Time = 0,
        token_in_epoch: int | Time = 0,
        total_wct: datetime.timedelta | None = None,
        iteration_wct: datetime.timedelta | None = None,
        epoch_wct: datetime.timedelta | None = None,
        batch_wct: datetime.timedelta | None = None,
    ) -> None:
        self._iteration = read_count("iteration", iteration)
        self._epoch = read_count("epoch", epoch)
        self._batch = read_count("batch", batch)
        self._sample = read_count("sample", sample)
        self._token = read_count("token", token)
        self._epoch_in_iteration = read_count("epoch_in_iteration", epoch_in_iteration)
        self._token_in_iteration = read_count("token_in_iteration", token_in_iteration)
        self._batch_in_epoch = read_count("batch_in_epoch", batch_in_epoch)
        self._sample_in_epoch = read_count("sample_in_epoch", sample_in_epoch)
        self._token_in_epoch = read_count("token_in_epoch", token_in_epoch)
        self._total_wct = read_clock("total_wct", total_wct)
        self._iteration_wct = read_clock("iteration_wct", iteration_wct)
        self._epoch_wct = read_clock("epoch_wct", epoch_wct)
        self._batch_wct = read_clock("batch_wct", batch_wct)
        # What the counts were one batch ago: an interval needs it to see a threshold being
        # crossed, and it must not depend on who looked when.
        self._previous_sample = self._sample
        self._previous_token = self._token
        self._previous_wct = self._total_wct
        self._wct_at_batch = self._total_wct

    @property
    def iteration(self) -> Time:
        """Iterations completed."""
        return unchecked_time(self._iteration, TimeUnit.ITERATION)

    @property
    def epoch(self) -> Time:
        """Epochs completed."""
        return unchecked_time(self._epoch, TimeUnit.EPOCH)

    @property
    def batch(self) -> Time:
        """Batches completed."""
        return unchecked_time(self._batch, TimeUnit.BATCH)

    @property
    def sample(self) -> Time:
        """Samples seen."""
        return unchecked_time(self._sample, TimeUnit.SAMPLE)

    @property
    def token(self) -> Time:
        """Tokens seen."""
        return unchecked_time(self._token, TimeUnit.TOKEN)

    @property
    def epoch_in_iteration(self) -> Time:
        """Epochs completed in the current iteration."""
        return unchecked_time(self._epoch_in_iteration, TimeUnit.EPOCH)

    @property
    def token_in_iteration(self) -> Time:
        """Tokens seen in the current iteration."""
        return unchecked_time(self._token_in_iteration, TimeUnit.TOKEN)

    @property
    def batch_in_epoch(self) -> Time:
        """Batches completed in the current epoch."""
        return unchecked_time(self._batch_in_epoch, TimeUnit.BATCH)

    @property
    def sample_in_epoch(self) -> Time:
        """Samples seen in the current epoch."""
        return unchecked_time(self._sample_in_epoch, TimeUnit.SAMPLE)

    @property
    def token_in_epoch(self) -> Time:
        """Tokens seen in the current epoch."""
        return unchecked_time(self._token_in_epoch, TimeUnit.TOKEN)

    @property
    def total_wct(self) -> datetime.timedelta:
        """Wall-clock time spent training."""
        return self._total_wct

    @property
    def iteration_wct(self) -> datetime.timedelta:
        """Wall-clock time spent in the current iteration."""
        return self._iteration_wct

    @property
    def epoch_wct(self) -> datetime.timedelta:
        """Wall-clock time spent in the current epoch."""
        return self._epoch_wct

    @property
    def batch_wct(self) -> datetime.timedelta:
        """Wall-clock time that the last batch took."""
        return self._batch_wct

    @property
    def iteration_count(self) -> int:
        """Iterations completed, as an int."""
        return self._iteration

    @property
    def epoch_count(self) -> int:
        """Epochs completed, as an int."""
        return self._epoch

    @property
    def batch_count(self) -> int:
        """Batches completed, as an int."""
        return self._batch

    @property
    def sample_count(self) -> int:
        """Samples seen, as an int."""
        return self._sample

    @property
    def token_count(self) -> int:
        """Tokens seen, as an int."""
        return self._token

    @property
    def epoch_in_iteration_count(self) -> int:
        """Epochs completed in the current iteration, as an int."""
        return self._epoch_in_iteration

    @property
    def token_in_iteration_count(self) -> int:
        """Tokens seen in the current iteration, as an int."""
        return self._token_in_iteration

    @property
    def batch_in_epoch_count(self) -> int:
        """Batches completed in the current epoch, as an int."""
        return self._batch_in_epoch

    @property
    def sample_in_epoch_count(self) -> int:
        """Samples seen in the current epoch, as an int."""
        return self._sample_in_epoch

    @property
    def token_in_epoch_count(self) -> int:
        """Tokens seen in the current epoch, as an int."""
        return self._token_in_epoch


def read_count(name: str, value: object) -> int:
    """Return a count as an int that is not negative."""
    if isinstance(value, Time):
        if value.unit is not COUNTS[name]:
            raise TimeUnitError(f"{name} is counted in {COUNTS[name]}, but {value} was given.")
        value = value.value
    try:
        count = operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise TypeError(f"{name} is a whole number, but {value!r} was given.") from None
    if count < 0:
        raise ValueError(f"{name} cannot be negative, but {count} was given.")
    return count


def read_clock(name: str, value: object) -> datetime.timedelta:
    """Return a wall-clock field as a timedelta that is not negative."""
    if value is None:
        return ZERO
    if not isinstance(value, datetime.timedelta):
        raise TypeError(f"{name} is a timedelta, but {value!r} was given.")
    if value < ZERO:
        raise ValueError(f"{name} cannot be negative, but {value} was given.")
    return value
