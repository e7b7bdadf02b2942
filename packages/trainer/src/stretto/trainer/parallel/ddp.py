"""Whole parameters on every rank, gradients summed over the ranks (DistributedDataParallel)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from inspect import signature
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stretto.trainer.devices import Device
from stretto.trainer.distributed.topology import Topology
from stretto.trainer.parallel import portable
from stretto.trainer.parallel.buffers import (
    broadcast_module,
    broadcast_tensors,
    persistent_buffers,
)
from stretto.trainer.parallel.checks import refuse_unusable
from stretto.trainer.parallel.collectives import DataParallelSums
from stretto.trainer.parallel.gradients import average_gradients
from stretto.trainer.parallel.options import DDPOptions, DDPSyncStrategy
from stretto.trainer.parallel.strategy import Prepared

# In newer versions of torch the older name draws a FutureWarning. The newer one makes buffers equal
# once more at the start, which `prepare` has done by then.
_SYNC_IN_FORWARD = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


class DDPStrategy:
    """DistributedDataParallel; which backward passes carry gradients across is settable.

    Buffers that a checkpoint holds follow rank 0's after each batch, not before each forward pass:
    so evaluation needs no collective in its forward pass, and what rank 0 saves is what all have.

    Args:
        topology: Of several data-parallel ranks, whose process group is up.
        options: Of DistributedDataParallel.
        sync_strategy: When gradients cross. Default: in the last microbatch only.
    """

    name = "ddp"

    def __init__(
        self,
        topology: Topology,
        options: DDPOptions,
        sync_strategy: DDPSyncStrategy | None = None,
    ) -> None:
        self.topology = topology
        # DDP takes the mean over the ranks.
        self.gradient_multiplier = float(topology.data_parallel_size)
        self._options = options
        self._sync = sync_strategy or DDPSyncStrategy.SINGLE_AUTO_SYNC
        self._sums = DataParallelSums(topology.data_parallel_size)

    def prepare(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        device: Device,
        *,
        find_unused_parameters: bool = False,
    ) -> Prepared:
        """Move the model to the device, make the ranks equal, and wrap it."""
        refuse_unusable(model, optimizers)
        moved = device.module_to_device(model)
        for optimizer in optimizers:
            device.optimizer_to_device(optimizer)
        broadcast_module(moved)
        find_unused = find_unused_parameters or self._options.find_unused_parameters
        trains = any(parameter.requires_grad for parameter in moved.parameters())
        module = self._wrapped(moved, find_unused=find_unused) if trains else moved
        return Prepared(module=module, model=moved, optimizers=tuple(optimizers))

    def _wrapped(self, model: nn.Module, *, find_unused: bool) -> nn.Module:
        optional: dict[str, Any] = {
            name: value
            for name, value in (
                ("bucket_cap_mb", self._options.bucket_cap_mb),
                ("static_graph", self._options.static_graph or None),
            )
            if value is not None
        }
        return DistributedDataParallel(
            model,
            find_unused_parameters=find_unused,
            gradient_as_bucket_view=self._options.gradient_as_bucket_view,
            **{_SYNC_IN_FORWARD: False},
            **optional,
        )

    def microbatch_context(
        self, prepared: Prepared, *, is_last: bool
    ) -> AbstractContextManager[Any]:
        """Return the context of one microbatch, which holds gradients back or lets them cross."""
        return _Microbatch(prepared, self._sync, self._sums, is_last=is_last)

    def sum_counts(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return the sums over the ranks, on the host."""
        return self._sums.counts(counts)

    def mean_loss(self, loss: Tensor) -> Tensor:
        """Return the mean over the ranks."""
        return self._sums.mean(loss)

    def can_retry(self) -> bool:
        """Tell that a failed step cannot be done again: the others wait in a reduction."""
        return False

    def model_state_dict(self, prepared: Prepared, *, full: bool = True) -> dict[str, Any]:
        """Return parameters and buffers by canonical name, on every rank."""
        portable.refuse_sharded(full=full)
        return portable.model_state(prepared.model)

    def load_model_state_dict(
        self, prepared: Prepared, state_dict: Mapping[str, Any], *, strict: bool = True
    ) -> tuple[list[str], list[str]]:
        """Load parameters and buffers by canonical name."""
        return portable.load_model_state(prepared.model, state_dict, strict=strict)

    def optimizer_state_dict(self, prepared: Prepared, index: int) -> dict[str, Any]:
        """Return the state of one optimizer by canonical name, on every rank."""
        return portable.optimizer_state(prepared.model, prepared.optimizers[index])

    def load_optimizer_state_dict(
        self, prepared: Prepared, index: int, state_dict: Mapping[str, Any]
    ) -> None:
        """Load the state of one optimizer by canonical name."""
        portable.load_optimizer_state(prepared.model, prepared.optimizers[index], state_dict)


class _Microbatch:
    """One microbatch's forward and backward pass."""

    __slots__ = ("_hold_back", "_is_last", "_prepared", "_reduce_after", "_sums")

    def __init__(
        self, prepared: Prepared, sync: DDPSyncStrategy, sums: DataParallelSums, *, is_last: bool
    ) -> None:
        crosses = sync is DDPSyncStrategy.MULTI_AUTO_SYNC or (
            is_last and sync is DDPSyncStrategy.SINGLE_AUTO_SYNC
        )
        self._prepared = prepared
        self._sums = sums
        self._is_last = is_last
        self._reduce_after = is_last and sync is DDPSyncStrategy.FORCED_SYNC
        module = prepared.module
        wrapped = isinstance(module, DistributedDataParallel)
        self._hold_back = module.no_sync() if wrapped and not crosses else None

    def __enter__(self) -> None:
        if self._hold_back is not None:
            self._hold_back.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._hold_back is not None:
            self._hold_back.__exit__(kind, error, trace)
        if kind is not None or not self._is_last:
            return
        if self._reduce_after:
            average_gradients(self._prepared.model, self._sums)
        broadcast_tensors(persistent_buffers(self._prepared.model))
