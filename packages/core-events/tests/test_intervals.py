from __future__ import annotations

import datetime
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core_events import (
    Event,
    Time,
    Timestamp,
    TimeStringError,
    UnknownLengthError,
    create_interval_scheduler,
)
from stretto.core_events.testing import ScriptedState

CHECKPOINTS = (Event.BATCH_CHECKPOINT, Event.EPOCH_CHECKPOINT)
ENDS = (Event.BATCH_END, Event.EPOCH_END)


def run(state, schedulers, *, batches, sizes=(1,), seconds=(0,), resume_at=None, make=None):
    """Train like a loop does; return, for each scheduler, after which batches it fired.

    With `resume_at`, after that many batches everything is made anew from a state dict, as after
    a restart.
    """
    fired = [[] for _ in schedulers]
    events = []

    def ask(event):
        for hits, scheduler in zip(fired, schedulers, strict=True):
            if scheduler(state, event):
                hits.append(state.timestamp.batch_count)
                events.append(event)

    for index in range(batches):
        if index == resume_at:
            state.timestamp = Timestamp.from_state_dict(state.timestamp.state_dict())
            schedulers = make()
        size = sizes[index % len(sizes)]
        duration = datetime.timedelta(seconds=seconds[index % len(seconds)])
        state.timestamp = state.timestamp.to_next_batch(size, 3 * size, duration)
        for event in (Event.BATCH_END, Event.BATCH_CHECKPOINT):
            ask(event)
        if state.dataloader_len and state.timestamp.batch_in_epoch_count == state.dataloader_len:
            state.timestamp = state.timestamp.to_next_epoch(duration)
            for event in (Event.EPOCH_END, Event.EPOCH_CHECKPOINT):
                ask(event)
        if state.max_duration is not None and state.timestamp >= state.max_duration:
            break
    ask(Event.FIT_END)
    return fired, events


def multiples_between(before, now, every):
    """The slow model: is there a whole k with before < k * every <= now? Counting them up."""
    k, every = 0, Fraction(every)
    while k * every <= now:
        if k * every > before:
            return True
        k += 1
    return False


@given(
    every=st.integers(1, 7),
    unit=st.sampled_from(["ba", "sp", "tok", "sec", "ep"]),
    length=st.integers(1, 5),
    batches=st.integers(1, 20),
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    end=st.booleans(),
    checkpoint=st.booleans(),
    resume_at=st.one_of(st.none(), st.integers(1, 19)),
)
def test_intervals_fire_like_a_model_that_counts_the_thresholds(
    every, unit, length, batches, sizes, end, checkpoint, resume_at
):
    state = ScriptedState(max_duration=f"{batches}ba", dataloader_len=length)

    def make():
        return [create_interval_scheduler(f"{every}{unit}", end, checkpoint)]

    (fired,), events = run(
        state,
        make(),
        batches=batches,
        sizes=sizes,
        seconds=sizes,
        resume_at=resume_at,
        make=make,
    )
    expected, sample, clock, seen_clock = [], 0, 0, 0
    for batch in range(1, batches + 1):
        size = sizes[(batch - 1) % len(sizes)]
        before = {"ba": batch - 1, "sp": sample, "tok": 3 * sample, "sec": seen_clock}
        sample, clock = sample + size, clock + size
        seen_clock = clock
        now = {"ba": batch, "sp": sample, "tok": 3 * sample, "sec": clock}
        epoch_ends = batch % length == 0
        if epoch_ends:
            clock += size  # the step to the next epoch took time too, which the next batch counts
        if unit == "ep":
            due = epoch_ends and (batch // length) % every == 0
        else:
            due = multiples_between(before[unit], now[unit], every)
        if due or (end and batch == batches):
            expected.append(batch)
    assert fired == expected
    assert set(events) <= set(CHECKPOINTS if checkpoint else ENDS)


@given(
    denominator=st.integers(1, 12),
    decimal=st.sampled_from([None, "0.1", "0.3", "0.25", "0.07", "0.33", "1.0"]),
    unit=st.sampled_from(["ba", "sp", "tok", "sec", "ep"]),
    length=st.integers(1, 5),
    epochs=st.integers(1, 4),
)
def test_fractions_of_the_run_are_exact(denominator, decimal, unit, length, epochs):
    every = Fraction(repr(1 / denominator)) if decimal is None else Fraction(decimal)
    batches = length * epochs
    whole = {"ep": epochs, "tok": 3 * batches}.get(unit, batches)
    state = ScriptedState(max_duration=f"{whole}{unit}", dataloader_len=length)
    seconds = (1,)
    scheduler = create_interval_scheduler(f"{float(every)}dur", include_end_of_training=False)
    fired = []
    for batch in range(1, batches + 1):
        state.timestamp = state.timestamp.to_next_batch(
            1, 3, datetime.timedelta(seconds=seconds[0])
        )
        if scheduler(state, Event.BATCH_CHECKPOINT):
            fired.append(batch)
        if batch % length == 0:
            state.timestamp = state.timestamp.to_next_epoch()
            assert not scheduler(state, Event.EPOCH_CHECKPOINT)
    assert fired == [
        batch
        for batch in range(1, batches + 1)
        if multiples_between(Fraction(batch - 1, batches), Fraction(batch, batches), every)
    ]


def test_a_tenth_of_a_second_is_a_tenth():
    state = ScriptedState(seconds_per_batch=0.1, max_duration=None)
    scheduler = create_interval_scheduler("0.3sec")
    fired = []
    for _ in range(12):
        state.step()
        if scheduler(state, Event.BATCH_CHECKPOINT):
            fired.append(state.timestamp.batch_count)
    assert fired == [3, 6, 9, 12]


def test_the_end_of_training_fires_once_wherever_it_comes():
    for max_duration, batches in [("2ep", 6), ("6ba", 6), ("5ba", 5), ("6sp", 6)]:
        for interval in ("1ep", "2ep", "2ba", "4ba", "100tok", "0.4dur"):
            state = ScriptedState(max_duration=max_duration, dataloader_len=3)
            (fired,), _ = run(state, [create_interval_scheduler(interval)], batches=20)
            assert fired[-1] == batches, (max_duration, interval)
            assert len(set(fired)) == len(fired), (max_duration, interval)


def test_with_the_end_at_fit_end_it_fires_there_unless_it_just_did():
    state = ScriptedState(max_duration="5ba", dataloader_len=3)
    schedulers = [
        create_interval_scheduler(interval, final_events={Event.FIT_END}, checkpoint_events=False)
        for interval in ("2ba", "5ba")
    ]
    (two, five), events = run(state, schedulers, batches=20)
    assert (two, five) == ([2, 4, 5], [5])
    assert events.count(Event.FIT_END) == 1


@pytest.mark.parametrize("interval", [0, -1, "0ba", "-3ep"])
def test_zero_and_less_never_fire(interval):
    state = ScriptedState(max_duration="4ba", dataloader_len=2)
    (fired,), _ = run(state, [create_interval_scheduler(interval)], batches=4)
    assert fired == []


def test_a_bare_number_is_epochs_and_a_function_stays_itself():
    state = ScriptedState(max_duration="4ep", dataloader_len=2)
    (fired,), _ = run(state, [create_interval_scheduler(2)], batches=8)
    assert fired == [4, 8]
    (timed,), _ = run(
        ScriptedState(max_duration="4ep", dataloader_len=2),
        [create_interval_scheduler(Time(2, "ep"))],
        batches=8,
    )
    assert timed == fired

    def always(state, event):
        return True

    assert create_interval_scheduler(always) is always


def test_what_is_no_time_is_refused_at_construction():
    with pytest.raises(TimeStringError, match="often"):
        create_interval_scheduler("often")
    with pytest.raises(TypeError):
        create_interval_scheduler(1.5)


def test_iterations_are_looked_at_when_they_end():
    state = ScriptedState(max_duration=None)
    scheduler = create_interval_scheduler("2iter")
    fired = []
    for _ in range(5):
        state.step()
        assert not scheduler(state, Event.BATCH_CHECKPOINT)
        state.timestamp = state.timestamp.to_next_iteration()
        fired.append(scheduler(state, Event.ITERATION_CHECKPOINT))
    assert fired == [False, True, False, True, False]


def test_an_epoch_cut_short_is_no_epoch():
    state = ScriptedState(max_duration="2ba", dataloader_len=3)
    scheduler = create_interval_scheduler("1ep", include_end_of_training=False)
    state.step(2)
    assert not scheduler(state, Event.EPOCH_CHECKPOINT)


def test_a_fraction_needs_a_length_and_says_so():
    scheduler = create_interval_scheduler("0.5dur")
    state = ScriptedState(max_duration=None)
    state.step()
    with pytest.raises(ValueError, match="max_duration"):
        scheduler(state, Event.BATCH_CHECKPOINT)
    state = ScriptedState(max_duration="2ep", dataloader_len=None)
    state.step()
    with pytest.raises(UnknownLengthError, match="ba, sp, tok or sec"):
        scheduler(state, Event.BATCH_CHECKPOINT)


def test_nothing_fires_before_the_first_batch():
    state = ScriptedState(max_duration="4ba")
    for interval in ("1ba", "1sp", "1tok", "1sec", "0.1dur", "1ep", "1iter"):
        for event in Event:
            if event is not Event.FIT_END:
                assert not create_interval_scheduler(interval)(state, event)


def test_stopping_early_is_an_end_too():
    state = ScriptedState(max_duration="100ba")
    scheduler = create_interval_scheduler("10ba")
    state.step(3)
    assert not scheduler(state, Event.BATCH_CHECKPOINT)
    state.stop_training()
    assert scheduler(state, Event.BATCH_CHECKPOINT)
    assert not scheduler(state, Event.EPOCH_CHECKPOINT)
