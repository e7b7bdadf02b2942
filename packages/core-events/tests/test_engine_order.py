from __future__ import annotations

import random

import pytest

from stretto.core_events import (
    Algorithm,
    Callback,
    Engine,
    Event,
    Logger,
    LoggerDestination,
    Stage,
    sort_to_back,
    sort_to_front,
)
from stretto.core_events.testing import ScriptedState

# Who acts at an event, as data: A and B are algorithms, C and D callbacks, L and M loggers.
FORWARD = ["A", "B", "C", "D", "L", "M"]
REVERSED = ["B", "A", "C", "D", "L", "M"]
AT_INIT = ["L", "M", "C", "D", "A", "B"]
GOLDEN = {
    event: AT_INIT
    if event is Event.INIT
    else (
        REVERSED
        if event
        in {
            Event.AFTER_LOAD,
            Event.AFTER_DATALOADER,
            Event.AFTER_FORWARD,
            Event.AFTER_LOSS,
            Event.AFTER_BACKWARD,
            Event.AFTER_TRAIN_BATCH,
        }
        else FORWARD
    )
    for event in Event
}


class Writes:
    def __init__(self, name, book):
        self.name, self.book = name, book


class Alg(Writes, Algorithm):
    events = tuple(Event)

    def apply(self, event, state, logger):
        self.book.append(self.name)


class Call(Writes, Callback):
    def run_event(self, event, state, logger):
        self.book.append(self.name)


class Dest(Writes, LoggerDestination):
    def run_event(self, event, state, logger):
        self.book.append(self.name)


@pytest.fixture
def book():
    return []


def build(book, *, passes=None, algorithms=None, callbacks=None, loggers=None):
    state = ScriptedState()
    logger = Logger(state, loggers or [Dest("L", book), Dest("M", book)])
    return Engine(
        state,
        logger,
        passes,
        algorithms=algorithms or [Alg("A", book), Alg("B", book)],
        callbacks=callbacks or [Call("C", book), Call("D", book)],
    )


@pytest.mark.parametrize("event", list(Event))
def test_members_act_in_the_order_held_as_data(book, event):
    with build(book) as engine:
        engine.run_event(event)
    assert book == GOLDEN[event]


def test_stage_and_wishes_order_each_group_and_never_mix_the_groups(book):
    c, d, algorithms = Call("C", book), Call("D", book), [Alg("A", book), Alg("B", book)]
    c.stage = Stage.PERSIST
    algorithms[0].run_after = ("late",)
    algorithms[1].tags = ("late",)
    with build(book, callbacks=[c, d], algorithms=algorithms) as engine:
        engine.run_event(Event.BATCH_START)
        assert book == ["B", "A", "D", "C", "L", "M"]
        book.clear()
        engine.run_event(Event.AFTER_LOSS)
        assert book == ["A", "B", "D", "C", "L", "M"]


def test_a_logger_among_the_callbacks_acts_with_the_loggers_and_once(book):
    only_listed, both = Dest("N", book), Dest("L", book)
    with build(book, loggers=[both], callbacks=[only_listed, both, Call("C", book)]) as engine:
        engine.run_event(Event.FIT_START)
    assert book == ["A", "B", "C", "L", "N"]


def test_lists_of_the_state_are_used_where_none_are_given(book):
    state = ScriptedState(algorithms=[Alg("A", book)], callbacks=[Call("C", book)])
    with Engine(state, Logger(state, Dest("L", book))) as engine:
        engine.run_event(Event.FIT_START)
        assert book == ["A", "C", "L"]
        book.clear()
        state.callbacks.insert(0, Call("B", book))
        engine.run_event(Event.FIT_START)
        assert book == ["A", "C", "L"], "a change counts only after rebuild"
        book.clear()
        engine.rebuild()
        engine.run_event(Event.FIT_START)
        assert book == ["A", "B", "C", "L"]


class First(Alg):
    pass


class Last(Alg):
    pass


def test_passes_change_the_order_of_algorithms(book):
    algorithms = [Last("Z", book), Alg("A", book), First("F", book), Alg("B", book)]
    seen = []

    def spread(given, event):
        seen.append(event)
        return sort_to_back(sort_to_front(given, First), Last)

    with build(book, algorithms=algorithms, passes=[spread]) as engine:
        engine.run_event(Event.BATCH_START)
        assert book[:4] == ["F", "A", "B", "Z"]
        book.clear()
        engine.run_event(Event.AFTER_LOSS)
        assert book[:4] == ["F", "B", "A", "Z"], "a pass comes after the built-in reversal"
        assert sorted(set(seen)) == sorted(Event)
        book.clear()
        engine.register_pass(lambda given, event: given[::-1])
        engine.run_event(Event.BATCH_START)
        assert book[:4] == ["Z", "B", "A", "F"]


def test_a_pass_at_index_zero_comes_before_the_reversal(book):
    algorithms = [Alg("A", book), First("F", book), Alg("B", book)]

    def first_to_front(given, event):
        return sort_to_front(given, First)

    with build(book, algorithms=algorithms, passes=[(first_to_front, 0)]) as engine:
        engine.run_event(Event.AFTER_LOSS)
        assert book[:3] == ["B", "A", "F"]


def test_a_pass_may_leave_algorithms_out(book):
    with build(book, passes=[lambda given, event: given[:1]]) as engine:
        engine.run_event(Event.BATCH_START)
    assert book == ["A", "C", "D", "L", "M"]


def test_sorting_to_front_and_back_is_stable():
    seed = random.randrange(2**32)
    print("seed", seed)
    numbers = random.Random(seed).choices([1, 2, "a", "b"], k=20)
    strings = [n for n in numbers if isinstance(n, str)]
    ints = [n for n in numbers if isinstance(n, int)]
    assert sort_to_front(numbers, str) == strings + ints
    assert sort_to_back(numbers, str) == ints + strings
