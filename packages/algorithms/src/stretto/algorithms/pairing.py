"""Two targets for every sample: how methods that mix samples carry them to the loss."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from stretto.algorithms.keys import BatchKey
from stretto.algorithms.state import (
    SupportsLoss,
    SupportsMixing,
    SupportsPrecision,
    TargetTransform,
)

__all__ = ["PairedTargets", "Pairing", "combine_losses", "loss_of_partners"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTargets:
    """The samples' own targets, their partners' targets and the partners' shares."""

    first: torch.Tensor
    second: torch.Tensor
    mixing: float | torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """How the samples of a device batch were paired.

    While the batch is on its way to the model, its target is `tickets`: the samples' numbers, in a
    shape that no target has. Whatever cuts the batch into microbatches along the first axis, in
    whatever order, by view or by copy, hands each microbatch the numbers of its own samples.
    """

    target: torch.Tensor
    partners: torch.Tensor
    mixing: float | torch.Tensor
    tickets: torch.Tensor

    def holds(self, target: object) -> bool:
        """Say whether a microbatch's target is made of tickets."""
        return (
            isinstance(target, torch.Tensor)
            and target.dtype is torch.int64
            and target.dim() == self.tickets.dim()
            and target.shape[1:] == self.tickets.shape[1:]
        )

    def select(self, tickets: torch.Tensor) -> PairedTargets:
        """Return what belongs to the samples with these tickets."""
        where = tickets.device
        if tickets is self.tickets:
            first, partners, mixing = self.target, self.partners, self.mixing
        else:
            rows = tickets.reshape(-1).to(self.target.device)
            first, partners = self.target[rows], self.partners[rows]
            mixing = self.mixing[rows] if isinstance(self.mixing, torch.Tensor) else self.mixing
        return PairedTargets(
            first=first.to(where),
            second=self.target[partners].to(where),
            mixing=mixing.to(where) if isinstance(mixing, torch.Tensor) else mixing,
        )


def loss_of_partners(state: SupportsMixing, key: BatchKey, targets: PairedTargets) -> Any:
    """Return the loss of the current outputs for the partners' targets.

    It is computed as the first one was: in the same precision, and through the same methods that
    change targets for the loss (label smoothing). The batch is as before afterwards.
    """
    target = targets.second
    for algorithm in state.algorithms:
        if isinstance(algorithm, TargetTransform):
            target = algorithm.transform_target(state.outputs, target)
    state.batch_set_item(key, target)
    try:
        with _precision_context(state):
            return cast("SupportsLoss", state.model).loss(state.outputs, state.batch)
    finally:
        state.batch_set_item(key, targets.first)


def combine_losses(first: Any, second: Any, mixing: float) -> Any:
    """Return ``(1 - mixing) * first + mixing * second`` of tensors, or of each of several."""
    if isinstance(first, Mapping):
        losses = cast("Mapping[str, Any]", first)
        return {name: combine_losses(loss, second[name], mixing) for name, loss in losses.items()}
    if isinstance(first, (list, tuple)):
        pairs = zip(cast("list[Any]", first), second, strict=True)
        return [combine_losses(one, two, mixing) for one, two in pairs]
    return (1 - mixing) * first + mixing * second


def _precision_context(state: object) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which the first loss was computed, where the state knows of one."""
    precision = getattr(state, "precision", None)
    if isinstance(precision, SupportsPrecision):
        return precision.forward_context()
    return contextlib.nullcontext()
