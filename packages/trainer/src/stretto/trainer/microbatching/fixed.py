"""Microbatches of a size that is given."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping, Sequence
from typing import Any

from torch import Tensor

from stretto.trainer.data.spec import DataSpec


def check_microbatch_size(size: object) -> int | None:
    """Return a microbatch size as the trainer uses it.

    Args:
        size: A whole number of samples of at least 1, or None for the whole batch.

    Raises:
        ValueError: If it is anything else.
    """
    if size is None:
        return None
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(
            f"device_train_microbatch_size must be a whole number of samples of at least 1, or "
            f"None for the whole batch, got {size!r}"
        )
    return size


class FixedMicrobatching:
    """Cuts a batch into blocks of at most `size` samples.

    Args:
        spec: Splits and counts batches.
        size: Most samples in a block; None for no cutting.
        by_tokens: Whether parts are weighted by their loss-bearing tokens rather than samples.
    """

    def __init__(self, spec: DataSpec, size: int | None, *, by_tokens: bool = False) -> None:
        self.spec = spec
        self.size = size
        self.by_tokens = by_tokens

    def weigh(self, batch: Any) -> int:
        """Return what a batch counts for in the mean over all: its samples, or its tokens."""
        if self.by_tokens:
            return self.spec.get_num_tokens_in_batch(batch, "loss_generating")
        return int(self.spec.get_num_samples_in_batch(batch))

    def split(self, batch: Any, samples: int | None = None) -> Sequence[Any]:
        """Return the parts of a batch; lists and mappings among them are new containers.

        Args:
            batch: The whole batch; it is left as it is.
            samples: How many samples it holds, if that is known.
        """
        size = self.size
        if size is None:
            return (_own_container(batch),)
        if samples is None:
            samples = int(self.spec.get_num_samples_in_batch(batch))
        if samples <= size:
            return (_own_container(batch),)
        return self.spec.split_batch(batch, size)


def _own_container(batch: Any) -> Any:
    """Copy a list or a dict, not what it holds, so that a microbatch may be changed."""
    owned: Any = batch
    if isinstance(batch, tuple | Tensor):
        return owned
    return copy.copy(owned) if isinstance(batch, list | MutableMapping) else owned
