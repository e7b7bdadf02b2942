"""Making parameters and buffers equal on all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stretto.trainer import _torch


def persistent_buffers(model: nn.Module) -> list[Tensor]:
    """Return the buffers that a checkpoint holds, such as BatchNorm's statistics."""
    found: list[Tensor] = []
    seen: set[int] = set()
    for _, module in _torch.iterate_modules(model):
        for name, buffer in module.named_buffers(recurse=False):
            transient = name in module._non_persistent_buffers_set  # pyright: ignore[reportPrivateUsage]
            if not transient and id(buffer) not in seen:
                seen.add(id(buffer))
                found.append(buffer)
    return found


def broadcast_tensors(tensors: Sequence[Tensor]) -> None:
    """Overwrite these tensors with rank 0's; one message for all of a type and device."""
    grouped: defaultdict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        grouped[tensor.dtype, tensor.device].append(tensor)
    for same in grouped.values():
        flat = _torch.flattened(same)
        _torch.broadcast(flat)
        _torch.copy_back(flat, same)


def broadcast_module(model: nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers, one at a time."""
    with torch.no_grad():
        for _, parameter in _torch.named_parameters(model):
            _broadcast_one(parameter)
        for buffer in model.buffers():
            _broadcast_one(buffer)


def _broadcast_one(tensor: Tensor) -> None:
    if tensor.is_contiguous():
        _torch.broadcast(tensor.detach())
        return
    # A collective wants dense memory: channels_last parameters come this way.
    dense = tensor.detach().contiguous()
    _torch.broadcast(dense)
    tensor.copy_(dense)
