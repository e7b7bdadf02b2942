"""A parameter's name, the same whatever the model is wrapped in."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from stretto.trainer import _torch

_WRAPPER_PARTS = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_flat_param"}
)


def canonical_name(name: str) -> str:
    """Drop what ``torch.compile``, activation checkpointing and FSDP add to a name.

    The ``module.`` of a DDP wrapper cannot be told from a user's own attribute by its name alone;
    :func:`canonical_parameters` drops it where the module really is DDP's.

    Args:
        name: A dotted name, as from ``named_parameters`` or ``state_dict``.
    """
    if "_" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_PARTS)


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the model within a DDP wrapper or a compiled module, else the module itself."""
    while (inner := _torch.wrapped_module(module)) is not None:
        module = inner
    return module


def canonical_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return a model's parameters by canonical name, in their order.

    A parameter with several names (tied weights) appears under the first.

    Args:
        model: The model, or a DDP or compiled wrapper of it.
    """
    return {
        canonical_name(name): parameter
        for name, parameter in _torch.named_parameters(unwrapped(model))
    }


def names_by_parameter(model: nn.Module) -> dict[Tensor, str]:
    """Return the canonical name of each of a model's parameters."""
    return {parameter: name for name, parameter in canonical_parameters(model).items()}


def listed(names: Iterable[str], limit: int = 10) -> str:
    """Return names for a message, the first few of them."""
    every = sorted(names)
    shown = ", ".join(every[:limit])
    return shown if len(every) <= limit else f"{shown} and {len(every) - limit} more"
