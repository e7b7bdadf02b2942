"""What a method may ask of the state it is given.

Every method names the smallest of these protocols that it needs, as the type parameter of
`stretto.core_events.Algorithm`. ``stretto.trainer.State`` satisfies all of them; so does any object
of yours with the same attributes, such as the one in `stretto.algorithms.testing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn
from torch.optim import Optimizer

from stretto.core_events import Timestamp

__all__ = [
    "SupportsBatch",
    "SupportsLoss",
    "SupportsMixing",
    "SupportsModel",
    "SupportsPrecision",
    "SupportsSurgery",
    "SupportsTargets",
    "TargetTransform",
]


class SupportsModel(Protocol):
    """A state with a model."""

    @property
    def model(self) -> nn.Module:
        """The user's model, not the wrapper that a parallel strategy may have put around it."""
        ...


class SupportsSurgery(SupportsModel, Protocol):
    """A state whose model may be rebuilt, with the optimizers that hold its parameters."""

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizers, in the user's order; empty before there are any."""
        ...


class SupportsBatch(Protocol):
    """A state with a batch.

    The batch is the device batch outside the microbatch events and the microbatch inside them.
    """

    @property
    def batch(self) -> Any:
        """The batch as it is."""
        ...

    def batch_get_item(self, key: Any) -> Any:
        """Return the part of the batch that `key` names (see `stretto.algorithms.keys`)."""
        ...

    def batch_set_item(self, key: Any, value: Any) -> None:
        """Replace the part of the batch that `key` names."""
        ...


class SupportsTargets(SupportsBatch, Protocol):
    """A state with a batch and with what the model made of it."""

    @property
    def outputs(self) -> Any:
        """What the model returned for the current microbatch."""
        ...


class SupportsMixing(SupportsModel, SupportsTargets, Protocol):
    """What methods that mix several samples need.

    Attributes:
        loss: The loss of the current microbatch, as the model returned it; it may be replaced.
    """

    loss: Any

    @property
    def algorithms(self) -> Sequence[object]:
        """All algorithms of the run, so that a second loss term gets the same treatment."""
        ...

    @property
    def seed(self) -> int:
        """The rank-zero seed plus the data-parallel rank."""
        ...

    @property
    def timestamp(self) -> Timestamp:
        """Progress of the training."""
        ...


@runtime_checkable
class SupportsLoss(Protocol):
    """A model that can compute its loss again for another target."""

    def loss(self, outputs: Any, batch: Any) -> Any:
        """Return the loss of `outputs` with the target in `batch`."""
        ...


@runtime_checkable
class SupportsPrecision(Protocol):
    """Something that opens the context in which forward passes and losses are computed."""

    def forward_context(self) -> Any:
        """Return a context manager, for instance one of `torch.autocast`."""
        ...


@runtime_checkable
class TargetTransform(Protocol):
    """A method that replaces the target just for the loss.

    A method that computes a further loss term (``MixUp(interpolate_loss=True)``) sends that term's
    target through every such method of the run, so that both terms are treated alike.
    """

    def transform_target(self, outputs: Any, target: Any) -> Any:
        """Return the target that the loss should see in place of `target`."""
        ...
