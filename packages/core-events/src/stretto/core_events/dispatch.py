"""The table that says, for each event, what to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from stretto.core_events.algorithm import Algorithm
from stretto.core_events.callback import Callback
from stretto.core_events.event import Event
from stretto.core_events.hooks import overrides
from stretto.core_events.logging import Logger, LoggerDestination
from stretto.core_events.passes import AlgorithmPass
from stretto.core_events.traces import NO_TRACES, Traces

if TYPE_CHECKING:
    from stretto.core_events.time_recorder import TimeRecorder

# Named tuples rather than dataclasses: importing those costs a fifth of this package's budget.
__all__ = ["Members", "Runner", "Table", "build_markers", "build_table"]

Hook: TypeAlias = Callable[[Any, Logger], object]
Runner: TypeAlias = Callable[[], Traces]
Table: TypeAlias = dict[Event, Runner | None]
"""For each event the function that runs it, or None where nobody listens."""


class Members(NamedTuple):
    """Everything that an engine calls, each group in the order in which it runs.

    Attributes:
        algorithms: The algorithms, before any pass.
        callbacks: The callbacks that are no loggers.
        loggers: The logger destinations.
    """

    algorithms: tuple[Algorithm[Any], ...]
    callbacks: tuple[Callback[Any], ...]
    loggers: tuple[LoggerDestination[Any], ...]


_Entry: TypeAlias = tuple[
    Algorithm[Any], Callable[[Event, Any], bool] | None, Callable[[Event, Any, Logger], int | None]
]
"""An algorithm at one event, with its `match` (None where it always matches) and its `apply`."""


class _Context(NamedTuple):
    """What every call gets, and what measures it."""

    state: Any
    logger: Logger
    recorder: TimeRecorder | None

    def timed(self, call: Callable[..., Any], member: object, event: Event) -> Callable[..., Any]:
        """Return the call, measured where there is a recorder and untouched where there is none."""
        return call if self.recorder is None else self.recorder.wrap(call, member, event)


def build_table(
    members: Members,
    passes: Sequence[AlgorithmPass],
    state: Any,
    logger: Logger,
    recorder: TimeRecorder | None = None,
) -> Table:
    """Build the table: every decision that does not depend on the moment is taken here.

    Args:
        members: Who is to be called.
        passes: Changes to the order of algorithms.
        state: The state that every call gets.
        logger: The logger that every call gets.
        recorder: Measures every call, if given.
    """
    context = _Context(state=state, logger=logger, recorder=recorder)
    return {event: _build_runner(event, members, passes, context) for event in Event}


def build_markers(members: Members) -> tuple[Callback[Any], ...]:
    """Return the callbacks and loggers that hear events which are only marked."""
    listeners = (*members.callbacks, *members.loggers)
    return tuple(member for member in listeners if overrides(member, "run_marker", Callback))


def _build_runner(
    event: Event, members: Members, passes: Sequence[AlgorithmPass], context: _Context
) -> Runner | None:
    callbacks = _hooks(event, members.callbacks, context)
    loggers = _hooks(event, members.loggers, context)
    entries = _entries(event, members.algorithms, passes, context)
    first_at_init = event is Event.INIT
    before = (*loggers, *callbacks) if first_at_init else ()
    after = () if first_at_init else (*callbacks, *loggers)
    if not entries:
        hooks = before or after
        return _hook_runner(event, hooks, context) if hooks else None
    traced = any(overrides(member, "log_traces", LoggerDestination) for member in members.loggers)
    return _full_runner(event, before, entries, after, traced, context)


def _hooks(event: Event, listeners: Sequence[Callback[Any]], context: _Context) -> tuple[Hook, ...]:
    hooks: list[Hook] = []
    for listener in listeners:
        if overrides(listener, "run_event", Callback):
            hook: Hook = partial(listener.run_event, event)
        elif overrides(listener, event.value, Callback):
            hook = getattr(listener, event.value)
        else:
            continue
        hooks.append(context.timed(hook, listener, event))
    return tuple(hooks)


def _entries(
    event: Event,
    algorithms: Sequence[Algorithm[Any]],
    passes: Sequence[AlgorithmPass],
    context: _Context,
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
        (
            algorithm,
            algorithm.match if overrides(algorithm, "match", Algorithm) else None,
            context.timed(algorithm.apply, algorithm, event),
        )
        for algorithm in candidates
    )


def _hook_runner(event: Event, hooks: tuple[Hook, ...], context: _Context) -> Runner:
    """Make the runner of an event that only callbacks hear."""
    state, logger = context.state, context.logger
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
    traced: bool,
    context: _Context,
) -> Runner:
    """Make the runner of an event at which algorithms may act."""
    state, logger = context.state, context.logger

    def run() -> Traces:
        current: Any = None
        ran: list[tuple[object, int | None]] = []
        try:
            for current in before:
                current(state, logger)
            for current, match, apply in entries:
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
    bound = getattr(culprit, "__wrapped__", culprit)
    if isinstance(bound, partial):
        bound = bound.func
    owner = getattr(bound, "__self__", bound)
    timestamp = getattr(state, "timestamp", None)
    where = ""
    if timestamp is not None:
        where = f", at {timestamp.epoch}, {timestamp.batch}, {timestamp.sample}"
    error.add_note(f"raised by {type(owner).__name__} at event {event.value}{where}")
