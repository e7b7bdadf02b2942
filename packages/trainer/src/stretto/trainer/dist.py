"""Ranks, collectives and the sampler, under the names that users know.

Everything works in one process without a process group: sizes are 1 and collectives do nothing. In
a run of several processes the collectives need :func:`initialize_dist` first, which the trainer
calls.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from stretto.run_directory import rank as environment
from stretto.trainer import _torch
from stretto.trainer.distributed.process_group import initialize_dist, is_initialized

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "get_global_rank",
    "get_local_rank",
    "get_local_world_size",
    "get_node_rank",
    "get_sampler",
    "get_world_size",
    "initialize_dist",
    "is_available",
    "is_initialized",
]

T = TypeVar("T")

_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def is_available() -> bool:
    """Tell whether this build of torch can talk between processes."""
    return torch_dist.is_available()


def get_world_size() -> int:
    """Return the number of processes of the run."""
    return torch_dist.get_world_size() if is_initialized() else environment.get_world_size()


def get_global_rank() -> int:
    """Return the rank of this process among all processes of the run."""
    return torch_dist.get_rank() if is_initialized() else environment.get_global_rank()


def get_local_world_size() -> int:
    """Return the number of processes of the run on this node."""
    return environment.get_local_world_size()


def get_local_rank() -> int:
    """Return the rank of this process among those on this node."""
    return environment.get_local_rank()


def get_node_rank() -> int:
    """Return the rank of this node."""
    return environment.get_node_rank()


def barrier(group: ProcessGroup | None = None) -> None:
    """Wait until every rank has come here.

    Args:
        group: The ranks that take part; None means all.
    """
    if _can_talk("barrier"):
        cast("Any", torch_dist).barrier(group=group)


def all_reduce(
    tensor: Tensor, reduce_operation: str = "SUM", group: ProcessGroup | None = None
) -> None:
    """Reduce a tensor over all ranks, in place.

    Args:
        tensor: The same shape and type on every rank.
        reduce_operation: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR.
        group: The ranks that take part; None means all.

    Raises:
        ValueError: The operation is none of these.
    """
    operation = reduce_operation.upper()
    if operation not in _REDUCTIONS:
        raise ValueError(
            f"The reduce operation is {reduce_operation!r}; use one of {', '.join(_REDUCTIONS)}."
        )
    if _can_talk("all_reduce"):
        _torch.all_reduce(tensor, operation, group)


def broadcast(tensor: Tensor, src: int = 0, group: ProcessGroup | None = None) -> None:
    """Overwrite a tensor on every rank with that of one, in place.

    Args:
        tensor: The same shape and type on every rank.
        src: The global rank whose values win.
        group: The ranks that take part; None means all.
    """
    if _can_talk("broadcast"):
        _torch.broadcast(tensor, src, group)


def broadcast_object_list(
    object_list: list[Any], src: int = 0, group: ProcessGroup | None = None
) -> None:
    """Overwrite the entries of a list on every rank with those of one, in place.

    Args:
        object_list: The same length on every rank; what ``src`` holds must be picklable.
        src: The global rank whose objects win.
        group: The ranks that take part; None means all.
    """
    if _can_talk("broadcast_object_list"):
        cast("Any", torch_dist).broadcast_object_list(object_list, src=src, group=group)


def all_gather(tensor: Tensor, group: ProcessGroup | None = None) -> Sequence[Tensor]:
    """Return every rank's tensor, in rank order.

    Args:
        tensor: The same shape and type on every rank.
        group: The ranks that take part; None means all.
    """
    if not _can_talk("all_gather"):
        return [tensor]
    size = torch_dist.get_world_size(group)
    gathered = [torch.empty_like(tensor) for _ in range(size)]
    cast("Any", torch_dist).all_gather(gathered, tensor.contiguous(), group=group)
    return gathered


def all_gather_object(obj: T, group: ProcessGroup | None = None) -> list[T]:
    """Return every rank's object, in rank order.

    Args:
        obj: Any picklable object.
        group: The ranks that take part; None means all.
    """
    if not _can_talk("all_gather_object"):
        return [obj]
    gathered: list[Any] = [None] * torch_dist.get_world_size(group)
    cast("Any", torch_dist).all_gather_object(gathered, obj, group=group)
    return cast("list[T]", gathered)


def get_sampler(
    dataset: Dataset[Any],
    *,
    drop_last: bool = False,
    shuffle: bool = False,
    num_replicas: int | None = None,
    rank: int | None = None,
    seed: int = 0,
) -> DistributedSampler[Any]:
    """Return a sampler that gives each rank its own share of a map dataset.

    Args:
        dataset: A dataset with a length.
        drop_last: Drop the tail that does not fill every rank, instead of repeating the first
            samples until it does. (Evaluation leaves repeated samples out of its metrics.)
        shuffle: Draw a new order each epoch, the same on every rank.
        num_replicas: Number of shares. Default: the world size.
        rank: Which share. Default: the global rank.
        seed: Of the order; must be equal on all ranks.

    Raises:
        ValueError: The dataset has no length, or is so short that a rank would get no sample.
    """
    if not isinstance(dataset, Sized):
        raise ValueError(
            f"The dataset {type(dataset).__name__} has no length, so no sampler can share it out. "
            f"An iterable dataset needs none: let it yield each rank's own samples, by "
            f"dist.get_global_rank() and dist.get_world_size()."
        )
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset,
        drop_last=drop_last,
        shuffle=shuffle,
        num_replicas=get_world_size() if num_replicas is None else num_replicas,
        rank=get_global_rank() if rank is None else rank,
        seed=seed,
    )
    if len(sampler) == 0:
        ranks = sampler.num_replicas
        raise ValueError(
            f"The dataset {type(dataset).__name__} has {len(dataset)} samples for {ranks} ranks, "
            f"so a rank would get none{' with drop_last=True' if drop_last else ''}. Give at least "
            f"{ranks if drop_last else 1}{', or drop_last=False' if drop_last else ''}."
        )
    return sampler


def _can_talk(what: str) -> bool:
    """Tell whether there is somebody to talk to; refuse where there should be, but is not."""
    if is_initialized():
        return True
    world_size = environment.get_world_size()
    if world_size == 1:
        return False
    raise RuntimeError(
        f"dist.{what} was called in a run of {world_size} processes before they were connected. "
        f"Call dist.initialize_dist(device) first, or build the Trainer first, which does."
    )
