"""The table that says, for each event, what to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from stretto.core_events.algorithm import Algorithm
from stretto.core_events.callback import Callback
from stretto.core_events.event import Event
from stretto.core_events.hooks import overrides
from stretto.core_events.logging import Logger, LoggerDestination
from stretto.core_events.passes import AlgorithmPass
from stretto.core_events.traces import NO_TRACES, Traces

__all__ = ["Members", "Runner", "Table", "build_markers", "build_table"]

Hook: TypeAlias = Callable[[Any, Logger], object]
Runner: TypeAlias = Callable[[], Traces]
Table: TypeAlias = dict[Event, Runner | None]
"""For each event the function that runs it, or None where nobody listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Everything that an engine calls, each group in the order in which it runs.

    Attributes:
        algorithms: The algorithms, before any pass.
        callbacks: The callbacks that are no loggers.
        loggers: The logger destinations.
    """

    algorithms: tuple[Algorithm[Any], ...]
    callbacks: tuple[Callback[Any], ...]
    loggers: tuple[LoggerDestination[Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One algorithm at one event; `match` is None where it always matches."""

    algorithm: Algorithm[Any]
    match: Callable[[Event, Any], bool] | None
    apply: Callable[[Event, Any, Logger], int | None]


def build_table(
    members: Members, passes: Sequence[AlgorithmPass], state: Any, logger: Logger
) -> Table:
    """Build the table: every decision that does not depend on the moment is taken here."""
    return {event: _build_runner(event, members, passes, state, logger) for event in Event}


def build_markers(members: Members) -> tuple[Callback[Any], ...]:
    """Return the callbacks and loggers that hear events which are only marked."""
    listeners = (*members.callbacks, *members.loggers)
    return tuple(member for member in listeners if overrides(member, "run_marker", Callback))


def _build_runner(
    event: Event,
    members: Members,
    passes: Sequence[AlgorithmPass],
    state: Any,
    logger: Logger,
) -> Runner | None:
    callbacks = _hooks(event, members.callbacks)
    loggers = _hooks(event, members.loggers)
    entries = _entries(event, members.algorithms, passes)
    first_at_init = event is Event.INIT
    before = (*loggers, *callbacks) if first_at_init else ()
    after = () if first_at_init else (*callbacks, *loggers)
    if not entries:
        hooks = before or after
        return _hook_runner(event, hooks, state, logger) if hooks else None
    traced = any(overrides(member, "log_traces", LoggerDestination) for member in members.loggers)
    return _full_runner(event, before, entries, after, state, logger, traced)


def _hooks(event: Event, listeners: Sequence[Callback[Any]]) -> tuple[Hook, ...]:
    hooks: list[Hook] = []
    for listener in listeners:
        if overrides(listener, "run_event", Callback):
            hooks.append(partial(listener.run_event, event))
        elif overrides(listener, event.value, Callback):
            hooks.append(getattr(listener, event.value))
    return tuple(hooks)


def _entries(
    event: Event, algorithms: Sequence[Algorithm[Any]], passes: Sequence[AlgorithmPass]
) -> tuple[_Entry, ...]:
    candidates: Sequence[Algorithm[Any]] = [
        algorithm
        for algorithm in algorithms
        if algorithm.events is None or event in algorithm.events
    ]
    if not candidates:
        return ()
    for algorithm_pass in passes:
        candidates = algorithm_pass(candidates, event)
    return tuple(
        _Entry(
            algorithm=algorithm,
            match=algorithm.match if overrides(algorithm, "match", Algorithm) else None,
            apply=algorithm.apply,
        )
        for algorithm in candidates
    )


def _hook_runner(event: Event, hooks: tuple[Hook, ...], state: Any, logger: Logger) -> Runner:
    """Make the runner of an event that only callbacks hear."""
    if len(hooks) == 1:
        only = hooks[0]

        def run_one() -> Traces:
            try:
                only(state, logger)
            except Exception as error:
                add_note(error, only, event, state)
                raise
            return NO_TRACES

        return run_one

    def run_hooks() -> Traces:
        hook = hooks[0]
        try:
            for hook in hooks:  # the one that raised is named in the note
                hook(state, logger)
        except Exception as error:
            add_note(error, hook, event, state)
            raise
        return NO_TRACES

    return run_hooks


def _full_runner(
    event: Event,
    before: tuple[Hook, ...],
    entries: tuple[_Entry, ...],
    after: tuple[Hook, ...],
    state: Any,
    logger: Logger,
    traced: bool,
) -> Runner:
    """Make the runner of an event at which algorithms may act."""
    plan = tuple((entry.algorithm, entry.match, entry.apply) for entry in entries)

    def run() -> Traces:
        current: Any = None
        ran: list[tuple[object, int | None]] = []
        try:
            for current in before:
                current(state, logger)
            for current, match, apply in plan:
                if match is None or match(event, state):
                    ran.append((current, apply(event, state, logger)))
            traces = Traces(event, ran) if ran else NO_TRACES
            if traced and ran:
                logger.log_traces(traces)
            for current in after:
                current(state, logger)
        except Exception as error:
            add_note(error, current, event, state)
            raise
        return traces

    return run


def add_note(error: BaseException, culprit: object, event: Event, state: Any) -> None:
    """Add to an error who raised it, at which event, and how far the run had come."""
    bound = culprit.func if isinstance(culprit, partial) else culprit
    owner = getattr(bound, "__self__", bound)
    timestamp = getattr(state, "timestamp", None)
    where = ""
    if timestamp is not None:
        where = f", at {timestamp.epoch}, {timestamp.batch}, {timestamp.sample}"
    error.add_note(f"raised by {type(owner).__name__} at event {event.value}{where}")
