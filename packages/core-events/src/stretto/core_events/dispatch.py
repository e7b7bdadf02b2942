"""The table that says, for each event, what to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
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


class _HearsAll(NamedTuple):
    """A listener that overrides `run_event`; one object for all events, which are many."""

    call: Callable[[Event, Any, Logger], object]


class _Context(NamedTuple):
    """What every call gets, and what measures it."""

    state: Any
    logger: Logger
    recorder: TimeRecorder | None
    hear_all: dict[int, _HearsAll]

    def timed(self, call: Callable[..., Any], member: object, event: Event) -> Callable[..., Any]:
        """Return the call, measured where there is a recorder and untouched where there is none."""
        return call if self.recorder is None else self.recorder.wrap(call, member, event)

    def timed_match(self, algorithm: Algorithm[Any], event: Event) -> Callable[[Event, Any], bool]:
        """Return the algorithm's `match`, whose time counts as the algorithm's."""
        if self.recorder is None:
            return algorithm.match
        return self.recorder.wrap(algorithm.match, algorithm, event, is_call=False)


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
    everyone = (*members.callbacks, *members.loggers)
    hear_all = {
        id(listener): _HearsAll(_owned(listener.run_event, listener))
        for listener in everyone
        if overrides(listener, "run_event", Callback)
    }
    context = _Context(state=state, logger=logger, recorder=recorder, hear_all=hear_all)
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
    hooks = (*loggers, *callbacks) if first_at_init else (*callbacks, *loggers)
    listen = _hook_runner(event, hooks, context) if hooks else None
    if not entries:
        return listen
    traced = any(overrides(member, "log_traces", LoggerDestination) for member in members.loggers)
    act = _algorithm_runner(event, entries, traced, context)
    if listen is None:
        return act
    return _listen_then_act(listen, act) if first_at_init else _act_then_listen(act, listen)


def _hooks(
    event: Event, listeners: Sequence[Callback[Any]], context: _Context
) -> tuple[Hook | _HearsAll, ...]:
    hooks: list[Hook | _HearsAll] = []
    for listener in listeners:
        hears_all = context.hear_all.get(id(listener))
        if hears_all is not None:
            measured = context.timed(hears_all.call, listener, event)
            hooks.append(hears_all if measured is hears_all.call else _HearsAll(measured))
        elif overrides(listener, event.value, Callback):
            hook = _owned(getattr(listener, event.value), listener)
            hooks.append(context.timed(hook, listener, event))
    return tuple(hooks)


def _owned(hook: Callable[..., object], listener: object) -> Callable[..., object]:
    """Return the hook as a method of its listener, which an error is then traced back to.

    A function that was set on the object, or a static method, does not know whose it is.
    """
    if getattr(hook, "__self__", None) is listener:
        return hook

    def call(_: object, *arguments: object) -> object:
        return hook(*arguments)

    return MethodType(call, listener)


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
            context.timed_match(algorithm, event)
            if overrides(algorithm, "match", Algorithm)
            else None,
            context.timed(algorithm.apply, algorithm, event),
        )
        for algorithm in candidates
    )


def _hook_runner(event: Event, hooks: tuple[Hook | _HearsAll, ...], context: _Context) -> Runner:
    """Make the runner of an event that only callbacks hear."""
    plain = tuple(hook for hook in hooks if not isinstance(hook, _HearsAll))
    if len(plain) < len(hooks):
        return _mixed_runner(event, hooks, context)
    if len(plain) == 1:
        return _single_runner(event, plain[0], context)
    state, logger = context.state, context.logger

    def run_hooks() -> Traces:
        hook = plain[0]
        try:
            for hook in plain:  # the one that raised is named in the note
                hook(state, logger)
        except Exception as error:
            add_note(error, hook, event, state)
            raise
        return NO_TRACES

    return run_hooks


def _single_runner(event: Event, only: Hook, context: _Context) -> Runner:
    state, logger = context.state, context.logger

    def run_one() -> Traces:
        try:
            only(state, logger)
        except Exception as error:
            add_note(error, only, event, state)
            raise
        return NO_TRACES

    return run_one


def _mixed_runner(event: Event, hooks: tuple[Hook | _HearsAll, ...], context: _Context) -> Runner:
    """Make the runner of an event that someone hears who hears every event."""
    state, logger = context.state, context.logger

    def run_mixed() -> Traces:
        current: Callable[..., object] | None = None
        try:
            for hook in hooks:
                if isinstance(hook, _HearsAll):
                    current = hook.call
                    current(event, state, logger)
                else:
                    current = hook
                    current(state, logger)
        except Exception as error:
            add_note(error, current, event, state)
            raise
        return NO_TRACES

    return run_mixed


def _algorithm_runner(
    event: Event, entries: tuple[_Entry, ...], traced: bool, context: _Context
) -> Runner:
    """Make the runner of the algorithms that may act at an event."""
    state, logger = context.state, context.logger

    def act() -> Traces:
        current: object = None
        ran: list[tuple[object, int | None]] = []
        try:
            for current, match, apply in entries:
                if match is None or match(event, state):
                    ran.append((current, apply(event, state, logger)))
            if not ran:
                return NO_TRACES
            traces = Traces(event, ran)
            if traced:
                current = logger
                logger.log_traces(traces)
        except Exception as error:
            add_note(error, current, event, state)
            raise
        return traces

    return act


def _act_then_listen(act: Runner, listen: Runner) -> Runner:
    def run() -> Traces:
        traces = act()
        listen()
        return traces

    return run


def _listen_then_act(listen: Runner, act: Runner) -> Runner:
    def run() -> Traces:
        listen()
        return act()

    return run


def add_note(error: BaseException, culprit: object, event: Event, state: Any) -> None:
    """Add to an error who raised it, at which event, and how far the run had come."""
    bound = getattr(culprit, "__wrapped__", culprit)
    owner = getattr(bound, "__self__", bound)
    timestamp = getattr(state, "timestamp", None)
    where = ""
    if timestamp is not None:
        where = f", at {timestamp.epoch}, {timestamp.batch}, {timestamp.sample}"
    error.add_note(f"raised by {type(owner).__name__} at event {event.value}{where}")
