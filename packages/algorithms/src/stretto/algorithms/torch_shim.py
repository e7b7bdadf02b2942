"""The one place where this package meets torch's loose types and its private corners."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import nn

__all__ = [
    "as_floats",
    "as_ints",
    "buffer_slots",
    "child_slots",
    "foreach_mul_",
    "foreach_norm",
    "full_tensor",
    "hook_dicts",
    "lerp_into",
    "local_tensor",
    "mesh_of",
    "named_modules",
    "non_persistent_buffers",
    "norm_of",
    "parameter_slots",
    "row_norms",
    "seed_global",
    "standard_gamma",
    "storage_use_count",
]

_count_uses = cast(
    "Callable[[int], int] | None", getattr(vars(torch)["_C"], "_storage_Use_Count", None)
)
_gamma = cast("Callable[..., torch.Tensor]", vars(torch)["_standard_gamma"])
_vector_norm = cast("Callable[..., torch.Tensor]", vars(torch.linalg)["vector_norm"])
_foreach_norm = cast("Callable[..., Sequence[torch.Tensor]]", vars(torch)["_foreach_norm"])
_foreach_mul_ = cast("Callable[..., None]", vars(torch)["_foreach_mul_"])


def parameter_slots(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the module's own dictionary of parameters; writing to it changes the module."""
    return module.__dict__["_parameters"]


def buffer_slots(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the module's own dictionary of buffers; writing to it changes the module."""
    return module.__dict__["_buffers"]


def child_slots(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the module's own dictionary of children, second mentions included."""
    return module.__dict__["_modules"]


def non_persistent_buffers(module: nn.Module) -> set[str]:
    """Return the names of the buffers that stay out of the state dict."""
    return module.__dict__["_non_persistent_buffers_set"]


def hook_dicts(module: nn.Module) -> dict[str, dict[Any, Any]]:
    """Return the dictionaries that hold the module's hooks, by attribute name."""
    return {
        name: value
        for name, value in module.__dict__.items()
        if "_hooks" in name and isinstance(value, dict)
    }


def named_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Return `module.named_modules()`, typed."""
    return cast("Iterator[tuple[str, nn.Module]]", module.named_modules())


def as_ints(tensor: torch.Tensor) -> list[int]:
    """Return the values of a one-dimensional CPU tensor."""
    return cast("list[int]", cast("Any", tensor).tolist())


def as_floats(tensor: torch.Tensor) -> list[float]:
    """Return the values of a one-dimensional CPU tensor."""
    return cast("list[float]", cast("Any", tensor).tolist())


def seed_global(seed: int) -> None:
    """Seed torch's global CPU generator."""
    torch.default_generator.manual_seed(seed)


def standard_gamma(shape: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw from Gamma(shape, 1) with a generator of one's own, which distributions don't offer."""
    return _gamma(shape, generator=generator)


def lerp_into(
    start: torch.Tensor, end: torch.Tensor, weight: float | torch.Tensor, out: torch.Tensor
) -> None:
    """Write ``start + weight * (end - start)`` to `out`, which may be `end` itself."""
    cast("Callable[..., None]", torch.lerp)(start, end, weight, out=out)


def foreach_norm(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the 2-norm of each tensor, in 32 bits at least, in as few kernels as possible."""
    if all(tensor.dtype.itemsize >= 4 for tensor in tensors):
        return list(_foreach_norm(tensors, 2))
    return list(_foreach_norm(tensors, 2, dtype=torch.float32))


def row_norms(tensor: torch.Tensor) -> torch.Tensor:
    """Return the 2-norm of each slice of the first axis, in 32 bits at least, axes kept.

    A tensor with one axis or none is one slice.
    """
    dim = tuple(range(1, tensor.dim())) or None
    dtype = torch.float32 if tensor.dtype.itemsize < 4 else None
    return _vector_norm(tensor, dim=dim, keepdim=dim is not None, dtype=dtype)


def norm_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the 2-norm of all elements."""
    return _vector_norm(tensor)


def foreach_mul_(tensors: Sequence[torch.Tensor], factors: Sequence[torch.Tensor]) -> None:
    """Multiply each tensor by its factor in place."""
    _foreach_mul_(tensors, factors)


def storage_use_count(tensor: torch.Tensor) -> int | None:
    """Return how many tensors share this tensor's memory, plus a constant; None if unknown."""
    if _count_uses is None:
        return None
    return _count_uses(cast("Any", tensor.untyped_storage())._cdata)


def _dtensor() -> Any:
    """Return the class of sharded tensors if anything in this process can have made one.

    Importing it costs half a second; where nobody has imported it, no tensor is sharded.
    """
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def mesh_of(tensor: torch.Tensor) -> object | None:
    """Return the device mesh over which a tensor is sharded; None for a plain tensor."""
    dtensor = _dtensor()
    if dtensor is None or not isinstance(tensor, dtensor):
        return None
    return cast("Any", tensor).device_mesh


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a sharded tensor on every rank; a plain tensor as it is."""
    return tensor if mesh_of(tensor) is None else cast("Any", tensor).full_tensor()


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, sharing its memory; a plain one as it is."""
    return tensor if mesh_of(tensor) is None else cast("Any", tensor).to_local()
