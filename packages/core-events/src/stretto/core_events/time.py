"""A point in, or a length of, training time: a value with its unit."""

from __future__ import annotations

import datetime
import math
import operator
import re
from typing import TypeAlias, overload

from stretto.core_events.errors import TimeStringError, TimeUnitError
from stretto.core_events.time_unit import TimeUnit

__all__ = ["Time", "TimeInput", "ensure_time"]

_NUMBER = r"[+-]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:e[+-]?\d+)?"
_PART = r"(\d+(?:\.\d+)?)"
_FLAGS = re.IGNORECASE | re.ASCII
_TIME_STRING = re.compile(rf"\s*({_NUMBER})\s*(iter|ep|ba|sp|tok|dur|sec)\s*", _FLAGS)
_CLOCK_STRING = re.compile(
    rf"\s*(?=\d)(?:{_PART}d)?(?:{_PART}h)?(?:{_PART}m)?(?:{_PART}s)?\s*", _FLAGS
)
_EXACT_FLOAT_LIMIT = 2**53
_REAL_UNITS = (TimeUnit.DURATION, TimeUnit.SECOND)
_FORMS = "'10ep', '1_000ba', '5e6tok', '0.5dur', '30sec' or '1h20m40s'"


class Time:
    """An amount of training time in one unit; immutable, hashable and exact.

    Two times of the same unit can be compared, added and subtracted; a time string stands for
    the time it spells. A bare number is refused where its unit would be a guess (``time + 1``,
    ``time < 10``) and scales where it cannot be (``time * 2``). ``time / time`` is a fraction,
    in ``dur``; ``time * Time(0.5, "dur")`` is half of it.

    Args:
        value: A whole number for ``iter``, ``ep``, ``ba``, ``sp`` and ``tok``; any finite number
            for ``dur`` (kept as float) and ``sec`` (kept as given).
        unit: A `TimeUnit` or its string.

    Raises:
        TimeStringError: The value does not fit the unit, or the unit does not exist.
    """

    __slots__ = ("_unit", "_value")

    _value: int | float
    _unit: TimeUnit

    def __init__(self, value: float, unit: TimeUnit | str) -> None:
        self._unit = unit if isinstance(unit, TimeUnit) else _read_unit(unit)
        self._value = _read_value(value, self._unit)

    @property
    def value(self) -> int | float:
        """The number: int for the counted units, float for ``dur``, either for ``sec``."""
        return self._value

    @property
    def unit(self) -> TimeUnit:
        """The unit."""
        return self._unit

    @classmethod
    def from_iteration(cls, iteration: int) -> Time:
        """Make a time in iterations."""
        return cls(iteration, TimeUnit.ITERATION)

    @classmethod
    def from_epoch(cls, epoch: int) -> Time:
        """Make a time in epochs."""
        return cls(epoch, TimeUnit.EPOCH)

    @classmethod
    def from_batch(cls, batch: int) -> Time:
        """Make a time in batches."""
        return cls(batch, TimeUnit.BATCH)

    @classmethod
    def from_sample(cls, sample: int) -> Time:
        """Make a time in samples."""
        return cls(sample, TimeUnit.SAMPLE)

    @classmethod
    def from_token(cls, token: int) -> Time:
        """Make a time in tokens."""
        return cls(token, TimeUnit.TOKEN)

    @classmethod
    def from_duration(cls, duration: float) -> Time:
        """Make a fraction of the whole run."""
        return cls(duration, TimeUnit.DURATION)

    @classmethod
    def from_timedelta(cls, timestring: str | datetime.timedelta) -> Time:
        """Make a time in seconds from a `timedelta` or a clock string such as ``"1h20m40s"``.

        Raises:
            TimeStringError: The string is not of that form.
        """
        if isinstance(timestring, datetime.timedelta):
            return cls(_seconds(timestring), TimeUnit.SECOND)
        match = _CLOCK_STRING.fullmatch(timestring)
        if match is None:
            raise TimeStringError(
                f"{timestring!r} is not a clock time. Write days, hours, minutes and seconds in "
                "that order, like '1h20m40s' or '90s'."
            )
        parts = [float(part or 0) for part in match.groups()]
        try:
            duration = datetime.timedelta(
                days=parts[0], hours=parts[1], minutes=parts[2], seconds=parts[3]
            )
        except OverflowError:
            raise TimeStringError(
                f"{timestring!r} is longer than any timedelta. Write seconds, like '1e20sec'."
            ) from None
        return cls.from_timedelta(duration)

    @classmethod
    def from_timestring(cls, timestring: str) -> Time:
        """Read a time string: a number and a unit (``"10ep"``), or a clock time (``"1h20m40s"``).

        Case does not matter, underscores may group digits. Whole numbers are read exactly, of
        any size.

        Raises:
            TimeStringError: The string is not a time, or its value does not fit its unit.
        """
        match = _TIME_STRING.fullmatch(timestring)
        if match is not None:
            try:
                unit = _read_unit(match[2])
                return cls(_read_number(match[1], unit), unit)
            except ValueError as error:
                raise TimeStringError(f"{timestring!r} is not a time: {error}") from None
        if _CLOCK_STRING.fullmatch(timestring) is not None:
            return cls.from_timedelta(timestring)
        raise TimeStringError(f"{timestring!r} is not a time. Write {_FORMS}.")

    @classmethod
    def from_input(cls, i: TimeInput, default_int_unit: TimeUnit | str | None = None) -> Time:
        """Read a time from anything that spells one.

        Args:
            i: A `Time`, a time string, a `timedelta`, or a whole number.
            default_int_unit: The unit of a bare number; without it a number is refused.

        Raises:
            TimeStringError: A string that is no time.
            TimeUnitError: A bare number without a default unit.
            TypeError: Anything else.
        """
        if isinstance(i, Time):
            return i
        if isinstance(i, str):
            return cls.from_timestring(i)
        if isinstance(i, datetime.timedelta):
            return cls.from_timedelta(i)
        if isinstance(i, bool) or not hasattr(i, "__index__"):
            raise TypeError(
                f"{i!r} ({type(i).__name__}) is not a time. Give a Time, a string ({_FORMS}), a "
                "timedelta or a whole number."
            )
        if default_int_unit is None:
            raise TimeUnitError(f"the number {i} has no unit here. Write it as {i}ba, {i}ep, …")
        return cls(i, default_int_unit)

    def to_timestring(self) -> str:
        """Spell this time so that `from_timestring` reads the equal one."""
        return f"{self._value}{self._unit.value}"

    def __str__(self) -> str:
        return self.to_timestring()

    def __repr__(self) -> str:
        return f"Time({self._value!r}, {self._unit!s})"

    def __hash__(self) -> int:
        return hash((self._value, self._unit))

    def __reduce__(self) -> tuple[type[Time], tuple[int | float, str]]:
        return (Time, (self._value, self._unit.value))

    def __copy__(self) -> Time:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Time:
        return self

    def __int__(self) -> int:
        return int(self._value)

    def __float__(self) -> float:
        return float(self._value)

    def __bool__(self) -> bool:
        return self._value != 0

    def _other(self, other: object, action: str) -> int | float:
        """Return the value of `other`, which must spell a time in this unit."""
        if isinstance(other, bool | int | float):
            raise TimeUnitError(
                f"cannot {action} {self} and the bare number {other}: its unit is missing. "
                f"Write '{other}{self._unit}'."
            )
        if not isinstance(other, Time):
            other = Time.from_input(other)  # pyright: ignore[reportArgumentType]
        if other._unit is not self._unit:
            raise TimeUnitError(f"cannot {action} {self} and {other}: their units differ.")
        return other._value

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str | datetime.timedelta):
            try:
                other = Time.from_input(other)
            except TimeStringError:
                return False
        if not isinstance(other, Time):
            return NotImplemented
        return self._unit is other._unit and self._value == other._value

    def __lt__(self, other: TimeInput) -> bool:
        return self._value < self._other(other, "compare")

    def __le__(self, other: TimeInput) -> bool:
        return self._value <= self._other(other, "compare")

    def __gt__(self, other: TimeInput) -> bool:
        return self._value > self._other(other, "compare")

    def __ge__(self, other: TimeInput) -> bool:
        return self._value >= self._other(other, "compare")

    def __add__(self, other: TimeInput) -> Time:
        return Time(self._value + self._other(other, "add"), self._unit)

    __radd__ = __add__

    def __sub__(self, other: TimeInput) -> Time:
        return Time(self._value - self._other(other, "subtract"), self._unit)

    def __rsub__(self, other: TimeInput) -> Time:
        return Time(self._other(other, "subtract") - self._value, self._unit)

    def __mod__(self, other: TimeInput) -> Time:
        return Time(self._value % self._other(other, "divide"), self._unit)

    def __floordiv__(self, other: TimeInput) -> int:
        return int(self._value // self._other(other, "divide"))

    def __neg__(self) -> Time:
        return Time(-self._value, self._unit)

    def __abs__(self) -> Time:
        return Time(abs(self._value), self._unit)

    def __mul__(self, other: TimeInput | float) -> Time:
        if isinstance(other, bool | int | float):
            return Time(_scale(self._value, other, self._unit), self._unit)
        if not isinstance(other, Time):
            other = Time.from_input(other)
        if other._unit is TimeUnit.DURATION:
            return Time(_scale(self._value, other._value, self._unit), self._unit)
        if self._unit is TimeUnit.DURATION:
            return Time(_scale(other._value, self._value, other._unit), other._unit)
        raise TimeUnitError(
            f"cannot multiply {self} by {other}: one of them must be a number or in dur."
        )

    __rmul__ = __mul__

    def __truediv__(self, other: TimeInput | float) -> Time:
        if isinstance(other, bool | int | float):
            if isinstance(self._value, int) and isinstance(other, int) and self._is_counted():
                return Time(math.trunc(_exact_quotient(self._value, other)), self._unit)
            return Time(_to_unit(self._value / other, self._unit), self._unit)
        return Time(self._value / self._other(other, "divide"), TimeUnit.DURATION)

    def _is_counted(self) -> bool:
        return self._unit not in _REAL_UNITS


TimeInput: TypeAlias = Time | str | datetime.timedelta | int
"""What `Time.from_input` and `ensure_time` read."""


@overload
def ensure_time(maybe_time: None, int_unit: TimeUnit | str = TimeUnit.EPOCH) -> None: ...
@overload
def ensure_time(maybe_time: TimeInput, int_unit: TimeUnit | str = TimeUnit.EPOCH) -> Time: ...
def ensure_time(
    maybe_time: TimeInput | None, int_unit: TimeUnit | str = TimeUnit.EPOCH
) -> Time | None:
    """Read a time from anything that spells one; a bare whole number is in `int_unit`.

    Args:
        maybe_time: A `Time`, a time string, a `timedelta`, a whole number, or None.
        int_unit: The unit of a bare number. Default: epochs.

    Returns:
        The time; None for None.

    Raises:
        TimeStringError: A string that is no time.
        TypeError: A value of another type.
    """
    return None if maybe_time is None else Time.from_input(maybe_time, int_unit)


def unchecked_time(value: int | float, unit: TimeUnit) -> Time:
    """Make a time from a value that is known to fit its unit; for code that runs at every step."""
    time = _new(Time)
    time._value = value  # pyright: ignore[reportPrivateUsage]
    time._unit = unit  # pyright: ignore[reportPrivateUsage]
    return time


_new = object.__new__


def _read_unit(unit: str) -> TimeUnit:
    try:
        return TimeUnit(unit)
    except ValueError:
        units = ", ".join(member.value for member in TimeUnit)
        raise TimeStringError(f"{unit!r} is not a unit of time. The units are {units}.") from None


def _read_number(digits: str, unit: TimeUnit) -> int | float:
    """Read digits with optional underscores, fraction and exponent; counts exactly."""
    try:
        return int(digits)
    except ValueError:
        pass
    number = float(digits)
    if unit in _REAL_UNITS or abs(number) < _EXACT_FLOAT_LIMIT or not math.isfinite(number):
        return number
    from decimal import Decimal  # only a huge count with a fraction or an exponent pays for it

    exact = Decimal(digits)
    return int(exact) if exact == exact.to_integral_value() else number


def _read_value(value: object, unit: TimeUnit) -> int | float:
    """Return the value as this unit keeps it, or say why it does not fit."""
    if isinstance(value, bool):
        raise TimeStringError(f"{value} is not a number of {unit}.")
    if isinstance(value, float):
        number: int | float = float(value)
    else:
        try:
            number = operator.index(value)  # pyright: ignore[reportArgumentType]
        except TypeError:
            raise TimeStringError(
                f"{value!r} ({type(value).__name__}) is not a number of {unit}."
            ) from None
    if isinstance(number, float) and not math.isfinite(number):
        raise TimeStringError(f"{number}{unit} is not finite. Give a finite number.")
    if unit is TimeUnit.DURATION:
        return float(number)
    if unit is TimeUnit.SECOND or isinstance(number, int):
        return number
    if not number.is_integer():
        raise TimeStringError(
            f"{number}{unit} is not whole, and {unit} is counted in whole numbers."
        )
    return int(number)


def _to_unit(number: float, unit: TimeUnit) -> int | float:
    """Round towards zero where the unit is counted."""
    if unit in _REAL_UNITS:
        return number
    return math.trunc(number)


def _exact_quotient(value: int, divisor: int) -> int:
    """Divide whole numbers exactly, rounding towards zero."""
    quotient = abs(value) // abs(divisor)
    return quotient if (value < 0) == (divisor < 0) else -quotient


def _scale(value: int | float, factor: float, unit: TimeUnit) -> int | float:
    """Multiply; whole-number units round towards zero and lose no precision at any size."""
    product = value * factor
    if isinstance(product, int) or abs(product) < _EXACT_FLOAT_LIMIT:
        return _to_unit(product, unit)
    if isinstance(value, int) and math.isfinite(factor):
        numerator, denominator = factor.as_integer_ratio()
        return _to_unit(_exact_quotient(value * numerator, denominator), unit)
    return _to_unit(product, unit)


def _seconds(duration: datetime.timedelta) -> int | float:
    """Return seconds, as int where they are whole."""
    if duration.microseconds == 0:
        return duration.days * 86_400 + duration.seconds
    return duration.total_seconds()
