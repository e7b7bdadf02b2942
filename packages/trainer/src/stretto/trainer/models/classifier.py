"""A classifier around any module that returns logits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from stretto.trainer._loose import update_metric
from stretto.trainer.models.base import ComposerModel
from stretto.trainer.models.loss import soft_cross_entropy

if TYPE_CHECKING:
    from torchmetrics import Metric

Metrics = "Metric | MetricCollection | Mapping[str, Metric] | Sequence[Metric]"


class ComposerClassifier(ComposerModel):
    """Trains a module on batches of (inputs, labels).

    Args:
        module: Maps inputs (N, ...) to logits (N, C, ...).
        num_classes: C, for the default metrics; `module.num_classes` if it has one.
        train_metrics: Metrics of training batches; accuracy by default, if C is known.
        val_metrics: Metrics of evaluation; cross-entropy and, if C is known, accuracy by default.
        loss_fn: `(logits, labels) -> mean loss`; labels are indices or probabilities.

    Raises:
        ValueError: If `num_classes` is below 1.
    """

    def __init__(
        self,
        module: nn.Module,
        num_classes: int | None = None,
        train_metrics: Any = None,
        val_metrics: Any = None,
        loss_fn: Callable[[Any, Any], Tensor] = soft_cross_entropy,
    ) -> None:
        super().__init__()
        if num_classes is None:
            declared = getattr(module, "num_classes", None)
            num_classes = declared if isinstance(declared, int) else None
        if num_classes is not None and num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, got {num_classes}")
        self.module = module
        self.num_classes = num_classes
        self._loss_fn = loss_fn
        self._given = {True: train_metrics, False: val_metrics}

    def forward(self, batch: Any) -> Any:
        """Return the logits for the inputs of a batch."""
        return self.module(batch[0])

    def loss(self, outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the mean loss of the logits against the labels of a batch."""
        return self._loss_fn(outputs, batch[1], *args, **kwargs)

    def update_metric(self, batch: Any, outputs: Any, metric: Metric) -> None:
        """Update a metric; labels that are probabilities count as their likeliest class."""
        labels = batch[1]
        if labels.is_floating_point() and labels.shape == outputs.shape:
            from stretto.trainer.metrics import CrossEntropy

            if not isinstance(metric, CrossEntropy):
                labels = labels.argmax(dim=1)
        update_metric(metric, outputs, labels)

    def get_metrics(self, is_train: bool) -> dict[str, Metric]:
        """Return fresh metrics for training or evaluation by name."""
        given = self._given[is_train]
        if given is not None:
            return {name: copy.deepcopy(m) for name, m in _name_metrics(given).items()}
        return self._default_metrics(is_train)

    def _default_metrics(self, is_train: bool) -> dict[str, Metric]:
        metrics: dict[str, Metric] = {}
        if not is_train:
            from stretto.trainer.metrics import CrossEntropy

            metrics["CrossEntropy"] = CrossEntropy()
        if self.num_classes is not None:
            from torchmetrics.classification import MulticlassAccuracy

            accuracy = MulticlassAccuracy(self.num_classes, average="micro", validate_args=False)
            metrics["MulticlassAccuracy"] = cast("Metric", accuracy)
        return metrics


def _name_metrics(given: Any) -> dict[str, Metric]:
    from torchmetrics import Metric

    if isinstance(given, Metric):
        return {type(given).__name__: given}
    if isinstance(given, Mapping):
        return dict(cast("Mapping[str, Metric]", given))
    if hasattr(given, "items"):  # a MetricCollection
        return dict(given.items())
    named: dict[str, Metric] = {}
    for metric in cast("Sequence[Metric]", given):
        name = type(metric).__name__
        if name in named:
            raise ValueError(f"two metrics are called {name}: pass a mapping with their names")
        named[name] = metric
    return named
