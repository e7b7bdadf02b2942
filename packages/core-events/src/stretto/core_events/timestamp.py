"""How far a run has come, counted in every unit at once."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from stretto.core_events.errors import TimeUnitError
from stretto.core_events.readings import CLOCKS, COUNTS, ZERO, Readings, read_count
from stretto.core_events.time import Time, TimeInput, unchecked_time
from stretto.core_events.time_unit import TimeUnit

__all__ = ["Timestamp"]


class Timestamp(Readings):
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

    __slots__ = ()

    def get(self, unit: TimeUnit | str) -> Time:
        """Return the progress in one unit; seconds are the total wall-clock time.

        Raises:
            TimeUnitError: `unit` is ``dur``, which only the state can tell, since it knows the end.
        """
        if type(unit) is not TimeUnit:
            unit = TimeUnit(unit)
        return unchecked_time(self.read(unit), unit)

    def read(self, unit: TimeUnit) -> int | float:
        """Return the progress in one unit as a plain number; see `get`.

        Raises:
            TimeUnitError: `unit` is ``dur``.
        """
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
            samples = read_count("sample", samples)
        if type(tokens) is not int or tokens < 0:
            tokens = read_count("token", tokens)
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
        if duration is None or duration < ZERO:
            new._batch_wct = ZERO
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
        new._epoch_wct = new._batch_wct = ZERO
        if duration is not None and duration > ZERO:
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
        new._iteration_wct = new._batch_wct = ZERO
        if duration is not None and duration > ZERO:
            new._total_wct += duration
            new._epoch_wct += duration
        return new

    @property
    def batch_moment(self) -> tuple[int, datetime.timedelta]:
        """What tells one completed batch from another: its number and when it was done.

        It stays the same through the events that follow a batch, and through `to_next_epoch`.
        """
        return self._batch, self._wct_at_batch

    @property
    def clock_step(self) -> tuple[datetime.timedelta, datetime.timedelta]:
        """The total wall-clock time at the end of the batch before the last, and of the last.

        Time spent between batches belongs to the batch after it.
        """
        return self._previous_wct, self._wct_at_batch

    def step_in(self, unit: TimeUnit) -> tuple[int, int]:
        """Return the progress in a counted unit before and after the last batch.

        Right after loading, and before the first batch, both are the same, but for ``ba``.

        Raises:
            TimeUnitError: A batch does not move a run on by whole units of this kind.
        """
        if unit is TimeUnit.BATCH:
            return max(0, self._batch - 1), self._batch
        if unit is TimeUnit.SAMPLE:
            return self._previous_sample, self._sample
        if unit is TimeUnit.TOKEN:
            return self._previous_token, self._token
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
        values: dict[str, object] = {name: getattr(self, f"_{name}") for name in COUNTS}
        values |= {name: getattr(self, f"_{name}") for name in CLOCKS}
        for name in changes:
            if name not in values:
                raise TypeError(
                    f"{name!r} is no field of a timestamp. Fields: {', '.join(values)}."
                )
        return Timestamp(**{**values, **changes})  # pyright: ignore[reportArgumentType]

    def state_dict(self) -> dict[str, int | float]:
        """Return the fields as plain numbers: counts as int, wall-clock times in seconds."""
        counts: dict[str, int | float] = {name: getattr(self, f"_{name}") for name in COUNTS}
        clocks = {name: getattr(self, f"_{name}").total_seconds() for name in CLOCKS}
        return counts | clocks | {_WCT_AT_BATCH: self._wct_at_batch.total_seconds()}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, object]) -> Timestamp:
        """Make a timestamp from `state_dict`; what is missing is 0, what is unknown ignored.

        Wall-clock fields may be seconds or `timedelta`; counts may be ints or `Time`.

        Raises:
            ValueError: A field is negative.
            TypeError: A field has the wrong type.
        """
        values: dict[str, object] = {name: state[name] for name in COUNTS if name in state}
        values |= {name: _as_timedelta(state.get(name)) for name in CLOCKS}
        new = cls(**values)  # pyright: ignore[reportArgumentType]
        at_batch = _as_timedelta(state.get(_WCT_AT_BATCH))
        if isinstance(at_batch, datetime.timedelta):
            new._wct_at_batch = new._previous_wct = min(at_batch, new._total_wct)
        return new

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, f"_{name}") for name in (*COUNTS, *CLOCKS))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Timestamp):
            return self._fields() == other._fields()
        if isinstance(other, str):
            try:
                other = Time.from_timestring(other)
            except ValueError:
                return False
        if isinstance(other, Time) and other.unit is not TimeUnit.DURATION:
            return self.read(other.unit) == other.value
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def __lt__(self, other: TimeInput) -> bool:
        if not isinstance(other, Time):
            other = Time.from_input(other)
        return self.read(other.unit) < other.value

    def __le__(self, other: TimeInput) -> bool:
        if not isinstance(other, Time):
            other = Time.from_input(other)
        return self.read(other.unit) <= other.value

    def __gt__(self, other: TimeInput) -> bool:
        if not isinstance(other, Time):
            other = Time.from_input(other)
        return self.read(other.unit) > other.value

    def __ge__(self, other: TimeInput) -> bool:
        if not isinstance(other, Time):
            other = Time.from_input(other)
        return self.read(other.unit) >= other.value

    def __reduce__(self) -> tuple[object, ...]:
        slots = {name: getattr(self, name) for name in Readings.__slots__}
        return (_restore, (slots,))

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, f'_{name}')}" for name in COUNTS]
        shown += [f"{name}={getattr(self, f'_{name}')}" for name in CLOCKS]
        return f"Timestamp({', '.join(shown)})"


_new = object.__new__
_WCT_AT_BATCH = "wct_at_batch"
"""In a state dict: the total wall-clock time when the last batch was done, so that an interval in
seconds misses nothing that passed between that batch and the checkpoint."""


def _as_timedelta(seconds: object) -> object:
    """Turn a number of seconds into a timedelta, and leave the rest as it is."""
    if isinstance(seconds, int | float):
        return datetime.timedelta(seconds=seconds)
    return seconds


def _restore(slots: Mapping[str, object]) -> Timestamp:
    """Rebuild a pickled timestamp, with what it knows of the step before."""
    new = _new(Timestamp)
    for name, value in slots.items():
        setattr(new, name, value)
    return new
