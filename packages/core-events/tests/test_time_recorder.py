from __future__ import annotations

import pytest

from stretto.core_events import Algorithm, Callback, Engine, Event, Logger
from stretto.core_events.testing import FakeClock, ScriptedState
from stretto.core_events.time_recorder import TimeRecorder


class Slow(Callback):
    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, list(seconds)

    def batch_end(self, state, logger):
        self.clock.advance(self.seconds.pop(0))

    def epoch_end(self, state, logger):
        self.clock.advance(0.5)
        raise ValueError("own words")


class SlowAlgorithm(Algorithm):
    events = (Event.BATCH_END,)

    def __init__(self, clock):
        self.clock = clock

    def apply(self, event, state, logger):
        self.clock.advance(4)
        return 3


def test_the_recorder_counts_calls_totals_and_maxima_for_each_member_and_event():
    clock, state = FakeClock(), ScriptedState()
    recorder = TimeRecorder(clock)
    callbacks = [Slow(clock, [1, 2, 3]), Slow(clock, [10, 20, 30])]
    with Engine(
        state, Logger(state), callbacks=callbacks, algorithms=[SlowAlgorithm(clock)]
    ) as engine:
        engine.run_event(Event.BATCH_END)
        engine.record_time(recorder)
        traces = engine.run_event(Event.BATCH_END)
        engine.run_event(Event.BATCH_END)
        with pytest.raises(ValueError, match="own words") as raised:
            engine.run_event(Event.EPOCH_END)
        engine.record_time(None)
    assert traces["SlowAlgorithm/batch_end"].exit_code == 3
    assert raised.value.__notes__ == ["raised by Slow at event epoch_end, at 0ep, 0ba, 0sp"]
    rows = [(s.name, s.event, s.count, s.total, s.maximum) for s in recorder.spent()]
    assert rows == [
        ("Slow#2", Event.BATCH_END, 2, 50, 30),
        ("SlowAlgorithm", Event.BATCH_END, 2, 8, 4),
        ("Slow", Event.BATCH_END, 2, 5, 3),
        ("Slow", Event.EPOCH_END, 1, 0.5, 0.5),
    ]
    lines = recorder.table().splitlines()
    assert lines[0].split() == ["member", "event", "calls", "total", "s", "max", "ms"]
    assert lines[1].split() == ["Slow#2", "batch_end", "2", "50.000000", "30000.000"]
    assert len({len(line) for line in lines}) == 1


def test_a_clock_that_is_set_back_never_makes_a_time_negative():
    clock, state = FakeClock(), ScriptedState()
    recorder = TimeRecorder(clock)
    with Engine(state, Logger(state), callbacks=[Slow(clock, [-5])]) as engine:
        engine.record_time(recorder)
        engine.run_event(Event.BATCH_END)
    assert [(s.total, s.maximum) for s in recorder.spent()] == [(0, 0)]


def test_the_real_clock_measures_something():
    class Sleeps(Callback):
        def batch_end(self, state, logger):
            sum(range(10_000))

    recorder, state = TimeRecorder(), ScriptedState()
    with Engine(state, Logger(state), callbacks=[Sleeps()]) as engine:
        engine.record_time(recorder)
        engine.run_event(Event.BATCH_END)
    (spent,) = recorder.spent()
    assert 0 < spent.maximum == spent.total < 10


def test_deciding_costs_time_too_but_is_no_call():
    class Thinks(SlowAlgorithm):
        def match(self, event, state):
            self.clock.advance(2)
            return state.timestamp.batch_count > 0

    clock, state = FakeClock(), ScriptedState()
    recorder = TimeRecorder(clock)
    with Engine(state, Logger(state), algorithms=[Thinks(clock)]) as engine:
        engine.record_time(recorder)
        engine.run_event(Event.BATCH_END)
        state.step()
        engine.run_event(Event.BATCH_END)
    (spent,) = recorder.spent()
    assert (spent.name, spent.count, spent.total, spent.maximum) == ("Thinks", 1, 8, 4)


def test_nothing_is_measured_when_recording_is_off():
    clock, state = FakeClock(), ScriptedState()
    recorder, slow = TimeRecorder(clock), Slow(clock, [1])
    with Engine(state, Logger(state), callbacks=[slow]) as engine:
        engine.record_time(recorder)
        engine.record_time(None)
        engine.run_event(Event.BATCH_END)
    assert recorder.spent() == []
    assert recorder.table().splitlines() == ["member  event  calls  total s  max ms"]
