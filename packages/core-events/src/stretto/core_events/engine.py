"""The engine: runs events and closes what listened to them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stretto.core_events import ownership
from stretto.core_events.algorithm import Algorithm
from stretto.core_events.callback import Callback
from stretto.core_events.closing import close_members
from stretto.core_events.dispatch import (
    Members,
    Table,
    add_note,
    build_markers,
    build_table,
)
from stretto.core_events.errors import EngineClosedError
from stretto.core_events.event import Event
from stretto.core_events.exit_handler import ExitHandler
from stretto.core_events.hooks import check_algorithm, check_callback
from stretto.core_events.logging import Logger, LoggerDestination
from stretto.core_events.ordering import sort_members
from stretto.core_events.passes import AlgorithmPass, reverse_on_after_events
from stretto.core_events.traces import NO_TRACES, Traces

if TYPE_CHECKING:
    from stretto.core_events.time_recorder import TimeRecorder

__all__ = ["Engine"]

StateT = TypeVar("StateT")


class Engine(Generic[StateT]):
    """Runs events on a state: calls whoever listens, in a fixed order, and closes them at the end.

    Order: algorithms, then callbacks, then loggers; at ``INIT`` loggers, callbacks, algorithms;
    algorithms in reverse at ``AFTER_…`` events. Within each group: stage, then `run_before` and
    `run_after`, then position in the list.

    Who listens to what is worked out here, once, so an event that nobody hears costs a lookup.
    After changing a list, an algorithm's `events` or a hook, call `rebuild`. It works with any
    loop, before and without a fit.

    Args:
        state: The state that hooks get.
        logger: The logger that hooks get; its destinations join as listeners.
        algorithm_passes: Passes over the algorithms of each event, after the built-in one that
            reverses them at ``AFTER_…`` events; each a pass, or a pass with its index.
        algorithms: The algorithms. Default: ``state.algorithms``.
        callbacks: The callbacks. Default: ``state.callbacks``.

    Raises:
        HookError: A hook is misspelt or cannot be called as the engine calls it.
        OrderingError: The members' wishes about order cannot all hold.
        ValueError: A member is listed twice.
    """

    def __init__(
        self,
        state: StateT,
        logger: Logger,
        algorithm_passes: Sequence[AlgorithmPass | tuple[AlgorithmPass, int]] | None = None,
        *,
        algorithms: Sequence[Algorithm[StateT]] | None = None,
        callbacks: Sequence[Callback[StateT]] | None = None,
    ) -> None:
        self._closed = False
        self._exit_handler: ExitHandler | None = None
        self._state = state
        self._logger = logger
        self._algorithms = algorithms
        self._callbacks = callbacks
        self._closing = threading.Lock()
        self._passes: list[AlgorithmPass] = [reverse_on_after_events]
        for given in algorithm_passes or ():
            if callable(given):
                self._insert_pass(given)
            else:
                self._insert_pass(*given)
        self._recorder: TimeRecorder | None = None
        self._table: Table = {}
        self.rebuild()
        self._exit_handler = ExitHandler(self)

    @property
    def state(self) -> StateT:
        """The state that hooks get."""
        return self._state

    @property
    def logger(self) -> Logger:
        """The logger that hooks get."""
        return self._logger

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    def run_event(self, event: Event | str) -> Traces:
        """Call everyone who listens to an event, in order.

        Args:
            event: The event, or its name in any case.

        Returns:
            What algorithms did, by ``"<algorithm>/<event>"``; built when it is read.

        Raises:
            EngineClosedError: The engine has been closed.
            CallbackInUseError: At ``INIT``: a callback is still open in another engine.
            ValueError: There is no such event.
        """
        try:
            run = self._table[event]  # pyright: ignore[reportArgumentType]
        except KeyError:
            return self.run_event(self._settle(event))
        if run is None:
            return NO_TRACES
        return run()

    def run_marker_only_event(self, event: Event | str) -> None:
        """Mark an event without running it: only overridden `run_marker` methods hear of it.

        A loop uses it for the half of a pair that has nothing to act on, such as
        ``AFTER_DATALOADER`` when the loader is exhausted.

        Raises:
            EngineClosedError: The engine has been closed.
            ValueError: There is no such event.
        """
        event = self._settle(event)
        for member in self._markers:
            try:
                member.run_marker(event, self._state, self._logger)
            except Exception as error:
                add_note(error, member, event, self._state)
                raise

    def register_pass(self, algorithm_pass: AlgorithmPass, index: int = -1) -> None:
        """Add a pass over the algorithms of each event.

        Args:
            algorithm_pass: The pass.
            index: Where among the passes it runs; -1 is last, 0 is before the built-in one.
        """
        self._insert_pass(algorithm_pass, index)
        self.rebuild()

    def record_time(self, recorder: TimeRecorder | None) -> None:
        """Measure from now on what every callback and algorithm costs; None measures nothing.

        Raises:
            EngineClosedError: The engine has been closed.
        """
        self._recorder = recorder
        self.rebuild()

    def rebuild(self) -> None:
        """Read the lists of algorithms and callbacks again and rebuild the table.

        Raises:
            EngineClosedError: The engine has been closed.
            HookError: See the class.
            OrderingError: See the class.
            ValueError: A member is listed twice.
        """
        self._refuse_if_closed()
        members = self._read_members()
        table = build_table(members, self._passes, self._state, self._logger, self._recorder)
        listeners = (*members.callbacks, *members.loggers)
        table[Event.INIT] = ownership.claiming(self, listeners, table[Event.INIT])
        self._members = members
        self._markers = build_markers(members)
        self._table = table

    def close(self) -> None:
        """Close every callback and logger: `close` on each, then `post_close` on each.

        Each gets both calls, once, whatever the others raise; the `PERSIST` stage is post-closed
        last. Pending metrics are delivered before the loggers close. Calling it again does nothing.

        Raises:
            BaseException: What a member raised, if it was the only one.
            ExceptionGroup: What members raised, if they were several.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._table = {}
        self._markers = ()
        if self._exit_handler is not None:
            self._exit_handler.cancel()
        close_members(ownership.release(self, self._listeners()), self._state, self._logger)

    def __enter__(self) -> Engine[StateT]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        handler: ExitHandler | None = getattr(self, "_exit_handler", None)
        if handler is None or self._closed:
            return
        handler.cancel()
        if handler.in_own_process:
            self.close()

    def _read_members(self) -> Members:
        state: Any = self._state
        algorithms = list(state.algorithms if self._algorithms is None else self._algorithms)
        callbacks = list(state.callbacks if self._callbacks is None else self._callbacks)
        loggers = list(self._logger.destinations)
        _refuse_twice(algorithms)
        _refuse_twice(callbacks)
        _refuse_twice(loggers)
        for algorithm in algorithms:
            check_algorithm(algorithm)
        for callback in (*callbacks, *loggers):
            check_callback(callback)
        known = {id(logger) for logger in loggers}
        # A destination listed as a callback too is a logger, and is called once.
        plain = [callback for callback in callbacks if id(callback) not in known]
        loggers += [member for member in plain if isinstance(member, LoggerDestination)]
        plain = [member for member in plain if not isinstance(member, LoggerDestination)]
        return Members(
            algorithms=tuple(sort_members(algorithms)),
            callbacks=tuple(sort_members(plain)),
            loggers=tuple(sort_members(loggers)),
        )

    def _insert_pass(self, algorithm_pass: AlgorithmPass, index: int = -1) -> None:
        self._passes.insert(len(self._passes) if index == -1 else index, algorithm_pass)

    def _settle(self, event: Event | str) -> Event:
        """Return the event a name stands for, or say why it cannot be run."""
        self._refuse_if_closed()
        return Event(event)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise EngineClosedError(
                "this engine has been closed and runs no more events. Make a new engine; the "
                "callbacks can be used again."
            )

    def _listeners(self) -> tuple[Callback[Any], ...]:
        return (*self._members.callbacks, *self._members.loggers)


def _refuse_twice(members: Sequence[object]) -> None:
    seen: set[int] = set()
    for member in members:
        if id(member) in seen:
            raise ValueError(
                f"{type(member).__name__} is listed twice. List each object once; for two of a "
                "kind make two objects."
            )
        seen.add(id(member))
