"""Events, time, state, callbacks and algorithms for any training loop, and the engine for them."""

from __future__ import annotations

from stretto.core_events.algorithm import Algorithm
from stretto.core_events.callback import Callback
from stretto.core_events.engine import Engine
from stretto.core_events.errors import (
    CallbackInUseError,
    CoreEventsError,
    EngineClosedError,
    HookError,
    OrderingError,
    TimeStringError,
    TimeUnitError,
    UnknownLengthError,
)
from stretto.core_events.event import Event
from stretto.core_events.intervals import IntervalScheduler, create_interval_scheduler
from stretto.core_events.logging import Logger, LoggerDestination, Resolver, Scalar
from stretto.core_events.passes import AlgorithmPass, sort_to_back, sort_to_front
from stretto.core_events.stage import Stage
from stretto.core_events.state import State
from stretto.core_events.time import Time, TimeInput, ensure_time
from stretto.core_events.time_unit import TimeUnit
from stretto.core_events.timestamp import Timestamp
from stretto.core_events.traces import Trace, Traces

__all__ = [
    "Algorithm",
    "AlgorithmPass",
    "Callback",
    "CallbackInUseError",
    "CoreEventsError",
    "Engine",
    "EngineClosedError",
    "Event",
    "HookError",
    "IntervalScheduler",
    "Logger",
    "LoggerDestination",
    "OrderingError",
    "Resolver",
    "Scalar",
    "Stage",
    "State",
    "Time",
    "TimeInput",
    "TimeStringError",
    "TimeUnit",
    "TimeUnitError",
    "Timestamp",
    "Trace",
    "Traces",
    "UnknownLengthError",
    "create_interval_scheduler",
    "ensure_time",
    "sort_to_back",
    "sort_to_front",
]
