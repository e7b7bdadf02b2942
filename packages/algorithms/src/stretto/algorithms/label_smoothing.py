"""LabelSmoothing: ask for a little less than certainty.

Szegedy, Vanhoucke, Ioffe, Shlens and Wojna 2015, "Rethinking the Inception Architecture for
Computer Vision", arXiv:1512.00567. The target distribution ``y`` becomes ``(1 - a) y + a / K``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stretto.algorithms.keys import BatchKey, check_key
from stretto.algorithms.state import SupportsTargets
from stretto.algorithms.targets import (
    IGNORE_INDEX,
    TargetSwap,
    as_distribution,
    class_dim_of,
    distribution_dtype,
    get_logits,
    index_class_dim,
    is_index_target,
    mark_class_dim,
)
from stretto.core_events import Algorithm, Event

if TYPE_CHECKING:
    from stretto.core_events import Logger

__all__ = ["LabelSmoothing", "smooth_labels"]


def smooth_labels(
    logits: torch.Tensor,
    target: torch.Tensor,
    smoothing: float = 0.1,
    *,
    ignore_index: int = IGNORE_INDEX,
    class_dim: int | None = None,
) -> torch.Tensor:
    """Return the smoothed target, one probability for each logit.

    Only the logits' shape, type and device count. Nothing waits for the device, and `target` is
    not changed.

    A row keeps its sum: what it gives up is spread over its classes. So a row of zeros stays a row
    of zeros (no loss, no gradient), and smoothing commutes with mixing. Where rows are to be
    ignored, a mean should divide by the sum of the result; see `stretto.algorithms.targets`.

    Args:
        logits: What the model returned, of shape (N, C), (N, C, …) or (B, T, V).
        target: Class indices, shaped like the logits without the class axis; or probabilities,
            shaped like the logits.
        smoothing: The part spread over all classes, 0 to 1. Default: 0.1.
        ignore_index: Rows with this index become zeros. Default: -100, as torch's cross entropy.
        class_dim: The class axis of the logits. Default: found by the shapes; for probabilities
            the second axis.

    Returns:
        Probabilities shaped like the logits, of at least 32 bits.

    Raises:
        ValueError: `smoothing` is not between 0 and 1, or there is only one class.
        BatchFormatError: Logits and targets do not belong together.
    """
    _check_smoothing(smoothing)
    if not is_index_target(logits, target):
        dense = as_distribution(logits, target)
        dim = class_dim_of(target, class_dim)
        _check_classes(logits, dim)
        uniform = dense.mean(dim, keepdim=True)
        return mark_class_dim(torch.lerp(dense, uniform, smoothing), dim)
    dim = index_class_dim(logits, target, class_dim)
    _check_classes(logits, dim)
    ignored = target == ignore_index
    index = target.masked_fill(ignored, 0).long().unsqueeze(dim)
    rest = smoothing / logits.size(dim)
    off = torch.full_like(target, rest, dtype=distribution_dtype(logits))
    on = torch.full_like(off, 1 - smoothing + rest)
    smoothed = torch.empty_like(logits, dtype=off.dtype, requires_grad=False)
    smoothed.copy_(off.masked_fill_(ignored, 0).unsqueeze(dim))
    smoothed.scatter_(dim, index, on.masked_fill_(ignored, 0).unsqueeze(dim))
    return mark_class_dim(smoothed, dim)


class LabelSmoothing(Algorithm[SupportsTargets]):
    """Smooth the target for the loss, and only for the loss.

    At `Event.BEFORE_LOSS` the target becomes what `smooth_labels` returns, so the loss must accept
    probabilities, as ``torch.nn.functional.cross_entropy`` does; at `Event.AFTER_LOSS` the
    original is back, so that metrics see it. With `MixUp` it may be listed in either order.

    Args:
        smoothing: The part spread over all classes, 0 to 1. Default: 0.1.
        target_key: Where the target is in a batch. Default: 1.
        ignore_index: As in `smooth_labels`.
        class_dim: As in `smooth_labels`.

    Raises:
        ValueError: `smoothing` is not between 0 and 1.
        TypeError: `target_key` is no key.
    """

    events = (Event.BEFORE_LOSS, Event.AFTER_LOSS)

    def __init__(
        self,
        smoothing: float = 0.1,
        target_key: BatchKey = 1,
        *,
        ignore_index: int = IGNORE_INDEX,
        class_dim: int | None = None,
    ) -> None:
        _check_smoothing(smoothing)
        self.smoothing = smoothing
        self.target_key = check_key(target_key, "target_key")
        self.ignore_index = ignore_index
        self.class_dim = class_dim
        self._swap = TargetSwap()

    def transform_target(self, outputs: Any, target: torch.Tensor) -> torch.Tensor:
        """Return the smoothed target; other methods use it for loss terms of their own."""
        return smooth_labels(
            get_logits(outputs),
            target,
            self.smoothing,
            ignore_index=self.ignore_index,
            class_dim=self.class_dim,
        )

    def apply(self, event: Event, state: SupportsTargets, logger: Logger) -> None:
        """Smooth before the loss, restore after it."""
        del logger
        if event is Event.AFTER_LOSS:
            self._swap.restore(state, self.target_key)
            return
        target = state.batch_get_item(self.target_key)
        smoothed = self.transform_target(state.outputs, target)
        self._swap.put(state, self.target_key, target, smoothed)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_swap": TargetSwap()}


def _check_smoothing(smoothing: float) -> None:
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing={smoothing!r}. Give a number from 0 (none) to 1.")


def _check_classes(logits: torch.Tensor, dim: int) -> None:
    if logits.size(dim) < 2:
        raise ValueError(
            f"Logits of shape {tuple(logits.shape)} have one class on axis {dim}: nothing to "
            "smooth. Name the class axis with class_dim, or leave label smoothing out."
        )
