from __future__ import annotations

import itertools

import pytest

from stretto.core_events import (
    Algorithm,
    Callback,
    CallbackInUseError,
    Engine,
    EngineClosedError,
    Event,
    Logger,
    LoggerDestination,
    Stage,
)
from stretto.core_events.testing import EventRecorder, ScriptedState


class Member:
    def __init__(self, name, book, *, fail=(), error=ValueError):
        self.name, self.book, self.fail, self.error = name, book, fail, error

    def close(self, state, logger):
        self._note("close")

    def post_close(self):
        self._note("post_close")

    def _note(self, what):
        self.book.append((self.name, what))
        if what in self.fail:
            raise self.error(f"{self.name}.{what}")


class Call(Member, Callback):
    pass


class Dest(Member, LoggerDestination):
    def log_metrics(self, metrics, step=None):
        self.book.append((self.name, dict(metrics)))


def build(callbacks, loggers=()):
    state = ScriptedState()
    return Engine(state, Logger(state, loggers), callbacks=callbacks)


FAILURES = [
    [name for name, chosen in zip(("close", "post_close"), flags, strict=True) if chosen]
    for flags in itertools.product((False, True), repeat=2)
]


@pytest.mark.parametrize("fail_c", FAILURES)
@pytest.mark.parametrize("fail_d", FAILURES)
@pytest.mark.parametrize("fail_l", FAILURES)
def test_everyone_is_closed_once_whatever_the_others_raise(fail_c, fail_d, fail_l):
    book = []
    engine = build(
        [Call("C", book, fail=fail_c), Call("D", book, fail=fail_d)],
        [Dest("L", book, fail=fail_l)],
    )
    engine.run_event(Event.INIT)
    expected = {
        f"{name}.{what}"
        for name, fail in (("C", fail_c), ("D", fail_d), ("L", fail_l))
        for what in fail
    }
    raised = None
    try:
        engine.close()
    except Exception as error:
        raised = error
    assert book == [(n, w) for w in ("close", "post_close") for n in ("C", "D", "L")]
    if not expected:
        assert raised is None
    elif len(expected) == 1:
        assert type(raised) is ValueError
        assert str(raised) in expected
    else:
        assert type(raised) is ExceptionGroup
        assert {str(error) for error in raised.exceptions} == expected
        assert all("while the engine was closing" in e.__notes__[0] for e in raised.exceptions)
    engine.close()
    assert len(book) == 6, "closing again does nothing"


def test_the_persist_stage_is_post_closed_last_of_all():
    book = []
    keeps = Call("K", book)
    keeps.stage = Stage.PERSIST
    build([keeps, Call("C", book)], [Dest("L", book)]).close()
    assert [name for name, what in book if what == "post_close"] == ["C", "L", "K"]


def test_pending_metrics_are_delivered_before_the_loggers_close():
    book = []

    class Late(Call):
        def close(self, state, logger):
            super().close(state, logger)
            logger.log_metrics({"last": lambda: 3})

    build([Late("C", book)], [Dest("L", book)]).close()
    assert book[:3] == [("C", "close"), ("L", {"last": 3.0}), ("L", "close")]


def test_a_metric_that_fails_while_closing_keeps_nobody_from_being_closed():
    book = []
    engine = build([Call("C", book)], [Dest("L", book)])
    engine.logger.log_metrics({"bad": lambda: 1 / 0})
    with pytest.raises(ZeroDivisionError) as raised:
        engine.close()
    assert "Logger.flush" in raised.value.__notes__[-1]
    assert [what for _, what in book] == ["close", "close", "post_close", "post_close"]


def test_an_interrupt_while_closing_still_closes_the_rest():
    book = []
    engine = build(
        [
            Call("C", book, fail=["close"], error=KeyboardInterrupt),
            Call("D", book, fail=["close"]),
        ]
    )
    with pytest.raises(BaseExceptionGroup) as raised:
        engine.close()
    assert not isinstance(raised.value, ExceptionGroup)
    assert len(book) == 4


def test_a_closed_engine_is_refused_and_says_so():
    engine = build([])
    assert not engine.closed
    engine.close()
    assert engine.closed
    for act in (
        lambda: engine.run_event(Event.BATCH_END),
        lambda: engine.run_event("INIT"),
        lambda: engine.run_marker_only_event(Event.BATCH_END),
        lambda: engine.rebuild(),
        lambda: engine.register_pass(lambda given, event: given),
    ):
        with pytest.raises(EngineClosedError, match="closed"):
            act()
    assert issubclass(EngineClosedError, RuntimeError)


def test_a_callback_open_in_another_engine_is_refused_at_init_and_left_alone():
    callback, other = EventRecorder(), EventRecorder()
    first, second = build([callback]), build([other, callback])
    first.run_event(Event.INIT)
    with pytest.raises(CallbackInUseError, match="EventRecorder is still open"):
        second.run_event(Event.INIT)
    assert issubclass(CallbackInUseError, RuntimeError)
    assert other.events == []
    second.close()
    assert callback.closed == [], "the engine that may not have it must not close it"
    assert other.closed == ["close", "post_close"]
    first.run_event(Event.BATCH_END)
    first.close()
    assert callback.events == ["init", "batch_end"]
    assert callback.closed == ["close", "post_close"]


def test_a_logger_open_in_another_engine_is_refused_too():
    destination = Dest("L", [])
    first, second = build([], [destination]), build([], [destination])
    first.run_event(Event.INIT)
    with pytest.raises(CallbackInUseError, match="Dest"):
        second.run_event(Event.INIT)
    first.close()
    second.run_event(Event.INIT)
    second.close()


def test_callbacks_can_be_used_again_after_closing():
    callback = EventRecorder()
    for _ in range(2):
        with build([callback]) as engine:
            engine.run_event(Event.INIT)
            engine.run_event(Event.INIT)
    assert callback.events == ["init"] * 4
    assert callback.closed == ["close", "post_close"] * 2


def test_callbacks_that_cannot_be_hashed_or_referenced_weakly_are_fine():
    class Odd(Callback):
        __hash__ = None

        def __eq__(self, other):
            raise AssertionError("members are told apart by identity")

    with build([Odd(), Odd()]) as engine:
        engine.run_event(Event.INIT)


def test_the_block_closes_also_after_an_error():
    class Fails(EventRecorder):
        def run_event(self, event, state, logger):
            raise ZeroDivisionError

    callback = Fails()
    with pytest.raises(ZeroDivisionError), build([callback]) as engine:
        engine.run_event(Event.BATCH_END)
    assert callback.closed == ["close", "post_close"]


def test_closing_from_within_a_hook_closes_once():
    class Closes(EventRecorder):
        def run_event(self, event, state, logger):
            super().run_event(event, state, logger)
            self.engine.close()

        def close(self, state, logger):
            super().close(state, logger)
            self.engine.close()

    closes = Closes()
    closes.engine = build([closes])
    closes.engine.run_event(Event.BATCH_END)
    assert closes.closed == ["close", "post_close"]


def test_algorithms_may_be_shared_by_engines():
    class Shared(Algorithm):
        events = (Event.INIT,)

        def apply(self, event, state, logger):
            return 1

    shared, state = Shared(), ScriptedState()
    engines = [Engine(state, Logger(state), algorithms=[shared]) for _ in range(2)]
    assert [len(engine.run_event(Event.INIT)) for engine in engines] == [1, 1]
    for engine in engines:
        engine.close()
