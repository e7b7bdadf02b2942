"""Sending a checkpoint's content from rank 0 to ranks that cannot see its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from stretto.trainer import _torch
from stretto.trainer.checkpoint.plain import mapped


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor stood."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def broadcast_tree(tree: Any) -> Any:
    """Return rank 0's tree on every rank, its tensors sent one by one; every rank must call it.

    Args:
        tree: Dicts, lists and tuples of CPU tensors and picklable objects; None beyond rank 0.
    """
    group = _torch.host_group()
    tensors: list[Tensor] = []
    places: list[_Place] = []

    def take_out(tensor: Tensor) -> _Place:
        tensors.append(tensor.contiguous())
        places.append(_Place(len(places), tuple(tensor.shape), tensor.dtype))
        return places[-1]

    is_sender = tree is not None
    skeleton = mapped(tree, Tensor, take_out)
    places, skeleton = cast("tuple[list[_Place], Any]", _torch.broadcast_object((places, skeleton)))
    if not is_sender:
        tensors = [torch.empty(place.shape, dtype=place.dtype) for place in places]
    for tensor in tensors:
        if tensor.numel():
            # As bytes, since gloo does not know every type.
            _torch.broadcast(tensor.reshape(-1).view(torch.uint8), 0, group)
    return mapped(skeleton, _Place, lambda place: tensors[place.number])
