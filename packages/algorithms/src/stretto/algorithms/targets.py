"""Targets of a classification: class indices, distributions over classes, and where the axis is.

The class axis of logits is the second for ``(N, C)`` and ``(N, C, …)`` with indices ``(N, …)``,
as torch's cross entropy has it, and the last for a language model's ``(B, T, V)`` with indices
``(B, T)``. Where both would fit, torch's convention holds; `class_dim` says otherwise.

A row of a distribution that belongs to an ignored index is all zeros: it adds nothing to a cross
entropy ``-(target * log_softmax(logits)).sum()`` and its gradient is zero. A mean over such a
target should divide by ``target.sum()``, which is the number of rows that count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch

from stretto.algorithms.errors import BatchFormatError
from stretto.algorithms.keys import BatchKey

__all__ = [
    "TargetSwap",
    "as_distribution",
    "class_dim_of",
    "get_logits",
    "index_class_dim",
    "interpolate_targets",
    "is_index_target",
]

IGNORE_INDEX = -100
_MARK = "stretto_class_dim"


class _Batched(Protocol):
    def batch_get_item(self, key: Any) -> Any: ...

    def batch_set_item(self, key: Any, value: Any) -> None: ...


def get_logits(outputs: Any) -> torch.Tensor:
    """Return the logits among a model's outputs: a tensor, or what is called ``logits`` there.

    Raises:
        BatchFormatError: There is no such thing.
    """
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        logits = cast("Mapping[str, Any]", outputs).get("logits")
    else:
        logits = getattr(cast("object", outputs), "logits", None)
    if isinstance(logits, torch.Tensor):
        return logits
    raise BatchFormatError(
        f"The model returned a {type(cast('object', outputs)).__name__}, in which no logits can be "
        "found. Return a tensor, or a mapping or an object with `logits`."
    )


def is_index_target(logits: torch.Tensor, target: torch.Tensor) -> bool:
    """Say whether `target` holds class indices, rather than a value for each logit."""
    return not target.is_floating_point() and target.shape != logits.shape


def index_class_dim(
    logits: torch.Tensor, target: torch.Tensor, class_dim: int | None = None
) -> int:
    """Return the class axis of `logits`, counted from the front, for an index target.

    Args:
        logits: What the model returned.
        target: Class indices, shaped like the logits without their class axis.
        class_dim: The axis if it is known. Default: found by the shapes.

    Raises:
        BatchFormatError: The shapes don't fit.
    """
    if logits.dim() == target.dim() + 1:
        candidates = (1, logits.dim() - 1) if class_dim is None else (class_dim % logits.dim(),)
        for dim in candidates:
            if logits.shape[:dim] + logits.shape[dim + 1 :] == target.shape:
                return dim
    where = "" if class_dim is None else f" with class_dim={class_dim}"
    raise BatchFormatError(
        f"Logits of shape {tuple(logits.shape)} and integer targets of shape {tuple(target.shape)} "
        f"do not belong together{where}. Class indices have the shape of the logits without the "
        "class axis: (N) for (N, C), (N, …) for (N, C, …), (B, T) for (B, T, V)."
    )


def class_dim_of(target: torch.Tensor, class_dim: int | None = None) -> int:
    """Return the class axis of a distribution: as told, as this package made it, or the second.

    Raises:
        BatchFormatError: It has one axis only, which is the batch's as far as anyone can tell.
    """
    if class_dim is not None:
        return class_dim % target.dim()
    known = getattr(target, _MARK, None)
    if known is None and target.dim() < 2:
        raise BatchFormatError(
            f"Targets of shape {tuple(target.shape)} have no class axis besides the batch's. Give "
            "class indices, or (N, C) probabilities, or name the axis with class_dim."
        )
    return 1 if known is None else int(known)


def mark_class_dim(target: torch.Tensor, class_dim: int) -> torch.Tensor:
    """Note on a distribution which axis is the classes', for the method that comes next."""
    setattr(target, _MARK, class_dim)
    return target


def as_distribution(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a target with a value for each logit, as floating numbers of at least 32 bits."""
    if target.shape != logits.shape:
        raise BatchFormatError(
            f"Targets of shape {tuple(target.shape)} and type {target.dtype} for logits of shape "
            f"{tuple(logits.shape)}: give class indices, or one value for each logit."
        )
    return target.to(distribution_dtype(logits))


def distribution_dtype(logits: torch.Tensor) -> torch.dtype:
    """Return the type for distributions: small probabilities would be lost in 16 bits."""
    return torch.promote_types(logits.dtype, torch.float32)


def interpolate_targets(
    logits: torch.Tensor | None,
    first: torch.Tensor,
    second: torch.Tensor,
    mixing: float | torch.Tensor,
    *,
    class_dim: int | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> torch.Tensor:
    """Return ``(1 - mixing) * first + mixing * second`` as distributions.

    Args:
        logits: What the model returned; its shape gives the number of classes. Floating targets
            are mixed as they are, and do without.
        first: Targets: indices, distributions, or any floating values.
        second: Targets like `first`.
        mixing: The second's weight, one number or one for each sample.
        class_dim: The class axis. Default: found by the shapes.
        ignore_index: Index whose rows become zeros. Default: -100.
    """
    weight = _per_sample(mixing, first.dim())
    if logits is None or not is_index_target(logits, first):
        if logits is not None and not first.is_floating_point():
            first, second = as_distribution(logits, first), as_distribution(logits, second)
        mixed = torch.lerp(first, second, _cast(weight, first.dtype))
        return mixed if class_dim is None else mark_class_dim(mixed, class_dim % mixed.dim())
    dim = index_class_dim(logits, first, class_dim)
    mixed = torch.zeros_like(logits, dtype=distribution_dtype(logits), requires_grad=False)
    for target, share in ((first, 1 - weight), (second, weight)):
        ignored = target == ignore_index
        index = target.masked_fill(ignored, 0).long().unsqueeze(dim)
        source = torch.zeros_like(target, dtype=mixed.dtype).add_(share)
        mixed.scatter_add_(dim, index, source.masked_fill_(ignored, 0).unsqueeze(dim))
    return mark_class_dim(mixed, dim)


def _per_sample(mixing: float | torch.Tensor, dims: int) -> float | torch.Tensor:
    if isinstance(mixing, torch.Tensor):
        return mixing.reshape(mixing.shape + (1,) * (dims - mixing.dim()))
    return mixing


def _cast(weight: float | torch.Tensor, dtype: torch.dtype) -> Any:
    return weight.to(dtype) if isinstance(weight, torch.Tensor) else weight


class TargetSwap:
    """Puts a stand-in for the target into the batch, for the loss, and the original back after it.

    The original goes back only if the stand-in is still there: whoever has put something else in
    its place in the meantime keeps it.
    """

    def __init__(self) -> None:
        self._original: torch.Tensor | None = None
        self._stand_in: torch.Tensor | None = None
        self._always = False

    def put(
        self, state: _Batched, key: BatchKey, original: torch.Tensor, stand_in: torch.Tensor
    ) -> None:
        """Replace the target, and remember the original."""
        state.batch_set_item(key, stand_in)
        self._original, self._stand_in = original, stand_in
        # A getter that makes a new tensor at each call leaves nothing to recognise.
        self._always = state.batch_get_item(key) is not stand_in

    def restore(self, state: _Batched, key: BatchKey) -> None:
        """Put the original back, and forget it."""
        if self._original is not None and (
            self._always or state.batch_get_item(key) is self._stand_in
        ):
            state.batch_set_item(key, self._original)
        self._original = self._stand_in = None
