from __future__ import annotations

import contextlib
import copy
import datetime
import pickle
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core_events import (
    Time,
    Timestamp,
    TimeStringError,
    TimeUnit,
    TimeUnitError,
    ensure_time,
)

COUNTED = ["iter", "ep", "ba", "sp", "tok"]
counted_units = st.sampled_from(COUNTED)
big = st.integers(min_value=-(2**70), max_value=2**70)
finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("10ep", 10, "ep"),
        ("1_000ba", 1000, "ba"),
        ("1_000_000TOK", 1_000_000, "tok"),
        ("0.5dur", 0.5, "dur"),
        ("1dur", 1.0, "dur"),
        (".25dur", 0.25, "dur"),
        ("2.0ba", 2, "ba"),
        ("1e3sp", 1000, "sp"),
        ("5e6tok", 5_000_000, "tok"),
        (" 3 iter ", 3, "iter"),
        ("-1ba", -1, "ba"),
        ("30sec", 30, "sec"),
        ("1.5sec", 1.5, "sec"),
        ("1h20m40s", 4840, "sec"),
        ("2H", 7200, "sec"),
        ("90s", 90, "sec"),
        ("1d", 86400, "sec"),
        ("9007199254740993tok", 2**53 + 1, "tok"),
        ("9007199254740993.0tok", 2**53 + 1, "tok"),
        ("9007199254740993e0tok", 2**53 + 1, "tok"),
        ("123456789012345678901234567890sp", 123456789012345678901234567890, "sp"),
    ],
)
def test_time_strings_are_read(text, value, unit):
    time = Time.from_timestring(text)
    assert (time.value, time.unit) == (value, TimeUnit(unit))
    assert type(time.value) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "", "ep", "10", "10 epochs", "ten ep", "1.5ba", "0.1ep", "1__0ba", "_1ba", "1ep2ba",
        "nandur", "infsec", "1e999sec", "1e-3ba", "20m1h", "h", "1h20m40", "1,000ba", "٣ba ",
        "0x10ba", "--1ba",
    ],
)  # fmt: skip
def test_what_is_no_time_string_is_refused_with_the_string_in_the_message(text):
    with pytest.raises(TimeStringError) as raised:
        Time.from_timestring(text)
    assert isinstance(raised.value, ValueError)
    assert repr(text) in str(raised.value)


@given(value=big, unit=counted_units)
def test_counted_times_survive_their_string_pickle_and_copies(value, unit):
    time = Time(value, unit)
    for other in (
        Time.from_timestring(str(time)),
        pickle.loads(pickle.dumps(time)),
        copy.copy(time),
        copy.deepcopy(time),
    ):
        assert other == time
        assert hash(other) == hash(time)
        assert type(other.value) is int
        assert other.value == value


@given(value=finite, unit=st.sampled_from(["dur", "sec"]))
def test_real_times_survive_their_string(value, unit):
    time = Time(value, unit)
    assert Time.from_timestring(time.to_timestring()) == time


@given(digits=st.integers(0, 10**30), groups=st.integers(1, 5), unit=counted_units)
def test_underscores_only_group_digits(digits, groups, unit):
    text = str(digits)
    grouped = "_".join(text[i : i + groups] for i in range(0, len(text), groups))
    assert Time.from_timestring(grouped + unit).value == digits


@given(a=big, b=big, unit=counted_units)
def test_arithmetic_and_order_are_those_of_whole_numbers(a, b, unit):
    left, right = Time(a, unit), Time(b, unit)
    assert (left + right).value == a + b
    assert (left - right).value == a - b
    assert (left + str(right)).value == a + b
    assert (str(left) - right).value == a - b
    assert (left < right, left <= right, left > right, left >= right) == (
        a < b,
        a <= b,
        a > b,
        a >= b,
    )
    assert (left == right) is (a == b)
    assert (left == str(right)) is (a == b)
    assert (left < str(right)) is (a < b)
    assert (-left).value == -a
    assert abs(left).value == abs(a)
    assert bool(left) is (a != 0)
    if b:
        assert (left % right).value == a % b
        assert left // right == a // b
        quotient = left / right
        assert quotient.unit is TimeUnit.DURATION
        assert quotient.value == a / b


@given(value=big, factor=st.integers(-(2**60), 2**60), unit=counted_units)
def test_scaling_by_whole_numbers_is_exact(value, factor, unit):
    assert (Time(value, unit) * factor).value == value * factor
    assert (factor * Time(value, unit)).value == value * factor
    if factor:
        exact = Fraction(value, factor)
        towards_zero = abs(exact.numerator) // exact.denominator
        assert (Time(value, unit) / factor).value == (towards_zero if exact > 0 else -towards_zero)


@given(value=st.integers(2**53, 2**80), share=st.floats(0.25, 1.0))
def test_a_share_of_a_huge_count_loses_nothing(value, share):
    exact = Fraction(share) * value
    assert (Time(value, "tok") * share).value in (int(exact), int(value * share))
    if value * share >= 2**53:
        assert (Time(value, "tok") * share).value == int(exact)


def test_a_share_of_a_time_is_rounded_towards_zero_in_its_unit():
    assert Time(10, "ba") * 0.5 == "5ba"
    assert Time(10, "ba") * Time(0.7, "dur") == "7ba"
    assert Time(0.25, "dur") * Time(7, "ep") == "1ep"
    assert Time(10, "ba") * "0.5dur" == "5ba"
    assert Time(7, "ba") / 2 == "3ba"
    assert Time(10, "ba") / 2.5 == "4ba"
    assert Time(3, "sec") / 2 == Time(1.5, "sec")
    with pytest.raises(TimeUnitError, match="3ba by 2ba"):
        Time(3, "ba") * Time(2, "ba")


def test_two_to_the_53_and_beyond_is_exact():
    assert Time(2**53 + 1, "tok") > Time(2**53, "tok")
    assert Time(2**53, "tok") + "1tok" == Time(2**53 + 1, "tok")
    assert Timestamp(token=2**53 + 1) > "9007199254740992tok"
    assert Timestamp(token=2**53).to_next_batch(tokens=1).token_count == 2**53 + 1


@pytest.mark.parametrize(
    "act",
    [
        lambda: Time(1, "ba") < Time(1, "ep"),
        lambda: Time(1, "ba") + "1ep",
        lambda: Time(1, "ba") - "1ep",
        lambda: Time(1, "ba") / "1ep",
        lambda: Time(1, "ba") >= "1ep",
        lambda: Time(1, "ba") + 1,
        lambda: 1 + Time(1, "ba"),
        lambda: Time(1, "ba") < 2,
        lambda: Time(1, "ba") % 2,
        lambda: Time.from_input(3),
        lambda: Timestamp() < 3,
    ],
)
def test_a_guess_at_a_unit_is_refused(act):
    with pytest.raises(TimeUnitError):
        act()


def test_equality_never_raises():
    assert Time(1, "ba") != Time(1, "ep")
    assert Time(1, "ba") != 1
    assert Time(1, "ba") != "one batch"
    assert Time(1, "ba") != None  # noqa: E711
    assert Time(60, "sec") == datetime.timedelta(minutes=1)
    assert Time(60, "sec") == "1m"
    assert len({Time(1, "ba"), Time(1, "ba"), Time(1, "ep")}) == 2


@pytest.mark.parametrize(
    ("value", "unit"),
    [(1.5, "ba"), (True, "ba"), ("1", "ba"), (None, "ep"), (float("nan"), "dur"),
     (float("inf"), "sec"), (1, "epochs"), (1, 3)],
)  # fmt: skip
def test_a_value_that_does_not_fit_its_unit_is_refused(value, unit):
    with pytest.raises(ValueError, match=r".+"):
        Time(value, unit)


def test_a_time_cannot_be_changed():
    time = Time(1, "ba")
    for name in ("value", "unit", "other"):
        with pytest.raises(AttributeError):
            setattr(time, name, 2)


A_LIFETIME = datetime.timedelta(days=90_000)  # beyond 270 years a float drops microseconds


@given(st.timedeltas(min_value=-A_LIFETIME, max_value=A_LIFETIME))
def test_a_timedelta_keeps_its_seconds(duration):
    time = Time.from_input(duration)
    assert time.unit is TimeUnit.SECOND
    assert datetime.timedelta(seconds=time.value) == duration
    assert (type(time.value) is int) is (duration.microseconds == 0)


def test_every_way_to_spell_a_time():
    assert Time.from_iteration(1) == "1iter"
    assert Time.from_epoch(2) == "2ep"
    assert Time.from_batch(3) == "3ba"
    assert Time.from_sample(4) == "4sp"
    assert Time.from_token(5) == "5tok"
    assert Time.from_duration(0.5) == "0.5dur"
    assert Time.from_timedelta("1h") == "3600sec"
    assert Time.from_timedelta(datetime.timedelta(hours=1)) == "3600sec"
    assert ensure_time(3) == "3ep"
    assert ensure_time(3, "ba") == "3ba"
    assert ensure_time("3sp", TimeUnit.BATCH) == "3sp"
    assert ensure_time(Time(1, "tok")) == "1tok"
    assert ensure_time(None) is None
    assert repr(Time(1, "ba")) == "Time(1, ba)"
    assert int(Time(3, "ba")) == 3
    assert float(Time(3, "ba")) == 3.0
    for bad in (1.5, True, [], object()):
        with pytest.raises(TypeError):
            ensure_time(bad)


@pytest.mark.parametrize("unit", list(TimeUnit))
def test_units_are_found_in_any_case_and_by_name(unit):
    for spelling in (unit.value.upper(), unit.name, unit.name.lower(), unit.value):
        assert TimeUnit(spelling) is unit
    assert pickle.loads(pickle.dumps(unit)) is unit


@given(st.text("0123456789._+- eEdhmspbatokiturc", max_size=12))
def test_any_string_is_a_time_that_spells_itself_or_a_time_string_error(text):
    with contextlib.suppress(TimeStringError):
        time = Time.from_timestring(text)
        assert Time.from_timestring(time.to_timestring()) == time


@pytest.mark.parametrize(
    "text", ["999999999999d", "9" * 400 + "h", "9" * 5000 + "ep", "1e999999tok"]
)
def test_a_time_beyond_all_bounds_is_refused_as_one(text):
    with pytest.raises(TimeStringError):
        Time.from_timestring(text)
