"""Memory that is used again for the next batch if nobody holds it any more.

A fresh tensor of a hundred megabytes costs more in page faults than in arithmetic on a CPU, since
such blocks go back to the system each time. On accelerators torch keeps freed memory itself.
"""

from __future__ import annotations

import torch

from stretto.algorithms.torch_shim import storage_use_count

__all__ = ["Scratch"]

_KEPT = 2  # the batch being trained on, and the one before, which a loop may still hold


class Scratch:
    """Hands out CPU tensors, and takes memory again only when no tensor shares it.

    What is handed out is an ordinary tensor: it may be kept, viewed, or saved for a backward pass.
    As long as anything refers to its memory, the memory is not given to anyone else.
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[torch.Tensor, int]] = []

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return `count` uninitialised elements in one dimension."""
        for position, (block, idle) in enumerate(self._blocks):
            if block.dtype == dtype and block.numel() >= count and storage_use_count(block) == idle:
                self._blocks.append(self._blocks.pop(position))
                return block[:count]
        block = torch.empty(count, dtype=dtype)
        idle = storage_use_count(block)
        if idle is None:
            return block
        self._blocks = [*self._blocks, (block, idle)][-_KEPT:]
        return block[:count]
