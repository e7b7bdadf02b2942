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
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from stretto.algorithms.state import SupportsModel
from stretto.algorithms.torch_shim import (
    foreach_mul_,
    foreach_norm,
    full_tensor,
    local_tensor,
    mesh_of,
    norm_of,
    row_norms,
)
from stretto.core_events import Algorithm, Event

if TYPE_CHECKING:
    from stretto.core_events import Logger

__all__ = ["ClippingType", "GradientClipping", "NonFinite", "apply_gradient_clipping"]

ClippingType: TypeAlias = Literal["norm", "value", "adaptive"]
NonFinite: TypeAlias = Literal["zero", "keep", "raise"]

Pair: TypeAlias = tuple[nn.Parameter, torch.Tensor]

_WEIGHT_FLOOR = 1e-3  # of the paper: a unit whose weights are zero must still be able to move


# --- maths ---------------------------------------------------------------------------------------


def clip_by_norm(
    parameters: Iterable[nn.Parameter], threshold: float, non_finite: NonFinite = "zero"
) -> torch.Tensor:
    """Scale the gradients in place so that their common 2-norm is at most `threshold`.

    Args:
        parameters: Parameters, plain or sharded or both; those without a gradient are passed over.
        threshold: The largest norm.
        non_finite: As in `apply_gradient_clipping`.

    Returns:
        The norm before clipping: a plain 0-dim tensor, the same on every rank.

    Raises:
        RuntimeError: The norm is not finite, and `non_finite` is ``raise``.
    """
    kinds = _by_mesh(_with_gradient(parameters))
    total = _root_of_squares([_norm_of_kind([g for _, g in pairs]) for pairs in kinds])
    finite = torch.isfinite(total)
    if non_finite == "raise":
        _raise_unless(finite, "The norm of the gradients")
    # Not with an infinite norm: all finite gradients would become 0 and the infinite ones NaN.
    norm = torch.where(finite, total, 0.0)
    for pairs in kinds:
        clip_grads_with_norm_([parameter for parameter, _ in pairs], threshold, norm)
        if non_finite == "zero":
            for _, gradient in pairs:
                _zero_where(~finite, local_tensor(gradient))
    return total


def clip_by_value(
    parameters: Iterable[nn.Parameter], threshold: float, non_finite: NonFinite = "zero"
) -> None:
    """Clamp each element of the gradients in place to [-threshold, threshold].

    Args:
        parameters: As in `clip_by_norm`.
        threshold: The largest absolute value; infinite elements become this.
        non_finite: As in `apply_gradient_clipping`; here it is about elements that are NaN.

    Raises:
        RuntimeError: An element is NaN, and `non_finite` is ``raise``.
    """
    for _, gradient in _with_gradient(parameters):
        local = local_tensor(gradient)
        if non_finite == "raise":
            _raise_unless(~local.isnan().any(), "An element of a gradient")
        elif non_finite == "zero":
            local.nan_to_num_(0.0, posinf=threshold, neginf=-threshold)
        local.clamp_(-threshold, threshold)


def clip_adaptively(
    parameters: Iterable[nn.Parameter], threshold: float, non_finite: NonFinite = "zero"
) -> torch.Tensor:
    """Scale each unit's gradient in place to at most `threshold` times its weights' norm.

    A unit is a slice of the first axis (what feeds one output channel); a tensor with one axis or
    none is one unit. The weights' norm counts as at least 0.001, so that zero weights can move.

    Args:
        parameters: As in `clip_by_norm`.
        threshold: The largest ratio of the norms. In the paper 0.01 for a batch of 4,096, and
            more for smaller batches.
        non_finite: As in `apply_gradient_clipping`; here it is about units whose norm is not
            finite.

    Returns:
        The norm of all gradients before clipping: a plain 0-dim tensor, the same on every rank.

    Raises:
        RuntimeError: A unit's norm is not finite, and `non_finite` is ``raise``.
    """
    pairs = _with_gradient(parameters)
    vectors: list[tuple[nn.Parameter, torch.Tensor]] = []
    norms: list[torch.Tensor] = []
    for parameter, gradient in pairs:
        if parameter.dim() <= 1 and mesh_of(gradient) is None:
            vectors.append((parameter, gradient))
        else:
            of_units, of_weights = row_norms(gradient), row_norms(parameter.detach())
            gradient.mul_(_factors(of_units, of_weights, threshold, non_finite).to(gradient.dtype))
            if non_finite == "zero":
                _zero_where(~of_units.isfinite(), gradient)
            norms.append(full_tensor(norm_of(of_units)))
    norms.extend(_clip_vectors(same, threshold, non_finite) for same in _by_device(vectors))
    return _root_of_squares(norms)


def _clip_vectors(pairs: Sequence[Pair], threshold: float, non_finite: NonFinite) -> torch.Tensor:
    """Clip many small tensors, each of them one unit, in few kernels."""
    gradients = [gradient for _, gradient in pairs]
    of_units = torch.stack(foreach_norm(gradients))
    of_weights = torch.stack(foreach_norm([parameter.detach() for parameter, _ in pairs]))
    factors = _factors(of_units, of_weights, threshold, non_finite)
    foreach_mul_(gradients, list(factors.unbind()))
    if non_finite == "zero":
        bad = ~of_units.isfinite()
        if bad.device.type != "cpu" or bool(bad.any()):
            for gradient, is_bad in zip(gradients, bad.unbind(), strict=True):
                _zero_where(is_bad, gradient)
    return norm_of(of_units)


def _factors(
    of_units: torch.Tensor, of_weights: torch.Tensor, threshold: float, non_finite: NonFinite
) -> torch.Tensor:
    """Return what to multiply each unit's gradient by: 1 where its norm is not finite."""
    finite = of_units.isfinite()
    if non_finite == "raise":
        _raise_unless(full_tensor(finite.all()), "The norm of a unit's gradient")
    largest = threshold * of_weights.clamp_min(_WEIGHT_FLOOR)
    return torch.where(finite, (largest / of_units).clamp_max(1.0), 1.0)


def _norm_of_kind(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the common norm of tensors that are all plain, or all sharded over one mesh."""
    if mesh_of(gradients[0]) is None and any(g.dtype.itemsize < 4 for g in gradients):
        return _root_of_squares(foreach_norm(gradients))  # in 32 bits: 16 overflow, or are coarse
    return full_tensor(get_total_norm(gradients))


def _root_of_squares(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    if not norms:
        return torch.zeros(())
    where = norms[0].device
    return norm_of(torch.stack([norm.to(where) for norm in norms]))


def _zero_where(bad: torch.Tensor, gradient: torch.Tensor) -> None:
    """Fill in zeros without waiting for the device; on a CPU, only if there is a reason to."""
    if bad.device.type == "cpu" and bad.dim() == 0 and not bool(bad):
        return
    gradient.masked_fill_(bad.to(gradient.device), 0.0)


def _raise_unless(finite: torch.Tensor, what: str) -> None:
    if not bool(finite):
        raise RuntimeError(
            f"{what} is not finite. Look for a division by zero, a logarithm of zero or a learning "
            "rate that is too high; non_finite='zero' or 'keep' goes on."
        )


def _with_gradient(parameters: Iterable[nn.Parameter]) -> list[Pair]:
    return [(p, p.grad.detach()) for p in parameters if p.grad is not None]


def _by_mesh(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Sort into plain and sharded ones, which no kernel takes together."""
    kinds: dict[object, list[Pair]] = {}
    for parameter, gradient in pairs:
        kinds.setdefault(mesh_of(gradient), []).append((parameter, gradient))
    return list(kinds.values())


def _by_device(pairs: Sequence[Pair]) -> list[list[Pair]]:
    devices: dict[tuple[torch.device, torch.dtype], list[Pair]] = {}
    for parameter, gradient in pairs:
        devices.setdefault((gradient.device, gradient.dtype), []).append((parameter, gradient))
    return list(devices.values())


# --- function ------------------------------------------------------------------------------------


def apply_gradient_clipping(
    model: nn.Module,
    clipping_type: ClippingType,
    clipping_threshold: float,
    fsdp_enabled: bool = False,
    *,
    exclude: Collection[str] = (),
    non_finite: NonFinite = "zero",
) -> torch.Tensor | None:
    """Clip the gradients of a model in place, after the backward pass.

    Gradients sharded by ``fully_shard`` or tensor parallelism are recognised by their type, and
    clipped as the whole gradients would be. Nothing waits for the device.

    Args:
        model: The model, with gradients that are not scaled.
        clipping_type: ``norm``, ``value`` or ``adaptive``: see the module's description.
        clipping_threshold: The largest common norm, element, or ratio to the weights' norm.
        fsdp_enabled: Not needed; it is there for calls written for Composer.
        exclude: Names of parameters and modules to leave alone. In the paper on adaptive clipping
            that is the classifier's last layer: ``exclude=("fc",)``. Default: none.
        non_finite: What to do with gradients whose norm is infinite or NaN. ``zero`` (default)
            makes them zero, so that one bad batch does not destroy the weights; ``keep`` leaves
            them, unclipped; ``raise`` raises, and has to wait for the device to know. Under
            ``norm`` this is about all gradients together, under ``adaptive`` about each unit, and
            under ``value`` about each element that is NaN.

    Returns:
        The norm of all gradients before clipping, a 0-dim tensor on their device; None for
        ``value``, which does not need it.

    Raises:
        ValueError: An argument is none of those, `exclude` names nothing, or the model is wrapped
            in FSDP's first version, whose flat parameters have no norm of their own on any rank.
        RuntimeError: `non_finite` is ``raise`` and a norm is not finite.
    """
    del fsdp_enabled
    _check(clipping_type, clipping_threshold, non_finite)
    parameters = _chosen(model, exclude)
    if clipping_type == "norm":
        return clip_by_norm(parameters, clipping_threshold, non_finite)
    if clipping_type == "adaptive":
        return clip_adaptively(parameters, clipping_threshold, non_finite)
    clip_by_value(parameters, clipping_threshold, non_finite)
    return None


def _check(clipping_type: str, threshold: float, non_finite: str) -> None:
    if clipping_type not in get_args(ClippingType):
        raise ValueError(
            f"clipping_type={clipping_type!r}. Give one of {', '.join(get_args(ClippingType))}."
        )
    if not (threshold > 0 and math.isfinite(threshold)):
        raise ValueError(f"clipping_threshold={threshold!r}. Give a finite number above 0.")
    if non_finite not in get_args(NonFinite):
        raise ValueError(
            f"non_finite={non_finite!r}. Give one of {', '.join(get_args(NonFinite))}."
        )


def _chosen(model: nn.Module, exclude: Collection[str]) -> list[nn.Parameter]:
    named = list(model.named_parameters())
    if any(getattr(parameter, "_is_flat_param", False) for _, parameter in named):
        raise ValueError(
            "The model is wrapped in FullyShardedDataParallel, the first version of FSDP. Use "
            "torch.distributed.fsdp.fully_shard, whose gradients can be clipped like any other."
        )
    prefixes = _names(exclude)
    for prefix in prefixes:
        if not any(f"{name}.".startswith(f"{prefix}.") for name, _ in named):
            raise ValueError(
                f"exclude names {prefix!r}, but no parameter's name begins with it. The model has "
                f"{', '.join(name for name, _ in named[:8])}{', …' if len(named) > 8 else ''}."
            )
    return [
        parameter
        for name, parameter in named
        if not any(f"{name}.".startswith(f"{prefix}.") for prefix in prefixes)
    ]


def _names(exclude: Collection[str]) -> tuple[str, ...]:
    return (exclude,) if isinstance(exclude, str) else tuple(exclude)


# --- method --------------------------------------------------------------------------------------


class GradientClipping(Algorithm[SupportsModel]):
    """Clip gradients in a run, at `Event.AFTER_TRAIN_BATCH`: `apply_gradient_clipping`.

    All microbatches are in the gradients then, and they are not scaled any more. The norm before
    clipping is logged as ``gradient_clipping/total_norm``, without waiting for the device.

    Args:
        clipping_type: As in `apply_gradient_clipping`.
        clipping_threshold: As in `apply_gradient_clipping`.
        exclude: As in `apply_gradient_clipping`.
        non_finite: As in `apply_gradient_clipping`.

    Raises:
        ValueError: An argument is not possible.
    """

    events = (Event.INIT, Event.AFTER_TRAIN_BATCH)

    def __init__(
        self,
        clipping_type: ClippingType,
        clipping_threshold: float,
        *,
        exclude: Collection[str] = (),
        non_finite: NonFinite = "zero",
    ) -> None:
        _check(clipping_type, clipping_threshold, non_finite)
        self.clipping_type: ClippingType = clipping_type
        self.clipping_threshold = clipping_threshold
        self.exclude = _names(exclude)
        self.non_finite: NonFinite = non_finite

    def apply(self, event: Event, state: SupportsModel, logger: Logger) -> None:
        """Check the names once, then clip after every batch."""
        if event is Event.INIT:
            _chosen(state.model, self.exclude)
            return
        norm = apply_gradient_clipping(
            state.model,
            self.clipping_type,
            self.clipping_threshold,
            exclude=self.exclude,
            non_finite=self.non_finite,
        )
        if norm is not None:
            logger.log_metrics({"gradient_clipping/total_norm": norm})
