"""Closing many members so that each gets its turn, whatever the others raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stretto.core_events.callback import Callback
from stretto.core_events.logging import Logger, LoggerDestination

__all__ = ["close_members"]


def close_members(members: Sequence[Callback[Any]], state: Any, logger: Logger) -> None:
    """Call `close` on each member, then `post_close` on each, the `PERSIST` stage last.

    Callbacks come before loggers, and pending metrics are delivered in between.

    Args:
        members: The callbacks and loggers to close, in the order in which they run.
        state: The state that `close` gets.
        logger: The logger that `close` gets, and that is flushed.

    Raises:
        BaseException: What a member raised, if it was the only one.
        ExceptionGroup: What members raised, if they were several (a `BaseExceptionGroup` if one
            of them is no `Exception`).
    """
    errors: list[BaseException] = []

    def attempt(what: str, call: Callable[..., object], *arguments: object) -> None:
        try:
            call(*arguments)
        except BaseException as error:  # everyone else still gets their turn
            error.add_note(f"raised by {what} while the engine was closing")
            errors.append(error)

    loggers = [member for member in members if isinstance(member, LoggerDestination)]
    callbacks = [member for member in members if not isinstance(member, LoggerDestination)]
    for callback in callbacks:
        attempt(f"{type(callback).__name__}.close", callback.close, state, logger)
    attempt("Logger.flush", logger.flush)
    for destination in loggers:
        attempt(f"{type(destination).__name__}.close", destination.close, state, logger)
    for member in sorted(members, key=lambda member: member.stage):
        attempt(f"{type(member).__name__}.post_close", member.post_close)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} errors while the engine was closing", errors)
