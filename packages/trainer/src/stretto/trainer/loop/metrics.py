"""Compute metrics at the end of a pass and log them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from stretto.trainer._loose import compute_metric, to_numbers

if TYPE_CHECKING:
    from torchmetrics import Metric

    from stretto.core_events import Logger
    from stretto.trainer.state import State


def place_metrics(metrics: Mapping[str, Metric], state: State, *, reset: bool = True) -> None:
    """Bring metrics to the device and, unless told otherwise, forget what they saw."""
    for metric in metrics.values():
        metric.to(state.device.torch_device)
        if reset:
            metric.reset()


def log_metrics(metrics: Mapping[str, Metric], label: str, state: State, logger: Logger) -> None:
    """Compute metrics over all ranks, keep the values on the state and log them.

    Args:
        metrics: By name; every rank must have the same ones.
        label: The dataloader's, for the keys `metrics/<label>/<name>`.
        state: The run; values are kept in `metric_values`.
        logger: Where they go.
    """
    if not metrics:
        return
    values = {
        name: number
        for own_name, metric in metrics.items()
        for name, number in _numbers(own_name, _compute(metric))
    }
    state.metric_values[label] = values
    logger.log_metrics({f"metrics/{label}/{name}": value for name, value in values.items()})


def _compute(metric: Metric) -> Any:
    with warnings.catch_warnings():
        # Every sample of this rank may have been padding: the ranks together have seen some.
        warnings.filterwarnings("ignore", message=".*was called before the.*")
        return compute_metric(metric)


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Name the numbers in what a metric computed: one, several by key, or several by place."""
    if isinstance(value, Mapping):
        for key, entry in cast("Mapping[str, Any]", value).items():
            yield from _numbers(f"{name}/{key}", entry)
    elif isinstance(value, Tensor) and value.numel() != 1:
        for place, entry in enumerate(to_numbers(value)):
            yield f"{name}/{place}", entry
    else:
        yield name, float(value)
