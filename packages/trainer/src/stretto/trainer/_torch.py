"""torch where its types are loose or its names private, met once, with full types.

Everything here is a thin call: no policy. The rest of the package imports from this file instead of
scattering ignores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.optim import Optimizer


class Store(Protocol):
    """What we use of the key-value store that the ranks of a process group share."""

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        ...

    def get(self, key: str) -> bytes:
        """Return the value of a key, waiting for it to be set."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Tell at once whether all these keys are set."""
        ...

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which starts at 0, and return the sum."""
        ...


def default_store() -> Store:
    """Return the store of the default process group, which must be initialised."""
    from torch.distributed import distributed_c10d

    return cast("Store", distributed_c10d._get_default_store())  # pyright: ignore[reportPrivateUsage]


def init_process_group(*, backend: str, rank: int, world_size: int, timeout: float) -> None:
    """Join the process group of ``MASTER_ADDR`` and ``MASTER_PORT``."""
    torch_dist.init_process_group(
        backend=backend,
        init_method="env://",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout),
    )


def init_lonely_process_group(*, backend: str, timeout: float) -> None:
    """Make a process group of this process alone, which needs no address and no port."""
    torch_dist.init_process_group(
        backend=backend,
        store=cast("Any", torch_dist).HashStore(),
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=timeout),
    )


def host_group() -> torch_dist.ProcessGroup | None:
    """Return a group that can reduce CPU tensors: None, the default one, if that can.

    Collective where a new group is needed: every rank must call it at the same place.
    """
    default = cast("Any", torch_dist.group.WORLD)
    if "cpu" in {device.type for device in cast("list[torch.device]", default._device_types)}:
        return None
    return cast("torch_dist.ProcessGroup", torch_dist.new_group(backend="gloo"))


def all_reduce(
    tensor: Tensor, op: str = "SUM", group: torch_dist.ProcessGroup | None = None
) -> None:
    """Reduce a tensor over the ranks of a group, in place."""
    operation = getattr(torch_dist.ReduceOp, op)
    cast("Any", torch_dist).all_reduce(tensor, op=operation, group=group)


def broadcast(tensor: Tensor, src: int = 0, group: torch_dist.ProcessGroup | None = None) -> None:
    """Overwrite a tensor with that of rank ``src``, in place."""
    cast("Any", torch_dist).broadcast(tensor, src=src, group=group)


def broadcast_object(value: object, src: int = 0) -> Any:
    """Return rank ``src``'s object on every rank."""
    box = [value]
    cast("Any", torch_dist).broadcast_object_list(box, src=src)
    return box[0]


def all_gather_objects(value: object) -> list[Any]:
    """Return every rank's object, in rank order, on every rank."""
    gathered: list[Any] = [None] * torch_dist.get_world_size()
    cast("Any", torch_dist).all_gather_object(gathered, value)
    return gathered


def named_parameters(module: nn.Module, *, tied: bool = False) -> list[tuple[str, nn.Parameter]]:
    """List the parameters of a module with their names; tied ones under one name, or all."""
    return list(module.named_parameters(remove_duplicate=not tied))


def module_state_dict(module: nn.Module) -> dict[str, Any]:
    """Return the state dict of a module."""
    return module.state_dict()


def load_module_state_dict(module: nn.Module, state_dict: Mapping[str, Any]) -> None:
    """Load values whose keys and shapes were checked already."""
    module.load_state_dict(state_dict, strict=False)


def param_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer, the very objects."""
    return optimizer.param_groups


def optimizer_state(optimizer: Optimizer) -> dict[Tensor, dict[str, Any]]:
    """Return the state of an optimizer by parameter, the very object."""
    return cast("dict[Tensor, dict[str, Any]]", optimizer.state)


def packed_optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's own state dict, its parameters numbered in group order."""
    return optimizer.state_dict()


def load_packed_optimizer_state(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Give an optimizer a state dict of its own form."""
    cast("Any", optimizer).load_state_dict(state_dict)


def backward(loss: Tensor, *, create_graph: bool = False) -> None:
    """Run the backward pass of a scalar loss."""
    cast("Any", loss).backward(create_graph=create_graph)


def optimizer_step(optimizer: Optimizer) -> None:
    """Apply the gradients."""
    cast("Any", optimizer).step()


def unscale_and_check(
    gradients: Sequence[Tensor], found_inf: Tensor, inverse_scale: Tensor
) -> None:
    """Multiply gradients of one device and type in place; set ``found_inf`` if not finite."""
    operation = cast("Any", torch)._amp_foreach_non_finite_check_and_unscale_
    operation(list(gradients), found_inf, inverse_scale)


def update_scale(
    scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    *,
    growth: float,
    backoff: float,
    interval: int,
) -> None:
    """Grow or shrink a loss scale in place, without the host seeing it."""
    operation = cast("Any", torch)._amp_update_scale_
    operation(scale, growth_tracker, found_inf, growth, backoff, interval)


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """Return one tensor with the elements of all; they share a device and a type."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def copy_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Give tensors the elements of one of :func:`flattened`, in place."""
    parts = cast("tuple[Tensor, ...]", cast("Any", flat).split([t.numel() for t in tensors]))
    with torch.no_grad():
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def integers(tensor: Tensor) -> list[int]:
    """Read a tensor of one dimension to the host."""
    return cast("list[int]", cast("Any", tensor).tolist())


def floats(tensor: Tensor) -> list[float]:
    """Read a tensor of one dimension to the host."""
    return cast("list[float]", cast("Any", tensor).tolist())


def wrapped_module(module: nn.Module) -> nn.Module | None:
    """Return what a DDP wrapper or a compiled module wraps; None for any other module."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return cast("nn.Module", cast("Any", module).module)
    return cast("dict[str, nn.Module]", module.__dict__["_modules"]).get("_orig_mod")


def save_file(value: object, path: Path) -> None:
    """Write a value with ``torch.save``."""
    torch.save(value, path)


def load_file(path: Path, *, mmap: bool) -> Any:
    """Read a file of ``torch.save`` onto the CPU: tensors and plain data, or it raises."""
    return cast("Any", torch).load(path, map_location="cpu", weights_only=True, mmap=mmap)


def iterate_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Walk a module and all below it, each once."""
    yield from module.named_modules()
