"""GradientClipping: keep one step from going too far.

* ``norm``: scale all gradients so that their common 2-norm is at most the threshold. Pascanu,
  Mikolov and Bengio 2012, "On the difficulty of training recurrent neural networks",
  arXiv:1211.5063.
* ``value``: clamp each element. Mikolov 2012, "Statistical Language Models Based on Neural
  Networks".
* ``adaptive``: scale each unit's gradient to at most the threshold times the norm of the unit's
  weights. Brock, De, Smith and Simonyan 2021, "High-Performance Large-Scale Image Recognition
  Without Normalization", arXiv:2102.06171.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from stretto.algorithms.state import SupportsModel
from stretto.algorithms.torch_shim import (
    foreach_mul_,
    foreach_norm,
    full_tensor,
    is_dtensor,
    local_tensor,
    mesh_of,
)
from stretto.core_events import Algorithm, Event

if TYPE_CHECKING:
    from stretto.core_events import Logger

__all__ = ["ClippingType", "GradientClipping", "NonFinite", "apply_gradient_clipping"]

ClippingType: TypeAlias = Literal["norm", "value", "adaptive"]
NonFinite: TypeAlias = Literal["zero", "keep", "raise"]

_WEIGHT_FLOOR = 1e-3  # of the paper: a unit whose weights are zero must still be able to move


# --- maths ---------------------------------------------------------------------------------------


def clip_by_norm(
    parameters: Sequence[nn.Parameter], threshold: float, non_finite: NonFinite = "zero"
) -> torch.Tensor:
    """Scale the gradients in place so that their common 2-norm is at most `threshold`.

    Args:
        parameters: Parameters with gradients, plain or sharded or both.
        threshold: The largest norm.
        non_finite: See `apply_gradient_clipping`.

    Returns:
        The norm before clipping, a plain 0-dim tensor that is the same on every rank.
    """
    gradients = _gradients(parameters)
    total = _total_norm(gradients)
    finite = torch.isfinite(total)
    if non_finite == "raise":
        _raise_unless(finite, total)
    # An infinite norm would make every finite gradient 0 and every infinite one NaN.
    norm = torch.where(finite, total, 0.0)
    for parameters_of_kind in _by_kind(parameters):
        clip_grads_with_norm_(parameters_of_kind, threshold, norm)
    if non_finite == "zero":
        _zero_where(~finite, gradients)
    return total


def clip_by_value(
    parameters: Sequence[nn.Parameter], threshold: float, non_finite: NonFinite = "zero"
) -> None:
    """Clamp each element of the gradients in place to [-threshold, threshold].

    Args:
        parameters: Parameters with gradients.
        threshold: The largest absolute value.
        non_finite: See `apply_gradient_clipping`; an infinite element is clamped like any other.
    """
    for gradient in _gradients(parameters):
        local = local_tensor(gradient)
        if non_finite == "zero":
            local.nan_to_num_(0.0, posinf=threshold, neginf=-threshold)
        elif non_finite == "raise":
            _raise_unless(~local.isnan().any(), local.sum())
        local.clamp_(-threshold, threshold)


def clip_adaptively(
    parameters: Sequence[nn.Parameter],
    threshold: float,
    non_finite: NonFinite = "zero",
) -> torch.Tensor:
    """Scale each unit's gradient in place to at most `threshold` times its weights' norm.

    A unit is a row, the slice of the first axis (an output channel); a tensor of one axis or none
    is one unit. The weights' norm counts as at least 0.001, so that units that are zero move too.

    Args:
        parameters: Parameters with gradients.
        threshold: The largest ratio of norms; 0.01 in the paper for a batch of 4,096.
        non_finite: See `apply_gradient_clipping`; here it is decided for each unit.

    Returns:
        The norm of all gradients before clipping, a plain 0-dim tensor.
    """
    vectors = [p for p in parameters if p.dim() <= 1 and not is_dtensor(p)]
    others = [p for p in parameters if p.dim() > 1 or is_dtensor(p)]
    squares: list[torch.Tensor] = []
    if vectors:
        gradients = _gradients(vectors)
        norms = torch.stack(foreach_norm(gradients))
        weights = torch.stack(foreach_norm([p.detach() for p in vectors]))
        factors = _adaptive_factors(weights, norms, threshold, non_finite)
        foreach_mul_(gradients, list(factors.unbind()))
        if non_finite == "zero":
            for gradient, bad in zip(gradients, (~norms.isfinite()).unbind(), strict=True):
                _zero_where(bad, [gradient])
        squares.append(norms.float().square().sum())
    for parameter in others:
        (gradient,) = _gradients([parameter])
        norms = _unit_norms(gradient)
        factors = _adaptive_factors(_unit_norms(parameter.detach()), norms, threshold, non_finite)
        gradient.mul_(factors.to(gradient.dtype))
        if non_finite == "zero":
            _zero_where(~norms.isfinite(), [gradient])
        squares.append(full_tensor(norms.float().square().sum()))
    if not squares:
        return torch.zeros(())
    first = squares[0].device
    return torch.stack([square.to(first) for square in squares]).sum().sqrt()
