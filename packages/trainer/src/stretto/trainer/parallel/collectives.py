"""Sums and means over the data-parallel ranks, as the strategies of several ranks do them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stretto.trainer import _torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class DataParallelSums:
    """Reductions over all ranks, counts on the host and losses on the device.

    Every rank must make one at the same place.

    Args:
        size: Number of data-parallel ranks.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._host_group: ProcessGroup | None = _torch.host_group()

    def counts(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return the sums of whole numbers."""
        summed = torch.tensor(counts, dtype=torch.int64)
        _torch.all_reduce(summed, "SUM", self._host_group)
        return tuple(_torch.integers(summed))

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean of a tensor, which stays as it is."""
        mean = tensor.detach().clone()
        _torch.all_reduce(mean, "SUM")
        return mean.div_(self._size)
