"""Which engine has a callback open, so that two engines never share one."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from stretto.core_events.callback import Callback
from stretto.core_events.dispatch import Runner
from stretto.core_events.errors import CallbackInUseError
from stretto.core_events.traces import NO_TRACES, Traces

__all__ = ["claiming", "release"]


class Owner(Protocol):
    """What owns callbacks: an engine."""

    @property
    def closed(self) -> bool:
        """Whether it has let go of them."""
        ...


# By the id of a callback: its engine, and the process in which that was so (a forked child finds
# its parent's engines here, but does not run them). An engine keeps its callbacks alive, so an id
# stays true for as long as the weak reference does.
_owners: dict[int, tuple[weakref.ref[Owner], int]] = {}
_refused: weakref.WeakKeyDictionary[Owner, set[int]] = weakref.WeakKeyDictionary()
"""By engine, the ids of the members that it may not have, and so never closes."""
_lock = threading.Lock()


def claiming(owner: Owner, members: Sequence[Callback[Any]], run: Runner | None) -> Runner:
    """Make the runner of ``INIT``: it takes the members for their engine, then runs the event.

    The runner does not keep the engine alive.
    """
    reference = weakref.ref(owner)

    def claim_and_run() -> Traces:
        _claim(reference, members)
        return NO_TRACES if run is None else run()

    return claim_and_run


def release(owner: Owner, members: Sequence[Callback[Any]]) -> list[Callback[Any]]:
    """Return the members that no other engine has open, which are now nobody's."""
    with _lock:
        refused = _refused.pop(owner, ())
        mine = [
            member
            for member in members
            if id(member) not in refused and _rival(member, owner) is None
        ]
        for member in mine:
            _owners.pop(id(member), None)
    return mine


def _claim(reference: weakref.ref[Owner], members: Sequence[Callback[Any]]) -> None:
    """Take all members, or none.

    Raises:
        CallbackInUseError: Another engine has one open.
    """
    with _lock:
        owner = reference()
        for member in members:
            if owner is not None and _rival(member, owner) is not None:
                _refused[owner] = {id(one) for one in members if _rival(one, owner) is not None}
                raise CallbackInUseError(
                    f"{type(member).__name__} is still open in another engine. "
                    "Close that engine (or trainer) first, or make another callback."
                )
        if owner is not None:
            _refused.pop(owner, None)
        for member in members:
            _owners[id(member)] = (reference, os.getpid())


def _rival(member: Callback[Any], owner: Owner | None) -> Owner | None:
    """Return the other engine, alive and open in this process, that has the member open."""
    reference, process = _owners.get(id(member), (None, 0))
    other = reference() if reference is not None and process == os.getpid() else None
    return None if other is None or other is owner or other.closed else other
