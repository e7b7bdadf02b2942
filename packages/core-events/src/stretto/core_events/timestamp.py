"""How far a run has come, counted in every unit at once."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Mapping

from stretto.core_events.errors import TimeUnitError
from stretto.core_events.time import Time, TimeInput
from stretto.core_events.time_unit import TimeUnit

__all__ = ["Timestamp"]

_COUNTS: dict[str, TimeUnit] = {
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
_CLOCKS = ("total_wct", "iteration_wct", "epoch_wct", "batch_wct")
_ZERO = datetime.timedelta()


class Timestamp:
    """An immutable reading of a run's progress; each step makes a new one.

    Properties named after the fields return a `Time`; the ones that end in ``_count`` return the
    plain int, for code that runs at every step. Wall-clock fields are `timedelta` and never
    negative. A timestamp compares with a `Time` or a time string in that unit:
    ``timestamp < "3ep"``.

    Args:
        iteration: Iterations completed.
        epoch: Epochs completed.
        batch: Batches completed; so for the other counts.
        sample: Samples seen.
        token: Tokens seen.
        epoch_in_iteration: Epochs completed in the current iteration.
        token_in_iteration: Tokens seen in the current iteration.
        batch_in_epoch: Batches completed in the current epoch.
        sample_in_epoch: Samples seen in the current epoch.
        token_in_epoch: Tokens seen in the current epoch.
        total_wct: Wall-clock time spent training.
        iteration_wct: Wall-clock time spent in the current iteration.
        epoch_wct: Wall-clock time spent in the current epoch.
        batch_wct: Wall-clock time that the last batch took.

    Raises:
        ValueError: A count or a wall-clock time is negative.
        TypeError: A count is no whole number, or a `Time` in another unit.
    """

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
        self._iteration = _count("iteration", iteration)
        self._epoch = _count("epoch", epoch)
        self._batch = _count("batch", batch)
        self._sample = _count("sample", sample)
        self._token = _count("token", token)
        self._epoch_in_iteration = _count("epoch_in_iteration", epoch_in_iteration)
        self._token_in_iteration = _count("token_in_iteration", token_in_iteration)
        self._batch_in_epoch = _count("batch_in_epoch", batch_in_epoch)
        self._sample_in_epoch = _count("sample_in_epoch", sample_in_epoch)
        self._token_in_epoch = _count("token_in_epoch", token_in_epoch)
        self._total_wct = _clock("total_wct", total_wct)
        self._iteration_wct = _clock("iteration_wct", iteration_wct)
        self._epoch_wct = _clock("epoch_wct", epoch_wct)
        self._batch_wct = _clock("batch_wct", batch_wct)
        # What the counts were one batch ago: an interval needs it to see a threshold being
        # crossed, and it must not depend on who looked when.
        self._previous_sample = self._sample
        self._previous_token = self._token
        self._previous_wct = self._total_wct
        self._wct_at_batch = self._total_wct

    @property
    def iteration(self) -> Time:
        """Iterations completed."""
        return Time(self._iteration, TimeUnit.ITERATION)

    @property
    def epoch(self) -> Time:
        """Epochs completed."""
        return Time(self._epoch, TimeUnit.EPOCH)

    @property
    def batch(self) -> Time:
        """Batches completed."""
        return Time(self._batch, TimeUnit.BATCH)

    @property
    def sample(self) -> Time:
        """Samples seen."""
        return Time(self._sample, TimeUnit.SAMPLE)

    @property
    def token(self) -> Time:
        """Tokens seen."""
        return Time(self._token, TimeUnit.TOKEN)

    @property
    def epoch_in_iteration(self) -> Time:
        """Epochs completed in the current iteration."""
        return Time(self._epoch_in_iteration, TimeUnit.EPOCH)

    @property
    def token_in_iteration(self) -> Time:
        """Tokens seen in the current iteration."""
        return Time(self._token_in_iteration, TimeUnit.TOKEN)

    @property
    def batch_in_epoch(self) -> Time:
        """Batches completed in the current epoch."""
        return Time(self._batch_in_epoch, TimeUnit.BATCH)

    @property
    def sample_in_epoch(self) -> Time:
        """Samples seen in the current epoch."""
        return Time(self._sample_in_epoch, TimeUnit.SAMPLE)

    @property
    def token_in_epoch(self) -> Time:
        """Tokens seen in the current epoch."""
        return Time(self._token_in_epoch, TimeUnit.TOKEN)

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

    def get(self, unit: TimeUnit | str) -> Time:
        """Return the progress in one unit; seconds are the total wall-clock time.

        Raises:
            TimeUnitError: `unit` is ``dur``, which only the state can tell, since it knows the end.
        """
        unit = TimeUnit(unit)
        return Time(self._read(unit), unit)

    def _read(self, unit: TimeUnit) -> int | float:
        if unit is TimeUnit.BATCH:
            return self._batch
        if unit is TimeUnit.EPOCH:
            return self._epoch
        if unit is TimeUnit.SAMPLE:
            return self._sample
        if unit is TimeUnit.TOKEN:
            return self._token
        if unit is TimeUnit.ITERATION:
            return self._iteration
        if unit is TimeUnit.SECOND:
            return self._total_wct.total_seconds()
        raise TimeUnitError(
            "a timestamp has no duration (dur): it does not know where the run ends. "
            "Ask state.get_elapsed_duration()."
        )

    def _blank_copy(self) -> Timestamp:
        """Copy every slot; the caller changes what differs before anyone sees it."""
        new = _new(Timestamp)
        new._iteration = self._iteration
        new._epoch = self._epoch
        new._batch = self._batch
        new._sample = self._sample
        new._token = self._token
        new._epoch_in_iteration = self._epoch_in_iteration
        new._token_in_iteration = self._token_in_iteration
        new._batch_in_epoch = self._batch_in_epoch
        new._sample_in_epoch = self._sample_in_epoch
        new._token_in_epoch = self._token_in_epoch
        new._total_wct = self._total_wct
        new._iteration_wct = self._iteration_wct
        new._epoch_wct = self._epoch_wct
        new._batch_wct = self._batch_wct
        new._previous_sample = self._previous_sample
        new._previous_token = self._previous_token
        new._previous_wct = self._previous_wct
        new._wct_at_batch = self._wct_at_batch
        return new

    def to_next_batch(
        self,
        samples: int | Time = 0,
        tokens: int | Time = 0,
        duration: datetime.timedelta | None = None,
    ) -> Timestamp:
        """Return the timestamp after one more batch.

        Args:
            samples: Samples in the batch, over all ranks.
            tokens: Tokens in the batch, over all ranks.
            duration: Wall-clock time it took. A negative one (a clock was set back) counts as 0.
        """
        if type(samples) is not int or samples < 0:
            samples = _count("sample", samples)
        if type(tokens) is not int or tokens < 0:
            tokens = _count("token", tokens)
        new = self._blank_copy()
        new._batch += 1
        new._batch_in_epoch += 1
        new._previous_sample = self._sample
        new._previous_token = self._token
        new._sample += samples
        new._sample_in_epoch += samples
        new._token += tokens
        new._token_in_epoch += tokens
        new._token_in_iteration += tokens
        new._previous_wct = self._wct_at_batch
        if duration is None or duration < _ZERO:
            new._batch_wct = _ZERO
        else:
            new._batch_wct = duration
            new._total_wct += duration
            new._iteration_wct += duration
            new._epoch_wct += duration
        new._wct_at_batch = new._total_wct
        return new

    def to_next_epoch(self, duration: datetime.timedelta | None = None) -> Timestamp:
        """Return the timestamp after the current epoch: the counts within the epoch start over.

        Args:
            duration: Wall-clock time since the last batch. A negative one counts as 0.
        """
        new = self._blank_copy()
        new._epoch += 1
        new._epoch_in_iteration += 1
        new._batch_in_epoch = new._sample_in_epoch = new._token_in_epoch = 0
        new._epoch_wct = new._batch_wct = _ZERO
        if duration is not None and duration > _ZERO:
            new._total_wct += duration
            new._iteration_wct += duration
        return new

    def to_next_iteration(self, duration: datetime.timedelta | None = None) -> Timestamp:
        """Return the timestamp after the current iteration: the counts within it start over.

        An epoch that is under way (an iteration may end in its middle) goes on.

        Args:
            duration: Wall-clock time since the last step. A negative one counts as 0.
        """
        new = self._blank_copy()
        new._iteration += 1
        new._epoch_in_iteration = new._token_in_iteration = 0
        new._iteration_wct = new._batch_wct = _ZERO
        if duration is not None and duration > _ZERO:
            new._total_wct += duration
            new._epoch_wct += duration
        return new

    @property
    def batch_moment(self) -> tuple[int, datetime.timedelta]:
        """What tells one completed batch from another: its number and when it was done.

        It stays the same through the events that follow a batch, and through `to_next_epoch`.
        """
        return self._batch, self._wct_at_batch

    def step_in(self, unit: TimeUnit) -> tuple[int | float, int | float]:
        """Return the progress in a unit before and after the last batch.

        Time spent between batches belongs to the batch after it. Right after loading, and before
        the first batch, both are the same.
        """
        if unit is TimeUnit.BATCH:
            return max(0, self._batch - 1), self._batch
        if unit is TimeUnit.SAMPLE:
            return self._previous_sample, self._sample
        if unit is TimeUnit.TOKEN:
            return self._previous_token, self._token
        if unit is TimeUnit.SECOND:
            return self._previous_wct.total_seconds(), self._wct_at_batch.total_seconds()
        raise TimeUnitError(f"a batch does not move a run on by whole {unit}.")

    def before_last_batch(self) -> Timestamp:
        """Return what the counts were before the last batch, within the same epoch."""
        new = self._blank_copy()
        new._batch, new._batch_in_epoch = max(0, self._batch - 1), max(0, self._batch_in_epoch - 1)
        samples, tokens = self._sample - self._previous_sample, self._token - self._previous_token
        new._sample, new._token = self._previous_sample, self._previous_token
        new._sample_in_epoch = max(0, self._sample_in_epoch - samples)
        new._token_in_epoch = max(0, self._token_in_epoch - tokens)
        new._token_in_iteration = max(0, self._token_in_iteration - tokens)
        new._total_wct = self._previous_wct
        return new

    def copy(self, **changes: int | Time | datetime.timedelta) -> Timestamp:
        """Return a copy with some fields changed; the names are those of the constructor.

        Raises:
            TypeError: A name that is no field.
        """
        values: dict[str, object] = {name: getattr(self, f"_{name}") for name in _COUNTS}
        values |= {name: getattr(self, f"_{name}") for name in _CLOCKS}
        for name in changes:
            if name not in values:
                raise TypeError(
                    f"{name!r} is no field of a timestamp. Fields: {', '.join(values)}."
                )
        return Timestamp(**{**values, **changes})  # pyright: ignore[reportArgumentType]

    def state_dict(self) -> dict[str, int | float]:
        """Return the fields as plain numbers: counts as int, wall-clock times in seconds."""
        counts: dict[str, int | float] = {name: getattr(self, f"_{name}") for name in _COUNTS}
        return counts | {name: getattr(self, f"_{name}").total_seconds() for name in _CLOCKS}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, object]) -> Timestamp:
        """Make a timestamp from `state_dict`; what is missing is 0, what is unknown ignored.

        Wall-clock fields may be seconds or `timedelta`; counts may be ints or `Time`.

        Raises:
            ValueError: A field is negative.
            TypeError: A field has the wrong type.
        """
        values: dict[str, object] = {name: state[name] for name in _COUNTS if name in state}
        for name in _CLOCKS:
            clock = state.get(name)
            if isinstance(clock, int | float):
                clock = datetime.timedelta(seconds=clock)
            values[name] = clock
        return cls(**values)  # pyright: ignore[reportArgumentType]

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, f"_{name}") for name in (*_COUNTS, *_CLOCKS))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Timestamp):
            return self._fields() == other._fields()
        if isinstance(other, str):
            try:
                other = Time.from_timestring(other)
            except ValueError:
                return False
        if isinstance(other, Time) and other.unit is not TimeUnit.DURATION:
            return self._read(other.unit) == other.value
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def __lt__(self, other: TimeInput) -> bool:
        other = Time.from_input(other)
        return self._read(other.unit) < other.value

    def __le__(self, other: TimeInput) -> bool:
        other = Time.from_input(other)
        return self._read(other.unit) <= other.value

    def __gt__(self, other: TimeInput) -> bool:
        other = Time.from_input(other)
        return self._read(other.unit) > other.value

    def __ge__(self, other: TimeInput) -> bool:
        other = Time.from_input(other)
        return self._read(other.unit) >= other.value

    def __reduce__(self) -> tuple[object, ...]:
        slots = {name: getattr(self, name) for name in self.__slots__}
        return (_restore, (slots,))

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, f'_{name}')}" for name in _COUNTS]
        shown += [f"{name}={getattr(self, f'_{name}')}" for name in _CLOCKS]
        return f"Timestamp({', '.join(shown)})"


_new = object.__new__


def _restore(slots: Mapping[str, object]) -> Timestamp:
    """Rebuild a pickled timestamp, with what it knows of the step before."""
    new = _new(Timestamp)
    for name, value in slots.items():
        setattr(new, name, value)
    return new


def _count(name: str, value: object) -> int:
    """Return a count as an int that is not negative."""
    if isinstance(value, Time):
        if value.unit is not _COUNTS[name]:
            raise TimeUnitError(f"{name} is counted in {_COUNTS[name]}, but {value} was given.")
        value = value.value
    try:
        count = operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise TypeError(f"{name} is a whole number, but {value!r} was given.") from None
    if count < 0:
        raise ValueError(f"{name} cannot be negative, but {count} was given.")
    return count


def _clock(name: str, value: object) -> datetime.timedelta:
    """Return a wall-clock field as a timedelta that is not negative."""
    if value is None:
        return _ZERO
    if not isinstance(value, datetime.timedelta):
        raise TypeError(f"{name} is a timedelta, but {value!r} was given.")
    if value < _ZERO:
        raise ValueError(f"{name} cannot be negative, but {value} was given.")
    return value
