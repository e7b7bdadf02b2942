"""What algorithms did at an event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from stretto.core_events.event import Event

__all__ = ["NO_TRACES", "Trace", "Traces"]


class Trace(NamedTuple):
    """What one algorithm did at one event.

    Attributes:
        name: The algorithm's class name.
        event: The event.
        exit_code: What its `apply` returned.
        order: Its place among the algorithms that ran at the event, from 0.
        run: Whether it ran.
    """

    name: str = ""
    event: Event | None = None
    exit_code: int | None = None
    order: int | None = None
    run: bool = False


class Traces(Mapping[str, Trace]):
    """The traces of one event, by ``"<algorithm>/<event>"``; built when first read.

    A second algorithm of the same class is ``"<algorithm>#2/<event>"``.

    Args:
        event: The event.
        ran: The algorithms that ran, in order, each followed by its exit code.
    """

    __slots__ = ("_built", "_event", "_ran")

    def __init__(
        self, event: Event | None = None, ran: Sequence[tuple[object, int | None]] = ()
    ) -> None:
        self._event = event
        self._ran = ran
        self._built: dict[str, Trace] | None = None

    def _build(self) -> dict[str, Trace]:
        if self._built is None:
            self._built = {}
            counts: dict[str, int] = {}
            for order, (algorithm, exit_code) in enumerate(self._ran):
                name = type(algorithm).__name__
                counts[name] = counts.get(name, 0) + 1
                label = name if counts[name] == 1 else f"{name}#{counts[name]}"
                self._built[f"{label}/{self._event}"] = Trace(
                    name=name, event=self._event, exit_code=exit_code, order=order, run=True
                )
            self._ran = ()  # let go of the algorithms: a trace kept for long must not keep them
        return self._built

    def __getitem__(self, key: str) -> Trace:
        return self._build()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._build())

    def __len__(self) -> int:
        return len(self._ran) if self._built is None else len(self._built)

    def __repr__(self) -> str:
        return f"Traces({self._build()!r})"


NO_TRACES = Traces()
"""The traces of an event at which no algorithm ran; one object for all of them."""
