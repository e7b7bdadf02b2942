"""What events, timestamps and the import cost, against the limits that the project set itself.

The Composer column holds the figures measured on the same kind of machine with Composer 0.32
(events: `Engine.run_event`; import: `composer.core.event` on top of torch). Each of our figures is
the best of several rounds, in processor time: other work on the machine can only make it worse.

    python packages/core-events/benchmarks/bench_dispatch.py [--smoke]
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
import timeit
from dataclasses import dataclass

from stretto.core_events import Algorithm, Callback, Engine, Event, Logger, LoggerDestination
from stretto.core_events.testing import ScriptedState

EVENTS_OF_A_BATCH = (
    Event.BEFORE_DATALOADER, Event.AFTER_DATALOADER, Event.BATCH_START, Event.BEFORE_TRAIN_BATCH,
    Event.BEFORE_FORWARD, Event.AFTER_FORWARD, Event.BEFORE_LOSS, Event.AFTER_LOSS,
    Event.BEFORE_BACKWARD, Event.AFTER_BACKWARD, Event.AFTER_TRAIN_BATCH, Event.BATCH_END,
    Event.BATCH_CHECKPOINT,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    ours: float
    unit: str
    composer: float | None
    limit: float | None

    @property
    def missed(self) -> bool:
        return self.limit is not None and self.ours > self.limit

    def cells(self) -> tuple[str, ...]:
        def shown(number: float | None) -> str:
            if number is None:
                return ""
            return f"{number:.0f} {self.unit}" if number >= 100 else f"{number:.3g} {self.unit}"

        ratio = "" if self.composer is None else f"{self.composer / max(self.ours, 1e-9):.0f}x"
        verdict = "" if self.limit is None else ("MISSED" if self.missed else "ok")
        return (
            self.what,
            shown(self.ours),
            shown(self.composer),
            ratio,
            shown(self.limit),
            verdict,
        )


class Hears(Callback):
    def batch_end(self, state, logger):
        pass


class Acts(Algorithm):
    events = (Event.BATCH_END,)

    def apply(self, event, state, logger):
        return None


class Asks(Acts):
    def match(self, event, state):
        return True


class Speed(Callback):
    """A typical monitor: acts at the two ends of a batch."""

    def batch_start(self, state, logger):
        self.start = state.timestamp.batch_count

    def batch_end(self, state, logger):
        self.stop = state.timestamp.batch_count


class Saver(Callback):
    """A typical saver: acts after batches and epochs."""

    def batch_checkpoint(self, state, logger):
        self.seen = state.timestamp.batch_count

    def epoch_checkpoint(self, state, logger):
        pass


class Watch(Callback):
    """A typical guard: looks at the loss."""

    def after_loss(self, state, logger):
        pass


class Bar(LoggerDestination):
    """A typical logger."""

    def batch_end(self, state, logger):
        pass

    def epoch_end(self, state, logger):
        pass


class Mixes(Algorithm):
    events = (Event.AFTER_DATALOADER, Event.BEFORE_LOSS)

    def apply(self, event, state, logger):
        return None


class Clips(Algorithm):
    events = (Event.AFTER_TRAIN_BATCH,)

    def apply(self, event, state, logger):
        return None


class Operates(Algorithm):
    events = (Event.INIT,)

    def apply(self, event, state, logger):
        return None


def engine_of(callbacks=(), algorithms=(), loggers=()):
    state = ScriptedState()
    return Engine(state, Logger(state, loggers), callbacks=callbacks, algorithms=algorithms)


def best(statement: str, names: dict[str, object], smoke: bool) -> float:
    """Return microseconds for one run of a statement."""
    number, rounds = (100, 2) if smoke else (20_000, 15)
    timer = timeit.Timer(statement, globals=names, timer=time.process_time)
    return min(timer.repeat(rounds, number)) / number * 1e6


def event_rows(smoke: bool) -> list[Row]:
    rows: list[Row] = []

    def add(what: str, ours: float, composer: float | None, limit: float | None) -> None:
        rows.append(Row(what=what, ours=ours, unit="µs", composer=composer, limit=limit))

    def run(engine, event=Event.BATCH_END):
        with engine:
            return best("run(event)", {"run": engine.run_event, "event": event}, smoke)

    add("event nobody hears, no callbacks", run(engine_of()), 21, 0.15)
    twenty = [Hears() for _ in range(20)]
    add("event nobody hears, 20 callbacks", run(engine_of(twenty), Event.EPOCH_END), 88, 0.15)
    names: dict[str, object] = {f"hook{i}": hears.batch_end for i, hears in enumerate(twenty)}
    calls = "; ".join(f"hook{i}(None, None)" for i in range(20))
    heard, own = run(engine_of(twenty)), best(calls, names, smoke)
    add("event that 20 callbacks hear", heard, 88, None)
    add("  beyond the 20 calls themselves", max(0.0, heard - own), None, 1.5)
    add("20 algorithms that match", run(engine_of(algorithms=[Acts() for _ in range(20)])), 160, 8)
    asking = engine_of(algorithms=[Asks() for _ in range(20)])
    add("  the same with a match of their own", run(asking), 160, 8)
    add("the 13 events of a batch", a_batch(smoke), 600, 12)
    return rows


def a_batch(smoke: bool) -> float:
    """Ten typical callbacks (two of them loggers), three algorithms."""
    callbacks = [Speed(), Speed(), Speed(), Saver(), Saver(), Watch(), Watch(), Hears()]
    engine = engine_of(callbacks, [Operates(), Mixes(), Clips()], [Bar(), Bar()])
    names: dict[str, object] = {"run": engine.run_event}
    names |= {f"event{i}": event for i, event in enumerate(EVENTS_OF_A_BATCH)}
    statement = "; ".join(f"run(event{i})" for i in range(len(EVENTS_OF_A_BATCH)))
    with engine:
        return best(statement, names, smoke)


def time_rows(smoke: bool) -> list[Row]:
    state = ScriptedState(max_duration="10ep")
    state.step()
    names = {"state": state, "second": datetime.timedelta(seconds=1), "logger": Logger(state)}
    statements = {
        "timestamp.to_next_batch(…)": "state.timestamp.to_next_batch(8, 64, second)",
        "timestamp.batch_count": "state.timestamp.batch_count",
        "timestamp.batch": "state.timestamp.batch",
        "timestamp < max_duration": "state.timestamp < state.max_duration",
        "elapsed duration": "state.get_elapsed_duration()",
        "log_metrics without destinations": "logger.log_metrics({'loss': 1.0})",
    }
    return [
        Row(what=what, ours=best(text, names, smoke), unit="µs", composer=None, limit=None)
        for what, text in statements.items()
    ]


def import_row(smoke: bool) -> Row:
    """What a fresh process takes with the import, over one without; the best of several pairs."""

    def seconds(script: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, "-c", script], check=True)
        after = os.times()
        spent = after.children_user - before.children_user
        return spent + after.children_system - before.children_system

    rounds = range(2 if smoke else 20)
    bare = min(seconds("pass") for _ in rounds)
    ours = min(seconds("import stretto.core_events") for _ in rounds)
    return Row(
        what="import over a bare interpreter",
        ours=(ours - bare) * 1e3,
        unit="ms",
        composer=1500,
        limit=60,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Costs of stretto.core_events.")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, limits not enforced")
    smoke: bool = parser.parse_args().smoke
    rows = [*event_rows(smoke), import_row(smoke), *time_rows(smoke)]
    table = [("", "ours", "Composer", "ratio", "limit", ""), *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    return 1 if not smoke and any(row.missed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
