"""What a type checker must say about code that uses the package.

Checked by `test_typing.py` with pyright in strict mode: a line that ends in ``# error`` must be
refused, every other line must pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, assert_type

from stretto.core_events import (
    Algorithm,
    Callback,
    Engine,
    Event,
    Logger,
    State,
    Time,
    Timestamp,
    Traces,
    ensure_time,
)


class HasModel(Protocol):
    @property
    def model(self) -> str: ...


class HasLoss(Protocol):
    @property
    def loss(self) -> float: ...


class ModelState(State):
    model: str = "model"
    loss: float = 0.0


class AnyCallback(Callback[State]):
    def batch_end(self, state: State, logger: Logger) -> None:
        logger.log_metrics({"batch": state.timestamp.batch_count, "later": lambda: 1.0})


class ModelCallback(Callback[HasModel]):
    def batch_end(self, state: HasModel, logger: Logger) -> None:
        del logger
        assert_type(state.model, str)


class ModelAlgorithm(Algorithm[HasModel]):
    events = (Event.INIT,)

    def apply(self, event: Event, state: HasModel, logger: Logger) -> int | None:
        return len(state.model)


class LossAlgorithm(Algorithm[HasLoss]):
    events = frozenset({Event.AFTER_LOSS})

    def apply(self, event: Event, state: HasLoss, logger: Logger) -> None:
        del event, state, logger


bare = State(run_name="bare")
rich = ModelState(run_name="rich")
mixed: Sequence[Algorithm[ModelState]] = [ModelAlgorithm(), LossAlgorithm()]

engine = Engine[ModelState](
    rich, Logger(rich), algorithms=mixed, callbacks=[AnyCallback(), ModelCallback()]
)
listed: list[Callback[ModelState]] = [AnyCallback(), ModelCallback()]
Engine(rich, Logger(rich), callbacks=listed)
assert_type(engine, Engine[ModelState])
assert_type(engine.state.model, str)
assert_type(engine.run_event(Event.INIT), Traces)
Engine(bare, Logger(bare), callbacks=[AnyCallback()])
Engine(bare, Logger(bare), callbacks=[ModelCallback()])  # error
Engine(bare, Logger(bare), algorithms=[LossAlgorithm()])  # error

assert_type(rich.timestamp, Timestamp)
assert_type(rich.timestamp.batch, Time)
assert_type(rich.timestamp.batch_count, int)
assert_type(rich.get_elapsed_duration(), Time | None)
assert_type(ensure_time("1ep"), Time)
assert_type(ensure_time(None), None)
ensure_time(1.5)  # error
rich.max_duration = "3ep"
rich.max_duration = 1.5  # error
rich.timestamp.batch = Time(1, "ba")  # error
