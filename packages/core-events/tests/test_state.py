from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core_events import State, Time, Timestamp, TimeUnit, UnknownLengthError
from stretto.core_events.testing import ScriptedState


def test_a_state_starts_with_what_it_is_given():
    state = State(run_name="a", rank_zero_seed=3, max_duration=2, dataloader_len=5)
    assert (state.run_name, state.rank_zero_seed, state.dataloader_len) == ("a", 3, 5)
    assert state.max_duration == "2ep"
    assert state.timestamp == state.eval_timestamp == state.predict_timestamp == Timestamp()
    assert (state.algorithms, state.callbacks, state.dataloader_label) == ([], [], None)
    assert State(run_name="b").max_duration is None


@pytest.mark.parametrize("value", ["10ba", Time(10, "ba")])
def test_max_duration_takes_anything_that_spells_a_time(value):
    state = State(run_name="a")
    state.max_duration = value
    assert state.max_duration == Time(10, TimeUnit.BATCH)
    state.max_duration = None
    assert state.max_duration is None


@pytest.mark.parametrize("value", ["ten", "0.5dur", "-1ba", -1, "1.5ep"])
def test_a_wrong_max_duration_is_refused_and_the_old_one_stays(value):
    state = State(run_name="a", max_duration="3ba")
    with pytest.raises(ValueError, match=str(value).removeprefix("-")):
        state.max_duration = value
    assert state.max_duration == "3ba"
    with pytest.raises(ValueError, match=r".+"):
        State(run_name="a", max_duration=value)


@given(
    unit=st.sampled_from(["ep", "ba", "sp", "tok", "sec"]),
    epochs=st.integers(1, 4),
    length=st.integers(1, 9),
    size=st.integers(1, 5),
)
def test_elapsed_duration_moves_with_every_batch_in_every_unit(unit, epochs, length, size):
    batches = epochs * length
    whole = {"ep": epochs, "ba": batches, "sp": batches * size, "tok": batches * 7 * size}
    state = ScriptedState(
        max_duration=f"{whole.get(unit, batches)}{unit}",
        dataloader_len=length,
        samples_per_batch=size,
        tokens_per_batch=7 * size,
        seconds_per_batch=1,
    )
    seen = [state.get_elapsed_duration().value]
    for _ in range(epochs):
        for _ in range(length):
            state.step()
            seen.append(state.get_elapsed_duration().value)
        before = state.get_elapsed_duration()
        state.end_epoch()
        assert state.get_elapsed_duration() == before
    assert seen == [float(Fraction(i, batches)) for i in range(batches + 1)]


def test_elapsed_duration_is_none_without_an_end_and_one_at_or_after_it():
    assert ScriptedState(max_duration=None).get_elapsed_duration() is None
    assert ScriptedState(max_duration="0ba").get_elapsed_duration() == "1dur"
    state = ScriptedState(max_duration="2ba")
    state.step(5)
    assert state.get_elapsed_duration() == "1dur"


def test_an_unknown_length_is_an_error_that_names_the_units_that_work():
    state = ScriptedState(max_duration="2ep", dataloader_len=None)
    assert state.get_elapsed_duration() == "0dur"
    state.step()
    with pytest.raises(UnknownLengthError, match="ba, sp, tok or sec"):
        state.get_elapsed_duration()
    state.end_epoch()
    assert state.get_elapsed_duration() == "0.5dur"


@pytest.mark.parametrize("unit", ["ba", "sp", "tok", "sec"])
def test_an_unknown_length_does_not_matter_where_the_end_is_not_in_epochs(unit):
    state = ScriptedState(
        max_duration=f"10{unit}", dataloader_len=None, tokens_per_batch=1, seconds_per_batch=1
    )
    state.step(3)
    assert state.get_elapsed_duration() == "0.3dur"


def test_more_batches_than_announced_never_pass_the_epoch():
    state = ScriptedState(max_duration="2ep", dataloader_len=3)
    state.step(7)
    assert state.get_elapsed_duration() == "0.5dur"


def test_elapsed_duration_in_iterations_uses_the_length_of_one():
    state = ScriptedState(max_duration="2iter", dataloader_len=2, tokens_per_batch=5)
    assert state.get_elapsed_duration() == "0dur"
    state.step()
    with pytest.raises(UnknownLengthError, match="iteration_length"):
        state.get_elapsed_duration()
    state.iteration_length = Time(20, "tok")
    assert state.get_elapsed_duration() == "0.125dur"
    state.iteration_length = Time(2, "ep")
    assert state.get_elapsed_duration() == "0.125dur"
    state.step()
    state.end_epoch()
    assert state.get_elapsed_duration() == "0.25dur"


@pytest.mark.parametrize("unit", ["ep", "ba", "sp", "tok", "sec"])
def test_stop_training_ends_a_loop_over_any_unit(unit):
    state = ScriptedState(max_duration=f"100{unit}")
    state.step(2)
    assert state.timestamp < state.max_duration
    state.stop_training()
    assert not state.timestamp < state.max_duration
    assert state.get_elapsed_duration() == "1dur"
