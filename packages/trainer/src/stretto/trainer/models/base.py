"""The class that a model derives from to be trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from torchmetrics import Metric

Loss = Tensor | Mapping[str, Tensor] | Sequence[Tensor]


class ComposerModel(nn.Module, ABC):
    """A module that knows its loss, how to evaluate itself and its metrics.

    A subclass gives `forward(batch)` and `loss(outputs, batch)`. The loss is the *mean* over the
    samples of the batch it is given (or over its loss-bearing tokens, with
    `accumulate_train_batch_on_tokens=True`); the trainer weights microbatches and ranks.
    """

    @abstractmethod
    def forward(self, batch: Any) -> Any:
        """Return the outputs for a batch as the dataloader gives it, labels included."""

    @abstractmethod
    def loss(self, outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> Loss:
        """Return the mean loss over a batch.

        A mapping or sequence of losses is trained on its entry `total` if there is one, else on
        the sum of its entries; each is logged as `loss/train/<name>`.
        """

    def eval_forward(self, batch: Any, outputs: Any | None = None) -> Any:
        """Return what the metrics need; by default the outputs of the forward pass.

        Args:
            batch: The batch.
            outputs: Outputs of a forward pass that was already made, to be used again.
        """
        return self(batch) if outputs is None else outputs

    def update_metric(self, batch: Any, outputs: Any, metric: Metric) -> None:
        """Update one metric from a batch and the outputs of `eval_forward`.

        Raises:
            ValueError: Unless a subclass that returns metrics overrides this.
        """
        raise ValueError(
            f"{type(self).__name__}.get_metrics returns {type(metric).__name__}, so the class must "
            "also define update_metric(batch, outputs, metric)"
        )

    def get_metrics(self, is_train: bool) -> dict[str, Metric]:
        """Return the metrics to compute by name; none by default.

        Args:
            is_train: Whether they are for training batches rather than evaluation.
        """
        return {}
