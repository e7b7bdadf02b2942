"""Losses on their way to the loggers, without stopping the device for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from stretto.trainer._loose import is_mapping, is_sequence, kind_of, to_numbers

if TYPE_CHECKING:
    from stretto.trainer.parallel.strategy import ParallelStrategy

TOTAL = "total"


def name_losses(loss: Any) -> dict[str, Tensor]:
    """Return the losses that a model gave by name, the one to train on as `total`.

    Args:
        loss: A tensor; or a mapping or sequence of tensors, whose `total` is its entry of that
            name or else the sum of its entries.

    Raises:
        ValueError: If it is empty or not made of scalar tensors.
    """
    if isinstance(loss, Tensor):
        return {TOTAL: loss}
    named: dict[str, Any] = {}
    if is_mapping(loss):
        named = dict(loss)
    elif is_sequence(loss):
        named = {f"loss{place}": part for place, part in enumerate(loss)}
    if not named or not all(isinstance(part, Tensor) for part in named.values()):
        raise ValueError(
            f"model.loss must return a tensor, or a mapping or sequence of tensors, got "
            f"{kind_of(loss)}"
        )
    if TOTAL not in named:
        named[TOTAL] = torch.stack([part.reshape(()) for part in named.values()]).sum()
    return named


def resolve_scalars(values: list[Any]) -> list[float]:
    """Turn pending scalars into numbers with one transfer for each device."""
    numbers: list[float] = [0.0] * len(values)
    remote: dict[torch.device, list[int]] = {}
    for place, value in enumerate(values):
        if isinstance(value, Tensor) and value.device.type != "cpu":
            remote.setdefault(value.device, []).append(place)
        else:
            numbers[place] = float(cast("Any", value() if callable(value) else value))
    for places in remote.values():
        stacked = torch.stack([cast("Tensor", values[p]).detach().float() for p in places])
        for place, number in zip(places, to_numbers(stacked), strict=True):
            numbers[place] = number
    return numbers


class SharedLoss:
    """A loss of one batch over all ranks; a number once the ranks have summed it.

    Args:
        part: This rank's share of the mean.
        ranks: How many ranks share it.
    """

    __slots__ = ("_ranks", "part", "value")

    def __init__(self, part: Tensor, ranks: int) -> None:
        self._ranks = ranks
        self.part: Tensor | None = part
        self.value = float("nan")

    def __call__(self) -> float:
        """Return the number; this rank's estimate where the run broke off before the sum."""
        return self.value if self.part is None else float(self.part) * self._ranks


class LossShares:
    """Sums logged losses over the ranks, many batches at once.

    Every rank must add the same losses and call `resolve` at the same places.

    Args:
        strategy: Reduces over the ranks.
        active: Whether any rank logs at all.
    """

    def __init__(self, strategy: ParallelStrategy, *, active: bool) -> None:
        self._strategy = strategy
        self._active = active
        self._waiting: list[SharedLoss] = []

    def add(self, parts: Mapping[str, Tensor]) -> dict[str, SharedLoss]:
        """Take this rank's part of a batch's losses; return what to log for them."""
        if not self._active:
            return {}
        ranks = self._strategy.topology.data_parallel_size
        shared = {name: SharedLoss(part, ranks) for name, part in parts.items()}
        self._waiting.extend(shared.values())
        return shared

    def resolve(self) -> None:
        """Sum what is waiting over the ranks."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        parts = torch.stack([cast("Tensor", loss.part).reshape(()).float() for loss in waiting])
        ranks = self._strategy.topology.data_parallel_size
        sums = to_numbers(self._strategy.mean_loss(parts) * ranks)
        for loss, value in zip(waiting, sums, strict=True):
            loss.value, loss.part = value, None
