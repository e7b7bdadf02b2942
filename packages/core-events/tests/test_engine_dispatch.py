from __future__ import annotations

import functools
import sys
import traceback

import pytest

from stretto.core_events import (
    Algorithm,
    Callback,
    Engine,
    Event,
    HookError,
    Logger,
    LoggerDestination,
    Trace,
)
from stretto.core_events.testing import EventRecorder, ScriptedState


def engine_of(*callbacks, algorithms=(), loggers=(), state=None):
    state = state or ScriptedState()
    return Engine(state, Logger(state, loggers), algorithms=algorithms, callbacks=callbacks)


class Everything(Callback):
    """Counts the calls of each hook with the arguments it got."""

    def __init__(self):
        self.calls = []


for _event in Event:
    setattr(
        Everything,
        _event.value,
        functools.partialmethod(lambda self, name, s, g: self.calls.append((name, s, g)), _event),
    )


@pytest.mark.parametrize("event", list(Event))
def test_an_event_calls_its_hook_once_with_state_and_logger(event):
    heard = Everything()
    with engine_of(heard) as engine:
        engine.run_event(event)
        assert heard.calls == [(event.value, engine.state, engine.logger)]


def test_an_event_runs_before_and_without_any_fit():
    recorder = EventRecorder()
    with engine_of(recorder) as engine:
        traces = engine.run_event(Event.EPOCH_END)
        engine.run_event("BATCH_END")
        engine.run_event("fit_end")
    assert len(traces) == 0
    assert recorder.events == ["epoch_end", "batch_end", "fit_end"]


def test_an_unknown_event_is_refused_by_name():
    with engine_of() as engine:
        with pytest.raises(ValueError, match="batch_ended"):
            engine.run_event("batch_ended")
        with pytest.raises(ValueError, match="batch_ended"):
            engine.run_marker_only_event("batch_ended")


def test_a_hook_set_on_the_object_or_inherited_is_heard():
    class Base(Callback):
        def batch_end(self, state, logger):
            self.count = getattr(self, "count", 0) + 1

    class Derived(Base):
        pass

    on_object = Callback()
    calls = []
    on_object.batch_end = lambda state, logger: calls.append("object")
    derived = Derived()
    with engine_of(derived, on_object) as engine:
        engine.run_event(Event.BATCH_END)
    assert (derived.count, calls) == (1, ["object"])


def test_an_overridden_run_event_hears_everything_and_can_pass_it_on():
    class Both(Callback):
        def __init__(self):
            self.book = []

        def run_event(self, event, state, logger):
            self.book.append(event.value)
            super().run_event(event, state, logger)

        def epoch_end(self, state, logger):
            self.book.append("own hook")

    both = Both()
    with engine_of(both) as engine:
        engine.run_event(Event.INIT)
        engine.run_event(Event.EPOCH_END)
    assert both.book == ["init", "epoch_end", "own hook"]


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("batch_ended", "batch_end"),
        ("batchend", "batch_end"),
        ("on_batch_end", "batch_end"),
        ("BATCH_END", "batch_end"),
        ("epoch_ends", "epoch_end"),
        ("before_forwards", "before_forward"),
        ("after_train_batches", "after_train_batch"),
        ("eval_batch_ended", "eval_batch_end"),
        ("fitstart", "fit_start"),
        ("after_batch", "after_train_batch"),
        ("on_init", "init"),
        ("batch_finished_end", "batch_end"),
    ],
)
def test_a_misspelt_hook_is_refused_with_the_nearest_right_name(name, right):
    def hook(self, state, logger):
        pass

    slip = type("Slip", (Callback,), {name: hook})()
    with pytest.raises(HookError, match=rf"Slip\.{name} .* mean {right}\?"):
        engine_of(slip)
    derived = type("Derived", (type(slip),), {})()
    with pytest.raises(HookError, match=rf"Slip\.{name}"):
        engine_of(derived)


def test_a_misspelt_hook_with_other_argument_names_is_refused_too():
    class Slip(Callback):
        def batch_ended(self, s, log):
            pass

    with pytest.raises(HookError, match="batch_end"):
        engine_of(Slip())


def test_helpers_properties_and_other_libraries_hooks_are_left_alone():
    class Foreign:
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            pass

        def on_fit_start(self, trainer, pl_module):
            pass

        def on_after_backward(self, trainer, pl_module):
            pass

    class Fine(Foreign, Callback):
        def on_epoch_end(self, trainer, pl_module):
            pass

        def _batch_ended(self, state, logger):
            pass

        def batch_ender(self):
            pass

        @property
        def batch_ended(self):
            return False

        def compute(self, state, logger):
            pass

        def save_checkpoint(self, state, logger):
            pass

        def evaluate(self, state, logger):
            pass

        def upload(self, path, key):
            pass

        epoch_ended = 3

    engine_of(Fine()).close()


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("batch_end", lambda self: None),
        ("batch_end", lambda self, state: None),
        ("batch_end", lambda self, state, logger, more: None),
        ("batch_end", lambda self, state, *, logger: None),
        ("run_event", lambda self, state, logger: None),
        ("close", lambda self: None),
        ("post_close", lambda self, state, logger: None),
        ("run_marker", lambda self, event: None),
        ("batch_end", 3),
    ],
)
def test_a_hook_with_the_wrong_arguments_is_refused(name, hook):
    with pytest.raises(HookError, match=rf"Wrong\.{name}"):
        engine_of(type("Wrong", (Callback,), {name: hook})())


def test_a_hook_with_defaults_or_open_arguments_is_fine():
    class Fine(Callback):
        def batch_end(self, *args):
            pass

        def epoch_end(self, state, logger, times=1):
            pass

        @staticmethod
        def fit_end(state, logger):
            pass

    with engine_of(Fine()) as engine:
        for event in (Event.BATCH_END, Event.EPOCH_END, Event.FIT_END):
            engine.run_event(event)


def test_a_hook_that_would_never_run_is_refused():
    class Coroutine(Callback):
        async def batch_end(self, state, logger):
            pass

    class Generator(Callback):
        def batch_end(self, state, logger):
            yield

    for callback in (Coroutine(), Generator()):
        with pytest.raises(HookError, match="coroutine or a generator"):
            engine_of(callback)


class Acts(Algorithm):
    events = (Event.BATCH_END,)

    def apply(self, event, state, logger):
        return 7


def test_algorithms_that_could_never_act_are_refused():
    class Never(Algorithm):
        def apply(self, event, state, logger):
            return None

    class WrongApply(Acts):
        def apply(self, state, logger):
            return None

    class WrongMatch(Acts):
        def match(self, event):
            return True

    class OneEvent(Acts):
        events = Event.BATCH_END

    class Strings(Acts):
        events = ("batch_end",)

    for cls, text in [
        (Never, "never acts"),
        (WrongApply, "WrongApply.apply"),
        (WrongMatch, "WrongMatch.match"),
        (OneEvent, "is one event"),
        (Strings, "no Event"),
    ]:
        with pytest.raises(HookError, match=text):
            engine_of(algorithms=[cls()])


def test_what_is_no_member_at_all_is_refused():
    with pytest.raises(HookError, match="no Callback"):
        engine_of(object())
    with pytest.raises(HookError, match="no Algorithm"):
        engine_of(algorithms=[Callback()])
    with pytest.raises(HookError, match="no Callback"):
        engine_of(Callback)


def test_a_member_listed_twice_is_refused():
    callback, algorithm = Callback(), Acts()
    with pytest.raises(ValueError, match="Callback is listed twice"):
        engine_of(callback, callback)
    with pytest.raises(ValueError, match="Acts is listed twice"):
        engine_of(algorithms=[algorithm, algorithm])
    engine_of(Callback(), Callback(), algorithms=[Acts(), Acts()]).close()


def test_an_engine_that_was_refused_leaves_nothing_behind():
    callback = EventRecorder()
    with pytest.raises(HookError):
        engine_of(callback, object())
    assert callback.closed == []
    with engine_of(callback) as engine:
        engine.run_event(Event.INIT)


def test_algorithms_act_at_their_events_and_where_they_match():
    class Odd(Algorithm):
        events = (Event.BATCH_START, Event.BATCH_END)

        def __init__(self):
            self.asked, self.applied = [], []

        def match(self, event, state):
            self.asked.append(event)
            return state.timestamp.batch_count % 2 == 1

        def apply(self, event, state, logger):
            self.applied.append((event, state.timestamp.batch_count))

    class Anywhere(Odd):
        events = None

    odd, anywhere = Odd(), Anywhere()
    state = ScriptedState()
    with engine_of(algorithms=[odd, anywhere], state=state) as engine:
        for _ in range(3):
            engine.run_event(Event.BATCH_START)
            engine.run_event(Event.EPOCH_END)
            state.step()
    assert odd.asked == [Event.BATCH_START] * 3
    assert odd.applied == [(Event.BATCH_START, 1)]
    assert anywhere.asked == [Event.BATCH_START, Event.EPOCH_END] * 3
    assert anywhere.applied == [(Event.BATCH_START, 1), (Event.EPOCH_END, 1)]


def test_the_default_match_is_membership_in_events():
    algorithm = Acts()
    assert algorithm.match(Event.BATCH_END, None)
    assert not algorithm.match(Event.BATCH_START, None)
    algorithm.events = {Event.BATCH_START}
    with engine_of(algorithms=[algorithm]) as engine:
        assert list(engine.run_event(Event.BATCH_START)) == ["Acts/batch_start"]
        assert list(engine.run_event(Event.BATCH_END)) == []
    algorithm.events = None
    assert not algorithm.match(Event.BATCH_END, None)


def test_traces_say_what_ran_in_which_order_with_which_code():
    class Never(Acts):
        def match(self, event, state):
            return False

    with engine_of(algorithms=[Acts(), Never(), Acts()]) as engine:
        traces = engine.run_event(Event.BATCH_END)
        assert len(traces) == 2
        common = {"name": "Acts", "event": Event.BATCH_END, "exit_code": 7, "run": True}
        assert dict(traces) == {
            "Acts/batch_end": Trace(order=0, **common),
            "Acts#2/batch_end": Trace(order=1, **common),
        }
        assert len(traces) == 2
        assert "Acts#2" in repr(traces)
        assert engine.run_event(Event.BATCH_START) is engine.run_event(Event.FIT_END)


def test_traces_reach_only_loggers_that_want_them_and_only_when_something_ran():
    class Keeps(LoggerDestination):
        def __init__(self):
            self.traces = []

        def log_traces(self, traces):
            self.traces.append(list(traces))

    keeps = Keeps()
    with engine_of(algorithms=[Acts()], loggers=[keeps]) as engine:
        engine.run_event(Event.BATCH_START)
        engine.run_event(Event.BATCH_END)
    assert keeps.traces == [["Acts/batch_end"]]


def test_a_marker_reaches_only_those_who_listen_to_markers():
    class Marks(Callback):
        def __init__(self):
            self.marks = []

        def run_marker(self, event, state, logger):
            self.marks.append(event)

    marks, recorder = Marks(), EventRecorder()
    with engine_of(marks, recorder, algorithms=[Acts()]) as engine:
        engine.run_marker_only_event(Event.BATCH_END)
        engine.run_marker_only_event("after_dataloader")
    assert marks.marks == [Event.BATCH_END, Event.AFTER_DATALOADER]
    assert recorder.events == []


class Fails(Callback):
    def __init__(self, error):
        self.error = error

    def batch_end(self, state, logger):
        raise self.error

    def run_marker(self, event, state, logger):
        raise self.error


def set_on_the_object(name):
    def raises(*arguments):
        raise ValueError("own words")

    callback = Callback()
    setattr(callback, name, raises)
    return callback


class FailsAll(Callback):
    def run_event(self, event, state, logger):
        raise ValueError("own words")


class FailingAlgorithm(Acts):
    def apply(self, event, state, logger):
        raise ValueError("own words")


class FailingMatch(Acts):
    def match(self, event, state):
        raise ValueError("own words")


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("Fails", {"callbacks": [Fails(ValueError("own words"))]}),
        ("Fails", {"callbacks": [Callback(), EventRecorder(), Fails(ValueError("own words"))]}),
        ("FailsAll", {"callbacks": [FailsAll()]}),
        ("Callback", {"callbacks": [set_on_the_object("batch_end")]}),
        ("Callback", {"callbacks": [set_on_the_object("run_event"), EventRecorder()]}),
        ("FailsAll", {"callbacks": [EventRecorder(), FailsAll(), EventRecorder()]}),
        (
            "Fails",
            {
                "algorithms": [Acts()],
                "callbacks": [EventRecorder(), Fails(ValueError("own words"))],
            },
        ),
        ("FailingAlgorithm", {"algorithms": [Acts(), FailingAlgorithm(), Acts()]}),
        ("FailingMatch", {"algorithms": [Acts(), FailingMatch()]}),
        ("Fails", {"algorithms": [Acts()], "callbacks": [Fails(ValueError("own words"))]}),
    ],
)
def test_an_error_names_its_member_the_event_and_the_moment(name, members):
    state = ScriptedState()
    state.step(3)
    state.end_epoch()
    engine = Engine(
        state,
        Logger(state),
        algorithms=members.get("algorithms", []),
        callbacks=members.get("callbacks", []),
    )
    with pytest.raises(ValueError, match=r"^own words\n") as raised:
        engine.run_event(Event.BATCH_END)
    assert raised.value.__notes__ == [f"raised by {name} at event batch_end, at 1ep, 3ba, 3sp"]
    text = "".join(traceback.format_exception(raised.value))
    assert text.index("own words") < text.index(f"raised by {name}")


def test_an_error_at_a_marker_is_noted_too():
    with engine_of(Fails(KeyError("x"))) as engine, pytest.raises(KeyError) as raised:
        engine.run_marker_only_event(Event.EPOCH_END)
    assert raised.value.__notes__ == ["raised by Fails at event epoch_end, at 0ep, 0ba, 0sp"]


def test_a_key_error_of_a_hook_is_not_mistaken_for_an_unknown_event():
    failing = Fails(KeyError(Event.BATCH_END))
    with engine_of(failing) as engine, pytest.raises(KeyError) as raised:
        engine.run_event(Event.BATCH_END)
    assert raised.value is failing.error


def test_an_interrupt_passes_through_unchanged():
    with engine_of(Fails(KeyboardInterrupt())) as engine, pytest.raises(KeyboardInterrupt):
        engine.run_event(Event.BATCH_END)


def test_two_engines_do_not_hear_each_other():
    one, two = EventRecorder(), EventRecorder()
    with engine_of(one) as first, engine_of(two) as second:
        first.run_event(Event.INIT)
        second.run_event(Event.INIT)
        first.run_event(Event.BATCH_END)
    assert one.events == ["init", "batch_end"]
    assert two.events == ["init"]


def test_an_event_can_be_run_from_within_a_hook():
    class Nests(Callback):
        def fit_end(self, state, logger):
            self.engine.run_event(Event.EVAL_START)

    nests, recorder = Nests(), EventRecorder()
    with engine_of(nests, recorder) as engine:
        nests.engine = engine
        engine.run_event(Event.FIT_END)
    assert recorder.events == ["eval_start", "fit_end"]


def test_a_logger_that_fails_on_traces_is_not_taken_for_the_algorithm():
    class Refuses(LoggerDestination):
        def log_traces(self, traces):
            raise ValueError("own words")

    state = ScriptedState()
    engine = Engine(state, Logger(state, Refuses()), algorithms=[Acts()])
    with pytest.raises(ValueError, match="own words") as raised:
        engine.run_event(Event.BATCH_END)
    assert raised.value.__notes__ == ["raised by Logger at event batch_end, at 0ep, 0ba, 0sp"]


def test_events_are_never_compared_or_hashed_by_python_code():
    called = []

    def watch(frame, what, argument):
        if what == "call":
            called.append(frame.f_code.co_name)

    class Hears(Callback):
        def batch_end(self, state, logger):
            pass

    with engine_of(Hears(), algorithms=[Acts()]) as engine:
        sys.setprofile(watch)
        try:
            for event in Event:
                engine.run_event(event)
        finally:
            sys.setprofile(None)
    assert "batch_end" in called
    assert not {"__eq__", "__hash__", "__ne__", "__contains__"} & set(called), called
