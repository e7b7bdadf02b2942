"""Changes to the order in which algorithms run at an event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stretto.core_events.algorithm import Algorithm
from stretto.core_events.event import Event

__all__ = ["AlgorithmPass", "reverse_on_after_events", "sort_to_back", "sort_to_front"]

AlgorithmPass = Callable[[Sequence[Algorithm[Any]], Event], Sequence[Algorithm[Any]]]
"""Takes the algorithms that may act at an event and returns them in the order wanted.

Passes run when the engine builds its table, not at each event.
"""

ItemT = TypeVar("ItemT")


def sort_to_front(list_to_sort: Sequence[ItemT], cls: type | tuple[type, ...]) -> list[ItemT]:
    """Return the list with the instances of `cls` first, otherwise in the same order."""
    return sorted(list_to_sort, key=lambda item: not isinstance(item, cls))


def sort_to_back(list_to_sort: Sequence[ItemT], cls: type | tuple[type, ...]) -> list[ItemT]:
    """Return the list with the instances of `cls` last, otherwise in the same order."""
    return sorted(list_to_sort, key=lambda item: isinstance(item, cls))


def reverse_on_after_events(
    algorithms: Sequence[Algorithm[Any]], event: Event
) -> Sequence[Algorithm[Any]]:
    """Undo in reverse what was done on the way in: first in at ``BEFORE_X``, last out after it."""
    return algorithms[::-1] if event.name.startswith("AFTER_") else algorithms
