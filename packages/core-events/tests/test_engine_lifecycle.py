from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import tracemalloc
import weakref

import pytest

from stretto.core_events import (
    Algorithm,
    Callback,
    CallbackInUseError,
    Engine,
    Event,
    Logger,
    LoggerDestination,
)
from stretto.core_events.signals import exit_on_signals
from stretto.core_events.testing import EventRecorder, ScriptedState

PRELUDE = """
import os, signal, sys
from stretto.core_events import Callback, Engine, Event, Logger
from stretto.core_events.signals import exit_on_signals
from stretto.core_events.testing import ScriptedState

class Says(Callback):
    def __init__(self, name, error=None):
        self.name, self.error = name, error
    def close(self, state, logger):
        print(self.name, "close", flush=True)
        if self.error:
            raise self.error
    def post_close(self):
        print(self.name, "post_close", flush=True)

def build(*callbacks):
    state = ScriptedState()
    return Engine(state, Logger(state), callbacks=callbacks)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def build(*callbacks):
    state = ScriptedState()
    return Engine(state, Logger(state), callbacks=callbacks)


def test_engines_that_nobody_closed_are_closed_at_exit():
    done = run("a = build(Says('a')); b = build(Says('b')); b.run_event('init')")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "a close",
        "a post_close",
        "b close",
        "b post_close",
    ]


def test_deleting_one_engine_leaves_the_exit_handler_of_another():
    done = run("""
        a, b = build(Says('a')), build(Says('b'))
        a.run_event('init'); b.run_event('init')
        a.close(); del a
        print('end of script', flush=True)
    """)
    assert done.stdout.splitlines() == [
        "a close",
        "a post_close",
        "end of script",
        "b close",
        "b post_close",
    ]


def test_an_uncaught_error_still_closes_everyone():
    done = run("a = build(Says('a')); a.run_event('init'); raise SystemExit(7)")
    assert done.returncode == 7
    assert done.stdout.splitlines() == ["a close", "a post_close"]


def test_an_error_at_exit_is_printed_and_makes_the_status_one_after_all_handlers():
    done = run("""
        import atexit
        atexit.register(lambda: print('registered before', flush=True))
        a, b = build(Says('a', ValueError('own words'))), build(Says('b'))
        print('unflushed end', end='')
    """)
    assert done.returncode == 1
    assert "ValueError: own words" in done.stderr
    assert "raised by Says.close while the engine was closing" in done.stderr
    assert done.stdout == (
        "unflushed endb close\nb post_close\na close\na post_close\nregistered before\n"
    )


def test_a_forked_child_does_not_close_its_parents_engine():
    done = run("""
        a = build(Says('a')); a.run_event('init')
        child = os.fork()
        if child == 0:
            b = build(Says('b')); b.run_event('init'); b.close()
            again = build(*a.state.callbacks)
            again.close()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print('parent goes on', flush=True)
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "b close",
        "b post_close",
        "parent goes on",
        "a close",
        "a post_close",
    ]


def test_importing_touches_neither_signals_nor_exit_handlers():
    done = run("""
        import atexit
        assert atexit._ncallbacks() == 0, atexit._ncallbacks()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
        print('fine')
    """)
    assert done.stdout == "fine\n", done.stderr


def test_sigterm_closes_engines_only_where_it_was_asked_for():
    script = """
        a = build(Says('a')); a.run_event('init')
        with exit_on_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            import time; time.sleep(30)
    """
    done = run(script)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stdout.splitlines() == ["a close", "a post_close"]
    assert run(script.replace("with exit_on_signals()", "if True")).returncode == -signal.SIGTERM


def test_signal_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with exit_on_signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_engines_work_in_threads():
    errors, recorders = [], [EventRecorder() for _ in range(8)]
    ready = threading.Barrier(len(recorders))

    def work(recorder):
        try:
            ready.wait(10)
            with build(recorder) as engine:
                engine.run_event(Event.INIT)
                for _ in range(200):
                    engine.run_event(Event.BATCH_END)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(recorder,)) for recorder in recorders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    for recorder in recorders:
        assert recorder.events == ["init"] + ["batch_end"] * 200
        assert recorder.closed == ["close", "post_close"]


def test_signals_in_another_thread_only_warn():
    warned = []

    def work():
        with pytest.warns(RuntimeWarning, match="main thread"), exit_on_signals():
            warned.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert warned == [True]


def test_a_callback_is_claimed_by_one_of_many_threads():
    shared, winners, losers = EventRecorder(), [], []
    engines = [build(shared) for _ in range(8)]
    ready = threading.Barrier(len(engines))

    def claim(engine):
        ready.wait(10)
        try:
            engine.run_event(Event.INIT)
            winners.append(engine)
        except CallbackInUseError:
            losers.append(engine)

    threads = [threading.Thread(target=claim, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(winners), len(losers)) == (1, 7)
    for engine in engines:
        engine.close()
    assert shared.closed == ["close", "post_close"]


def test_closing_in_many_threads_at_once_closes_once():
    recorder = EventRecorder()
    engine = build(recorder)
    threads = [threading.Thread(target=engine.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert recorder.closed == ["close", "post_close"]


IN_OTHER_PROCESSES = """
import multiprocessing, sys

def child():
    says = Says("child")
    with build(says) as engine:
        engine.run_event("init")
        return [event.value for event in Event if len(engine.run_event(event)) == 0][:2]

if __name__ == "__main__":
    outside = build(Says("parent"))
    outside.run_event("init")
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(*pool.apply(child), flush=True)
    outside.close()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_engines_work_in_other_processes(method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + IN_OTHER_PROCESSES)
    done = subprocess.run(
        [sys.executable, str(script), method], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "child close",
        "child post_close",
        "init before_load",
        "parent close",
        "parent post_close",
    ]


@pytest.fixture
def no_gc():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Weak(ScriptedState):
    pass


def test_a_closed_engine_and_its_state_go_at_once(no_gc):
    state = Weak()
    engine = Engine(state, Logger(state), callbacks=[EventRecorder()])
    engine.run_event(Event.INIT)
    engine.run_event(Event.BATCH_END)
    engine.close()
    references = [weakref.ref(engine), weakref.ref(state)]
    del engine, state
    assert [reference() for reference in references] == [None, None]


def test_an_engine_that_is_dropped_closes_its_members_and_goes_at_once(no_gc):
    state, recorder = Weak(), EventRecorder()
    engine = Engine(state, Logger(state), callbacks=[recorder])
    engine.run_event(Event.INIT)
    references = [weakref.ref(engine), weakref.ref(state)]
    del engine, state
    assert [reference() for reference in references] == [None, None]
    assert recorder.closed == ["close", "post_close"]
    with build(recorder) as another:
        another.run_event(Event.INIT)


def test_an_engine_and_its_state_go_after_an_error_too(no_gc):
    class Fails(Callback):
        def batch_end(self, state, logger):
            raise ValueError("own words")

    references = []

    def fit():
        state = Weak()
        engine = Engine(state, Logger(state), callbacks=[Fails()])
        references.extend([weakref.ref(engine), weakref.ref(state)])
        engine.run_event(Event.INIT)
        engine.run_event(Event.BATCH_END)

    try:
        fit()
    except ValueError as error:
        del error
    assert [reference() for reference in references] == [None, None]


def test_an_engine_in_a_cycle_with_its_callback_is_collected_and_closed():
    class Holds(EventRecorder):
        pass

    holds = Holds()
    holds.engine = build(holds)
    holds.engine.run_event(Event.INIT)
    closed, reference = holds.closed, weakref.ref(holds.engine)
    del holds
    gc.collect()
    assert reference() is None
    assert closed == ["close", "post_close"]


NOTEBOOK = """
import asyncio, code, sys

class Notebook(code.InteractiveInterpreter):
    \"\"\"Runs cells in one namespace and keeps the last error, as a kernel does.\"\"\"
    def cell(self, text):
        sys.last_value = None
        self.runcode(compile(text, "<cell>", "exec"))
        return sys.last_value

DEFINE = PRELUDE + "says = Says('first')"
BUILD = "engine = build(says); engine.run_event('init')"

async def kernel():
    book = Notebook({"PRELUDE": PRELUDE})
    for cell in (DEFINE, BUILD, BUILD, DEFINE.replace("first", "second"), BUILD):
        error = book.cell(cell)
        assert error is None, error
    book.cell("says.batch_end = lambda state, logger: 1 / 0; engine.rebuild(); other = engine")
    assert isinstance(book.cell("engine.run_event('batch_end')"), ZeroDivisionError)
    error = book.cell(BUILD)  # the error that a kernel keeps holds the old engine too
    print(type(error).__name__, flush=True)
    book.cell("del engine; other.close()")
    assert book.cell(BUILD) is None
    print("kernel ends", flush=True)

asyncio.run(kernel())
"""


def test_cells_of_a_notebook_can_be_run_again():
    done = run(f"PRELUDE = {PRELUDE!r}\n" + NOTEBOOK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *("first close", "first post_close") * 2,
        "CallbackInUseError",
        *("second close", "second post_close"),
        "kernel ends",
        *("second close", "second post_close"),
    ], done.stderr


class Typical(Callback):
    def batch_start(self, state, logger):
        pass

    def batch_end(self, state, logger):
        logger.log_metrics({"batch": state.timestamp.batch_count, "later": lambda: 1.0})

    def epoch_end(self, state, logger):
        pass


class Acts(Algorithm):
    events = (Event.BEFORE_LOSS, Event.BATCH_END)

    def apply(self, event, state, logger):
        return 1


class Counts(LoggerDestination):
    metrics = traces = 0

    def log_metrics(self, metrics, step=None):
        self.metrics += 1

    def log_traces(self, traces):
        self.traces += len(traces)


def growth_after(events):
    """Run so many events in a loop that logs and acts; return bytes that are left over."""
    state, counts = ScriptedState(), Counts()
    logger = Logger(state, counts)
    callbacks = [Callback() for _ in range(27)] + [Typical() for _ in range(3)]
    engine = Engine(state, logger, callbacks=callbacks, algorithms=[Acts(), Acts()])

    def work(batches):
        for _ in range(batches):
            for event in (Event.BATCH_START, Event.BEFORE_LOSS, Event.BATCH_END, Event.EPOCH_END):
                engine.run_event(event)
            logger.flush()
            state.step()

    work(2000)
    tracemalloc.start()
    try:
        work(500)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        work(events // 4)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    batches = 2500 + events // 4
    assert (counts.metrics, counts.traces) == (3 * batches, 4 * batches)
    engine.close()
    return grown


def test_twenty_thousand_events_leave_no_growth():
    assert growth_after(20_000) < 4096


@pytest.mark.slow
def test_a_million_events_leave_no_growth():
    assert growth_after(1_000_000) < 4096


@pytest.mark.parametrize("kind", [Typical, EventRecorder])
def test_an_engine_with_thirty_callbacks_takes_less_than_100_kib(kind):
    state, callbacks = ScriptedState(), [kind() for _ in range(30)]
    logger = Logger(state)
    Engine(state, logger, callbacks=callbacks).close()  # what the first one loads is not its own
    gc.collect()
    tracemalloc.start()
    try:
        engine = Engine(state, logger, callbacks=callbacks)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 100 * 1024
        engine.close()
    finally:
        tracemalloc.stop()
