"""torch and torchmetrics where their types are loose or their names private: the loop's part.

Thin calls with full types and no policy, like `_torch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchmetrics import Metric

_torch: Any = torch


def to_numbers(tensor: Tensor) -> list[float]:
    """Return the elements of a tensor as numbers; waits for its device."""
    return cast("Any", tensor.detach()).reshape(-1).tolist()


def set_torch_seed(seed: int) -> None:
    """Seed torch's generators on all devices."""
    _torch.manual_seed(seed)


def multiply_all_(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiply tensors in place with few launches."""
    _torch._foreach_mul_(list(tensors), factor)


def add_all_(tensors: Sequence[Tensor], others: Sequence[Tensor], factor: float) -> None:
    """Add `factor` times others to tensors in place with few launches."""
    _torch._foreach_add_(list(tensors), list(others), alpha=factor)


def add_all(tensors: Sequence[Tensor], others: Sequence[Tensor], factor: float) -> list[Tensor]:
    """Return tensors plus `factor` times others, with few launches."""
    return list(_torch._foreach_add(list(tensors), list(others), alpha=factor))


def compute_metric(metric: Metric) -> Any:
    """Return what a metric computes."""
    return cast("Any", metric).compute()


def update_metric(metric: Metric, outputs: Any, labels: Any) -> None:
    """Show a metric outputs and labels."""
    cast("Any", metric).update(outputs, labels)


def add_metric_state(metric: Metric, name: str, default: Tensor) -> None:
    """Give a metric a state that is summed over ranks."""
    cast("Any", metric).add_state(name, default=default, dist_reduce_fx="sum")


def metric_states(metric: Metric) -> dict[str, Any]:
    """Return the states of a metric by name."""
    names = cast("dict[str, Any]", cast("Any", metric)._defaults)
    return {name: getattr(metric, name) for name in names}


def is_sequence(value: object) -> TypeGuard[tuple[Any, ...] | list[Any]]:
    """Whether a value is a tuple or a list."""
    return isinstance(value, tuple | list)


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether a value is a mapping."""
    return isinstance(value, Mapping)


def length_of(value: object) -> int | None:
    """Return the length of a value, None where it has none."""
    try:
        return len(cast("Any", value))
    except (TypeError, NotImplementedError):  # some datasets raise the latter
        return None


def kind_of(value: object) -> str:
    """Return the name of a value's class, for messages."""
    return type(value).__name__
