"""How long each callback and algorithm takes at each event."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stretto.core_events.event import Event

__all__ = ["TimeRecorder", "TimeSpent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """What one member cost at one event.

    Attributes:
        name: The member's class name; a second one of a class gets ``#2``.
        event: The event.
        count: How often it was called.
        total: Seconds in all.
        maximum: Seconds of the longest call.
    """

    name: str
    event: Event
    count: int
    total: float
    maximum: float


class TimeRecorder:
    """Measures every call that an engine makes, once given to `Engine.record_time`.

    Args:
        clock: Returns seconds. Default: `time.perf_counter`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._names: dict[int, str] = {}
        self._members: list[object] = []
        self._spent: dict[tuple[int, Event], list[Any]] = {}

    def wrap(
        self, call: Callable[..., Any], member: object, event: Event, *, is_call: bool = True
    ) -> Callable[..., Any]:
        """Return a function that makes the same call and records how long it took.

        Args:
            call: What the engine would call.
            member: The callback or algorithm that it belongs to.
            event: The event.
            is_call: Whether it counts as a call of the member; an algorithm's `match` does not,
                only its time does.
        """
        self._learn_name(member)
        record = self._spent.setdefault((id(member), event), [0, 0.0, 0.0])
        clock = self._clock

        def timed(*arguments: Any) -> Any:
            start = clock()
            try:
                return call(*arguments)
            finally:
                seconds = max(0.0, clock() - start)
                record[0] += is_call
                record[1] += seconds
                record[2] = max(record[2], seconds)

        timed.__wrapped__ = call  # pyright: ignore[reportFunctionMemberAccess]
        return timed

    def spent(self) -> list[TimeSpent]:
        """Return what was measured, the most expensive first; what took no part is left out."""
        found = [
            TimeSpent(
                name=self._names[member],
                event=event,
                count=count,
                total=total,
                maximum=maximum,
            )
            for (member, event), (count, total, maximum) in self._spent.items()
            if count or total
        ]
        return sorted(found, key=lambda spent: -spent.total)

    def table(self) -> str:
        """Return what was measured as lines of text, the most expensive first."""
        rows = [("member", "event", "calls", "total s", "max ms")]
        rows += [
            (s.name, s.event.value, str(s.count), f"{s.total:.6f}", f"{s.maximum * 1e3:.3f}")
            for s in self.spent()
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )

    def _learn_name(self, member: object) -> None:
        if id(member) in self._names:
            return
        name = type(member).__name__
        same = sum(type(other).__name__ == name for other in self._members)
        self._names[id(member)] = name if same == 0 else f"{name}#{same + 1}"
        self._members.append(member)  # keeps the id from being given to another object
