"""The base class for what changes how a model is trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stretto.core_events.event import Event
from stretto.core_events.stage import Stage

if TYPE_CHECKING:
    from stretto.core_events.logging import Logger

__all__ = ["Algorithm"]

StateT = TypeVar("StateT", contravariant=True)


class Algorithm(ABC, Generic[StateT]):
    """A training method: it acts on the state at the events it names.

    Say at which events with `events`; the engine then never asks at any other. Override `match`
    to decide at run time, within `events`, or at every event where `events` is None.

    The type parameter says what the algorithm needs of the state, usually a Protocol with
    read-only properties.

    Attributes:
        events: The events at which this algorithm may act; None asks `match` at every event.
        stage: `Stage.NORMAL`, or `Stage.PERSIST` to run last among the algorithms.
        run_before: Tags (or class names) of algorithms that must run after this one.
        run_after: Tags (or class names) of algorithms that must run before this one.
        tags: Names by which others may refer to this algorithm, besides its class name.
    """

    events: Collection[Event] | None = None
    stage: Stage = Stage.NORMAL
    run_before: Collection[str] = ()
    run_after: Collection[str] = ()
    tags: Collection[str] = ()

    def match(self, event: Event, state: StateT) -> bool:
        """Say whether to act at `event` now. Default: it is one of `events`."""
        return self.events is not None and event in self.events

    @abstractmethod
    def apply(self, event: Event, state: StateT, logger: Logger) -> int | None:
        """Act. The number returned, if any, is kept as the exit code in the event's traces."""

    @property
    def find_unused_parameters(self) -> bool:
        """Whether some parameters may get no gradient, which DDP must know. Default: no."""
        return False

    @property
    def backwards_create_graph(self) -> bool:
        """Whether the backward pass must itself be differentiable. Default: no."""
        return False

    @staticmethod
    def required_on_load() -> bool:
        """Whether weights of a trained model load only after this has been applied. Default: no."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint should keep of this algorithm. Default: nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        del state
