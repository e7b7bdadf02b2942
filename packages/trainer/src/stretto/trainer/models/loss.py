"""Cross-entropy for labels that are class indices or distributions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def soft_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Return the cross-entropy of logits against class indices or class probabilities.

    Args:
        input: Logits of shape (N, C, ...).
        target: Indices of shape (N, ...), or probabilities of shape (N, C, ...).
        weight: Weight of each class, of shape (C,).
        ignore_index: Index whose positions do not count. Among probabilities the positions that
            are zero everywhere play that part.
        reduction: "mean" over the positions that count, "sum", or "none".

    Returns:
        A scalar, or a tensor of shape (N, ...) for "none".

    Raises:
        ValueError: If the shapes do not fit or the reduction is unknown.
    """
    if target.ndim == input.ndim - 1:
        return functional.cross_entropy(
            input, target, weight=weight, ignore_index=ignore_index, reduction=reduction
        )
    if target.shape != input.shape:
        raise ValueError(
            f"target of shape {tuple(target.shape)} fits logits of shape {tuple(input.shape)} "
            "neither as indices nor as probabilities"
        )
    target = target.to(input.dtype) if not target.is_floating_point() else target
    losses = functional.cross_entropy(input, target, weight=weight, reduction="none")
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if reduction == "mean":
        return losses.sum() / torch.count_nonzero(target.any(dim=1)).clamp_(min=1)
    raise ValueError(f"reduction must be mean, sum or none, got {reduction!r}")
