"""Which hooks a member overrides, and whether they are written so that they can be called."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from stretto.core_events.algorithm import Algorithm
from stretto.core_events.callback import Callback
from stretto.core_events.errors import HookError
from stretto.core_events.event import Event

__all__ = ["check_algorithm", "check_callback", "overrides"]

_HOOKS = tuple(event.value for event in Event)
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    **{name: ("state", "logger") for name in _HOOKS},
    "run_event": ("event", "state", "logger"),
    "run_marker": ("event", "state", "logger"),
    "close": ("state", "logger"),
    "post_close": (),
}
# How alike a public method must be to a hook to be taken for a slip, from 0 to 1.
_NEAR_IN_NAME_AND_ARGUMENTS = 0.65  # (self, state, logger), and a name built like a hook's
_NEAR_IN_ARGUMENTS = 0.8  # (self, state, logger)
_NEAR = 0.89  # two arguments of any name
_PREFIXES = ("before", "after", "on_")
_SUFFIXES = ("start", "starts", "started", "end", "ends", "ended")


def overrides(member: object, name: str, base: type) -> bool:
    """Say whether a member's class, or the member itself, replaces a method of the base class."""
    if name in getattr(member, "__dict__", ()):
        return True
    return getattr(type(member), name) is not getattr(base, name)


def check_callback(callback: Callback[Any]) -> None:
    """Refuse a callback with a hook that could never be called as meant.

    Raises:
        HookError: A hook takes the wrong arguments, is a coroutine or a generator, or has a name
            so near to a hook's that it must be a slip.
    """
    if not isinstance(callback, Callback):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise HookError(
            f"{callback!r} ({type(callback).__name__}) is no Callback. "
            "Derive its class from stretto.core_events.Callback."
        )
    for name, arguments in _ARGUMENTS.items():
        if overrides(callback, name, Callback):
            _check_call(callback, name, arguments)
    classes: tuple[type, ...] = type(callback).__mro__
    for cls in classes:
        if _is_users_class(cls):
            for name, value in vars(cls).items():
                _check_name(cls, name, value)


def check_algorithm(algorithm: Algorithm[Any]) -> None:
    """Refuse an algorithm that could never act.

    Raises:
        HookError: `match` or `apply` takes the wrong arguments, or neither `events` nor `match`
            says when to act.
    """
    name = type(algorithm).__name__
    if not isinstance(algorithm, Algorithm):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise HookError(
            f"{algorithm!r} ({name}) is no Algorithm. "
            "Derive its class from stretto.core_events.Algorithm."
        )
    _check_call(algorithm, "apply", ("event", "state", "logger"))
    if overrides(algorithm, "match", Algorithm):
        _check_call(algorithm, "match", ("event", "state"))
    elif algorithm.events is None:
        raise HookError(
            f"{name} never acts: it has no events and does not override match. "
            f"Set events = (Event.…,) on it, or override match."
        )
    if isinstance(algorithm.events, str):  # an Event is a string too: one was given bare
        raise HookError(f"{name}.events is one event. Write events = ({algorithm.events!s},).")
    for event in algorithm.events or ():
        if not isinstance(event, Event):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise HookError(
                f"{name}.events holds {event!r}, which is no Event. "
                f"Write Event({event!r}) or a member."
            )


def _is_users_class(cls: type) -> bool:
    return issubclass(cls, Callback) and not cls.__module__.startswith("stretto.core_events.")


def _check_call(member: object, name: str, arguments: tuple[str, ...]) -> None:
    import inspect  # half of this package's import time, and torch has loaded it anyway

    method: Callable[..., Any] = getattr(member, name)
    wanted = f"{type(member).__name__}.{name}"
    if not callable(method):
        raise HookError(f"{wanted} is {method!r}, which cannot be called.")
    if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
        raise HookError(
            f"{wanted} is a coroutine or a generator: calling it would not run it. "
            "Make it a plain method."
        )
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # a builtin that does not tell
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise HookError(
            f"{wanted}{signature} cannot be called with ({', '.join(arguments)}): {error}. "
            f"Write it as def {name}({', '.join(('self', *arguments))})."
        ) from None


def _check_name(cls: type, name: str, value: object) -> None:
    """Refuse a public method that is nearly, but not quite, named like a hook."""
    if name.startswith("_") or name in _ARGUMENTS or not isinstance(value, FunctionType):
        return
    if hasattr(Callback, name):
        return
    import difflib  # only a class with methods of its own pays for it
    import inspect

    parameters = tuple(inspect.signature(value).parameters)[1:]
    plain = name.lower()
    if parameters == ("state", "logger"):
        shaped = plain.startswith(_PREFIXES) or plain.endswith(_SUFFIXES)
        cutoff = _NEAR_IN_NAME_AND_ARGUMENTS if shaped else _NEAR_IN_ARGUMENTS
    elif len(parameters) == 2 and not name.startswith("on_"):
        cutoff = _NEAR
    else:
        return
    near = difflib.get_close_matches(plain, _HOOKS, n=1, cutoff=cutoff)
    if near:
        raise HookError(
            f"{cls.__name__}.{name} is no hook, so it would never be called. "
            f"Did you mean {near[0]}? (A helper of that kind can begin with an underscore.)"
        )
