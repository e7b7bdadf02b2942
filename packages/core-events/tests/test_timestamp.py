from __future__ import annotations

import copy
import datetime
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core_events import Time, Timestamp, TimeUnit, TimeUnitError

COUNTS = {
    "iteration": "iter", "epoch": "ep", "batch": "ba", "sample": "sp", "token": "tok",
    "epoch_in_iteration": "ep", "token_in_iteration": "tok", "batch_in_epoch": "ba",
    "sample_in_epoch": "sp", "token_in_epoch": "tok",
}  # fmt: skip
CLOCKS = ["total_wct", "iteration_wct", "epoch_wct", "batch_wct"]
ZERO = datetime.timedelta()

durations = st.one_of(
    st.none(),
    st.timedeltas(min_value=datetime.timedelta(days=-1), max_value=datetime.timedelta(days=30)),
)
counts = st.integers(0, 2**60)
clocks = st.timedeltas(min_value=ZERO, max_value=datetime.timedelta(days=40_000))
timestamps = st.builds(Timestamp, **dict.fromkeys(COUNTS, counts), **dict.fromkeys(CLOCKS, clocks))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 2**55), st.integers(0, 2**55), durations),
        st.tuples(st.just("epoch"), durations),
        st.tuples(st.just("iteration"), durations),
    ),
    max_size=30,
)


def values(timestamp: Timestamp) -> dict[str, object]:
    result: dict[str, object] = {n: getattr(timestamp, n).value for n in COUNTS}
    return result | {n: getattr(timestamp, n) for n in CLOCKS}


def model(steps) -> dict[str, object]:
    """The slow and obvious model: dictionaries, one rule a line."""
    now: dict[str, object] = dict.fromkeys(COUNTS, 0) | dict.fromkeys(CLOCKS, ZERO)
    for kind, *details in steps:
        duration = max(details[-1] or ZERO, ZERO)
        if kind == "batch":
            for name in ("batch", "batch_in_epoch"):
                now[name] += 1
            for name in ("sample", "sample_in_epoch"):
                now[name] += details[0]
            for name in ("token", "token_in_epoch", "token_in_iteration"):
                now[name] += details[1]
            for name in ("total_wct", "iteration_wct", "epoch_wct"):
                now[name] += duration
            now["batch_wct"] = duration
        elif kind == "epoch":
            now["epoch"] += 1
            now["epoch_in_iteration"] += 1
            for name in ("batch_in_epoch", "sample_in_epoch", "token_in_epoch"):
                now[name] = 0
            now["total_wct"] += duration
            now["iteration_wct"] += duration
            now["epoch_wct"] = now["batch_wct"] = ZERO
        else:
            now["iteration"] += 1
            now["epoch_in_iteration"] = now["token_in_iteration"] = 0
            now["total_wct"] += duration
            now["epoch_wct"] += duration
            now["iteration_wct"] = now["batch_wct"] = ZERO
    return now


def walk(steps, timestamp: Timestamp | None = None) -> Timestamp:
    timestamp = timestamp or Timestamp()
    for kind, *details in steps:
        timestamp = getattr(timestamp, f"to_next_{kind}")(*details)
    return timestamp


@given(steps)
def test_steps_count_like_the_obvious_model(steps):
    assert values(walk(steps)) == model(steps)


@given(steps)
def test_wall_clocks_never_go_back_whatever_the_system_clock_does(steps):
    timestamp, total = Timestamp(), ZERO
    for step in steps:
        timestamp = walk([step], timestamp)
        assert timestamp.total_wct >= total
        assert min(getattr(timestamp, name) for name in CLOCKS) >= ZERO
        total = timestamp.total_wct


@given(timestamps)
def test_a_state_dict_brings_back_the_same_timestamp(timestamp):
    state = timestamp.state_dict()
    assert all(type(v) in (int, float) for v in state.values())
    assert set(state) == {*COUNTS, *CLOCKS, "wct_at_batch"}
    assert Timestamp.from_state_dict(state) == timestamp


@given(timestamps, st.sets(st.sampled_from([*COUNTS, *CLOCKS])))
def test_a_state_dict_that_lacks_fields_loads_with_zeros(timestamp, missing):
    state = {k: v for k, v in timestamp.state_dict().items() if k not in missing}
    loaded = values(Timestamp.from_state_dict({**state, "of_the_future": 3}))
    for name, value in values(timestamp).items():
        expected = value if name not in missing else (ZERO if name in CLOCKS else 0)
        assert loaded[name] == expected


def test_a_state_dict_of_times_and_timedeltas_loads_too():
    state = {"batch": Time(3, "ba"), "total_wct": datetime.timedelta(seconds=5)}
    loaded = Timestamp.from_state_dict(state)
    assert (loaded.batch_count, loaded.total_wct) == (3, datetime.timedelta(seconds=5))


@given(steps)
def test_copies_and_pickles_are_equal_and_step_on_alike(steps):
    timestamp = walk(steps)
    for other in (
        pickle.loads(pickle.dumps(timestamp)),
        copy.copy(timestamp),
        copy.deepcopy(timestamp),
    ):
        assert other == timestamp
        assert hash(other) == hash(timestamp)
        assert other.step_in(TimeUnit.SAMPLE) == timestamp.step_in(TimeUnit.SAMPLE)
        assert other.to_next_batch(3, 4) == timestamp.to_next_batch(3, 4)


@given(timestamps, st.sampled_from(["iter", "ep", "ba", "sp", "tok"]), st.integers(0, 2**60))
def test_comparison_with_a_time_is_comparison_in_its_unit(timestamp, unit, value):
    have = timestamp.get(unit).value
    for other in (Time(value, unit), f"{value}{unit}"):
        assert (timestamp < other) is (have < value)
        assert (timestamp <= other) is (have <= value)
        assert (timestamp > other) is (have > value)
        assert (timestamp >= other) is (have >= value)
        assert (timestamp == other) is (have == value)


def test_seconds_are_the_total_wall_clock_time():
    timestamp = Timestamp(total_wct=datetime.timedelta(seconds=90))
    assert timestamp.get("sec") == "90sec"
    assert timestamp >= "1m30s"
    assert timestamp < "1h"
    assert timestamp < datetime.timedelta(hours=1)


def test_counts_and_times_say_the_same():
    timestamp = Timestamp(**{name: i + 1 for i, name in enumerate(COUNTS)})
    for index, (name, unit) in enumerate(COUNTS.items()):
        assert getattr(timestamp, f"{name}_count") == index + 1
        assert getattr(timestamp, name) == Time(index + 1, unit)
    assert "batch=3" in repr(timestamp)


def test_a_timestamp_cannot_be_changed():
    timestamp = Timestamp()
    for name in (*COUNTS, *CLOCKS, "batch_count", "other"):
        with pytest.raises(AttributeError):
            setattr(timestamp, name, 1)


def test_copy_changes_only_what_is_named():
    timestamp = Timestamp(epoch=1, batch=5, total_wct=datetime.timedelta(seconds=9))
    changed = timestamp.copy(batch=Time(6, "ba"), epoch_wct=datetime.timedelta(seconds=1))
    assert values(changed) == {
        **values(timestamp),
        "batch": 6,
        "epoch_wct": datetime.timedelta(seconds=1),
    }
    with pytest.raises(TypeError, match="batches"):
        timestamp.copy(batches=1)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda: Timestamp(batch=-1), ValueError),
        (lambda: Timestamp(batch=1.5), TypeError),
        (lambda: Timestamp(batch="1ba"), TypeError),
        (lambda: Timestamp(batch=Time(1, "ep")), TimeUnitError),
        (lambda: Timestamp(total_wct=3.0), TypeError),
        (lambda: Timestamp(total_wct=datetime.timedelta(seconds=-1)), ValueError),
        (lambda: Timestamp().to_next_batch(samples=-1), ValueError),
        (lambda: Timestamp().to_next_batch(tokens=0.5), TypeError),
        (lambda: Timestamp().to_next_batch(samples=Time(1, "tok")), TimeUnitError),
        (lambda: Timestamp().get("dur"), TimeUnitError),
        (lambda: Timestamp() < "0.5dur", TimeUnitError),
    ],
)
def test_what_does_not_fit_a_field_is_refused(act, error):
    with pytest.raises(error):
        act()


def test_times_may_be_given_for_counts():
    assert Timestamp(batch=Time(2, "ba")).to_next_batch(Time(8, "sp"), Time(9, "tok")) == Timestamp(
        batch=3, batch_in_epoch=1, sample=8, sample_in_epoch=8, token=9, token_in_epoch=9,
        token_in_iteration=9,
    )  # fmt: skip


def test_the_step_before_is_known_across_an_epoch_and_after_loading():
    second = datetime.timedelta(seconds=1)
    timestamp = Timestamp().to_next_batch(4, 10, second).to_next_epoch(second)
    assert timestamp.step_in(TimeUnit.SAMPLE) == (0, 4)
    after = timestamp.to_next_batch(5, 7, second)
    assert after.step_in(TimeUnit.SAMPLE) == (4, 9)
    assert after.step_in(TimeUnit.TOKEN) == (10, 17)
    assert after.clock_step == (second, 3 * second)
    loaded = Timestamp.from_state_dict(after.state_dict())
    assert loaded.step_in(TimeUnit.TOKEN) == (17, 17)
    assert loaded.to_next_batch(1, 3).step_in(TimeUnit.TOKEN) == (17, 20)
    assert after.before_last_batch().batch_in_epoch_count == 0
    assert after.before_last_batch().token_in_iteration_count == 10
