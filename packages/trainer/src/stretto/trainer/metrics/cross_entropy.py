"""Mean cross-entropy over everything seen, on all ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from stretto.trainer._loose import add_metric_state
from stretto.trainer.models.loss import soft_cross_entropy


class CrossEntropy(Metric):
    """The mean cross-entropy of logits over all positions seen.

    Args:
        ignore_index: Label whose positions do not count.
        dist_sync_on_step: Whether to reduce over ranks at every update.
    """

    full_state_update = False
    sum_loss: Tensor
    total: Tensor

    def __init__(self, ignore_index: int = -100, dist_sync_on_step: bool = False) -> None:
        super().__init__(dist_sync_on_step=dist_sync_on_step)
        self.ignore_index = ignore_index
        add_metric_state(self, "sum_loss", torch.tensor(0.0))
        add_metric_state(self, "total", torch.tensor(0))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add logits of shape (N, C, ...) and labels: indices (N, ...) or probabilities."""
        logits = preds.float()
        losses = soft_cross_entropy(logits, target, ignore_index=self.ignore_index, reduction="sum")
        counted = target.any(dim=1) if target.ndim == logits.ndim else target != self.ignore_index
        self.sum_loss = self.sum_loss + losses
        self.total = self.total + torch.count_nonzero(counted)

    def compute(self) -> Tensor:
        """Return the mean; not a number if nothing was seen."""
        return self.sum_loss / self.total
