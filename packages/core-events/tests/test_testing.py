from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core_events import Engine, Event, Logger, grammar
from stretto.core_events.testing import (
    EventRecorder,
    FakeClock,
    ScriptedState,
    check_sequence,
    expand,
)

MICROBATCH = [
    "before_forward", "after_forward", "before_loss", "after_loss", "before_backward",
    "after_backward",
]  # fmt: skip
EVAL = [
    "eval_start",
    (2, ["eval_batch_start", (2, ["eval_before_forward", "eval_after_forward"]), "eval_batch_end"]),
    "eval_end",
]
EVAL_DUE = ["eval_before_all", (2, EVAL), "eval_after_all"]
BATCH = [
    "before_dataloader", "after_dataloader", "batch_start", "before_train_batch", (2, MICROBATCH),
    "after_train_batch", "batch_end",
]  # fmt: skip
SETUP = ["init", "before_load", "after_load"]


def fit(epochs=2, batches=3):
    first_epoch = ["iteration_start"], ["epoch_start"]
    epoch = [
        (batches, [BATCH, "batch_checkpoint"]),
        "before_dataloader",
        "epoch_end",
        EVAL_DUE,
        "epoch_checkpoint",
    ]
    return expand(
        SETUP,
        "fit_start",
        *first_epoch,
        epoch,
        (epochs - 1, ["epoch_start", epoch]),
        "fit_end",
    )


WHOLE = {
    "a fit": fit(),
    "nothing": [],
    "only set up": expand(SETUP),
    "evaluation within an epoch": expand(
        SETUP,
        "fit_start",
        "epoch_start",
        (2, [BATCH, EVAL_DUE, "batch_checkpoint"]),
        "before_dataloader",
        "epoch_end",
        "epoch_checkpoint",
        "fit_end",
        EVAL_DUE,
    ),
    "iterations": expand(
        "fit_start",
        (
            2,
            [
                "iteration_start",
                "epoch_start",
                (2, [BATCH, "batch_checkpoint"]),
                "before_dataloader",
                "epoch_end",
                "epoch_checkpoint",
                "iteration_end",
                "iteration_checkpoint",
            ],
        ),
        "fit_end",
    ),
    "an iteration that ends within an epoch": expand(
        "fit_start", "iteration_start", "epoch_start",
        (3, [BATCH, "batch_checkpoint", "iteration_end", "iteration_checkpoint"]),
        "before_dataloader", "epoch_end", "epoch_checkpoint", "fit_end",
    ),
    "a run that ends within an epoch and goes on there": expand(
        "init", "fit_start", "epoch_start", BATCH, "batch_checkpoint", "fit_end",
        "fit_start", BATCH, "batch_checkpoint", "fit_end",
    ),
    "evaluation alone": expand(SETUP, "eval_standalone_start", (3, EVAL), "eval_standalone_end"),
    "evaluation, then a fit": expand(
        "eval_standalone_start", EVAL, "eval_standalone_end", fit()[3:]
    ),
    "prediction": expand(
        "init",
        "predict_start",
        (3, ["predict_batch_start", "predict_before_forward", "predict_after_forward",
             "predict_batch_end"]),
        "predict_end",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_whole_runs_fit_the_grammar(name):
    assert check_sequence(WHOLE[name]) is None
    for length in range(len(WHOLE[name])):
        assert check_sequence(WHOLE[name][:length], complete=False) is None


def test_every_event_occurs_in_a_whole_run():
    assert set(itertools.chain(*WHOLE.values())) == {event.value for event in Event}


BROKEN = {
    "an after without its before": (
        [e for i, e in enumerate(fit()) if i != fit().index("before_forward")],
        fit().index("before_forward"),
        "after_forward",
        "before_forward",
    ),
    "a batch outside an epoch": (
        expand(SETUP, "fit_start", BATCH, "batch_checkpoint", "fit_end"),
        4,
        "before_dataloader",
        "iteration_start, epoch_start, fit_end",
    ),
    "a batch after the end of the epoch": (
        expand("fit_start", "epoch_start", BATCH, "batch_checkpoint", "epoch_end",
               "epoch_checkpoint", "before_dataloader"),
        len(expand(BATCH)) + 5,
        "before_dataloader",
        "iteration_start, epoch_start, iteration_end, fit_end",
    ),
    "training after loading came twice": (["init", "init"], 1, "init", "before_load, fit_start"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_sequence_is_told_where_and_what_was_expected(name):
    sequence, index, event, expected = BROKEN[name]
    fault = check_sequence(sequence, complete=False)
    assert (fault.index, fault.event) == (index, event)
    assert expected in str(fault)
    assert f"at {index}" in str(fault)


def test_a_sequence_that_ends_too_early_is_told():
    fault = check_sequence(fit()[:-1])
    assert (fault.index, fault.event) == (len(fit()) - 1, None)
    assert "fit_end" in str(fault)
    assert "the sequence ends" in str(fault)


def test_a_resumed_run_may_start_within_an_epoch():
    sequence = expand("init", "fit_start", BATCH, "batch_checkpoint", "fit_end")
    assert check_sequence(sequence) is not None
    assert check_sequence(sequence, resumed=True) is None


def test_a_loop_that_leaves_events_out_is_held_to_those_it_has():
    loop = expand("fit_start", (2, ["batch_start", "before_loss", "after_loss", "batch_end"]))
    assert check_sequence([*loop, "fit_end"], partial=True) is None
    assert "fit_end" in str(check_sequence(loop, partial=True))
    assert "before_loss" in str(check_sequence(["batch_start", "after_loss"], partial=True))
    inside = expand("epoch_start", "batch_start", "batch_end", "epoch_end", "batch_start")
    assert check_sequence(inside, partial=True).index == 4


def test_an_unknown_event_is_refused():
    with pytest.raises(ValueError, match="batch_ended"):
        check_sequence(["batch_ended"])
    with pytest.raises(ValueError, match="batch_ended"):
        expand("batch_ended")


def test_any_single_swap_of_neighbours_in_a_batch_is_found():
    whole = fit(epochs=1, batches=1)
    seed = random.randrange(2**32)
    print("seed", seed)
    start, stop = whole.index("before_dataloader"), whole.index("batch_checkpoint")
    for index in random.Random(seed).sample(range(start, stop), 10):
        swapped = list(whole)
        swapped[index], swapped[index + 1] = swapped[index + 1], swapped[index]
        assert check_sequence(swapped) is not None, index


def test_the_recorder_keeps_events_snapshots_and_closing():
    state = ScriptedState()
    recorder = EventRecorder(lambda s: s.timestamp.batch_count, only=[Event.BATCH_END])
    with Engine(state, Logger(state), callbacks=[recorder]) as engine:
        for _ in range(3):
            engine.run_event(Event.BATCH_START)
            state.step()
            engine.run_event(Event.BATCH_END)
    assert recorder.events == ["batch_end"] * 3
    assert recorder.snapshots == [1, 2, 3]
    assert recorder.closed == ["close", "post_close"]
    recorder.clear()
    assert recorder.events == recorder.snapshots == []


def test_the_recorder_says_where_it_differs():
    recorder = EventRecorder()
    recorder.events = ["fit_start", "epoch_start", "fit_end"]
    assert recorder.difference(["fit_start", "epoch_start", "fit_end"]) == ""
    assert recorder.difference(["fit_start", "fit_end"]) == (
        "event 1 is epoch_start, expected fit_end, after fit_start"
    )
    assert "3 events recorded, 2 expected" in recorder.difference(["fit_start", "epoch_start"])
    assert "expected; the odd ones begin with batch_end" in recorder.difference(
        [*recorder.events, "batch_end"]
    )


def test_a_fake_clock_moves_when_told_and_also_back():
    clock = FakeClock(10)
    assert clock() == clock() == 10
    clock.advance(-3)
    assert clock() == 7


def some_sequence(expression, draw):
    """Spell out one of the sequences of an expression; `draw` decides."""
    if isinstance(expression, Event):
        return [expression]
    if isinstance(expression, grammar.Then):
        return some_sequence(expression.first, draw) + some_sequence(expression.second, draw)
    if isinstance(expression, grammar.Choice):
        options = sorted(expression.options, key=str)
        return some_sequence(options[draw(len(options))], draw)
    if not isinstance(expression.body, grammar.Choice) or expression.body.options:
        times = draw(3)
        return [event for _ in range(times) for event in some_sequence(expression.body, draw)]
    return []


@given(st.randoms(use_true_random=False), st.sampled_from(["fit", "prediction", "setting up"]))
def test_what_the_parts_describe_is_a_run(random, name):
    sequence = some_sequence(grammar.PARTS[name], random.randrange)
    assert check_sequence(sequence) is None


def test_the_parts_name_every_event():
    def events(expression):
        if isinstance(expression, Event):
            return {expression}
        if isinstance(expression, grammar.Choice):
            return set().union(*map(events, expression.options))
        if isinstance(expression, grammar.Then):
            return events(expression.first) | events(expression.second)
        return events(expression.body)

    assert set().union(*map(events, grammar.PARTS.values())) == set(Event)
