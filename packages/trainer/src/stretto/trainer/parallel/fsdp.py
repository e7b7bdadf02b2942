"""Parameters, gradients and optimizer state cut over the ranks (FSDP2, ``fully_shard``).

Imported when chosen: torch's part of it costs half a second.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer

from stretto.trainer.devices import Device
from stretto.trainer.distributed.topology import Topology
from stretto.trainer.parallel import portable, sharding
from stretto.trainer.parallel.buffers import broadcast_tensors, persistent_buffers
from stretto.trainer.parallel.checks import refuse_unusable
from stretto.trainer.parallel.collectives import DataParallelSums
from stretto.trainer.parallel.mesh import build_mesh, on_mesh
from stretto.trainer.parallel.options import DDPSyncStrategy, FSDPOptions
from stretto.trainer.parallel.rebind import put_back, take_down
from stretto.trainer.parallel.strategy import Prepared
from stretto.trainer.parallel.wrap import blocks_to_shard
from stretto.trainer.precision import Precision

_log = logging.getLogger(__name__)


class FSDPStrategy:
    """``fully_shard`` on each repeated block and on the root.

    Gradients are summed over the ranks, not averaged. Like under DDP, buffers that a checkpoint
    holds follow rank 0's after each batch.

    Args:
        topology: The ranks, whose process group is up.
        device: Where the parameters are.
        options: Of FSDP.
        precision: Of the trainer.
        sync_strategy: Default: gradients stay whole on every rank until the last microbatch and
            are reduced once; ``multi_auto_sync`` reduces them in each microbatch, so that only
            shards are kept.

    Raises:
        ValueError: The degrees do not fit the number of ranks, or the strategy is forced_sync.
    """

    name = "fsdp"

    def __init__(
        self,
        topology: Topology,
        device: Device,
        options: FSDPOptions,
        precision: Precision,
        sync_strategy: DDPSyncStrategy | None = None,
    ) -> None:
        if sync_strategy is DDPSyncStrategy.FORCED_SYNC:
            raise ValueError(
                "ddp_sync_strategy='forced_sync' works with DDP only; under FSDP use "
                "'single_auto_sync' or 'multi_auto_sync'."
            )
        self._options = options
        self._policy = sharding.mixed_precision_policy(options.mixed_precision, precision)
        mesh = build_mesh(options, topology, device)
        self.topology = on_mesh(topology, mesh)
        self._mesh = mesh
        self.gradient_multiplier = sharding.loss_multiplier(topology.data_parallel_size)
        self._sync = sync_strategy or DDPSyncStrategy.SINGLE_AUTO_SYNC
        self._sums = DataParallelSums(topology.data_parallel_size)
        self._told: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

    def prepare(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        device: Device,
        *,
        find_unused_parameters: bool = False,
    ) -> Prepared:
        """Cut the model over the ranks and point its optimizers at the pieces."""
        refuse_unusable(model, optimizers)
        if find_unused_parameters:
            sharding.require_unused_support()
        blocks = blocks_to_shard(model, auto_wrap=self._options.auto_wrap)
        bindings = take_down(model, optimizers)
        sharding.shard_module(
            model,
            blocks,
            mesh=self._mesh,
            policy=self._policy,
            frees_after_forward=self._options.frees_after_forward,
            recompute=self._options.activation_checkpointing,
        )
        sharding.sum_gradients(model, find_unused=find_unused_parameters)
        put_back(model, bindings, sharding.cut_like)
        for optimizer in optimizers:
            device.optimizer_to_device(optimizer)
        sharding.free_after_inference(model)
        if self._options.verbose:
            kinds = ", ".join(sorted({type(block).__name__ for block in blocks})) or "none"
            _log.info("FSDP shards %d blocks (%s) and the root", len(blocks), kinds)
        return Prepared(module=model, model=model, optimizers=tuple(optimizers))

    def microbatch_context(
        self, prepared: Prepared, *, is_last: bool
    ) -> AbstractContextManager[Any]:
        """Return the context of one microbatch, which keeps gradients here or reduces them."""
        return _Microbatch(self, prepared.model, is_last=is_last)

    def sum_counts(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return the sums over the ranks, on the host."""
        return self._sums.counts(counts)

    def mean_loss(self, loss: Tensor) -> Tensor:
        """Return the mean over the ranks."""
        return self._sums.mean(loss)

    def can_retry(self) -> bool:
        """Tell that a failed step cannot be done again: it leaves whole gradients behind."""
        return False

    def model_state_dict(self, prepared: Prepared, *, full: bool = True) -> dict[str, Any]:
        """Gather parameters and buffers, by canonical name, to rank 0; the others get nothing."""
        portable.refuse_sharded(full=full)
        sharding.reshard(prepared.model)
        state = portable.model_state(prepared.model, self._gather)
        return state if self.topology.is_rank_zero else {}

    def load_model_state_dict(
        self, prepared: Prepared, state_dict: Mapping[str, Any], *, strict: bool = True
    ) -> tuple[list[str], list[str]]:
        """Load whole parameters and buffers by canonical name; each rank takes its slices."""
        sharding.reshard(prepared.model)
        return portable.load_model_state(
            prepared.model, state_dict, strict=strict, cut=sharding.cut_like
        )

    def optimizer_state_dict(self, prepared: Prepared, index: int) -> dict[str, Any]:
        """Gather the state of one optimizer to rank 0; the others get nothing."""
        sharding.reshard(prepared.model)
        optimizer = prepared.optimizers[index]
        state = portable.optimizer_state(prepared.model, optimizer, self._gather)
        return state if self.topology.is_rank_zero else {}

    def load_optimizer_state_dict(
        self, prepared: Prepared, index: int, state_dict: Mapping[str, Any]
    ) -> None:
        """Load the whole state of one optimizer; each rank takes its slices."""
        sharding.reshard(prepared.model)
        portable.load_optimizer_state(
            prepared.model, prepared.optimizers[index], state_dict, cut=sharding.cut_like
        )

    def enter_microbatch(self, model: nn.Module, *, is_last: bool) -> None:
        """Tell every sharded module whether its next backward pass reduces gradients."""
        if self._told.get(model) != is_last:
            keep_whole = self._sync is DDPSyncStrategy.SINGLE_AUTO_SYNC
            sharding.set_reduction(model, is_last=is_last, keep_whole=keep_whole)
            self._told[model] = is_last

    def leave_batch(self, model: nn.Module) -> None:
        """Make the buffers of all ranks equal."""
        if self.topology.world_size > 1:
            broadcast_tensors(persistent_buffers(model))

    def _gather(self, value: Tensor) -> Tensor | None:
        whole = sharding.gathered(value)
        return whole.cpu() if self.topology.is_rank_zero else None


class _Microbatch:
    """One microbatch's forward and backward pass."""

    __slots__ = ("_is_last", "_model", "_strategy")

    def __init__(self, strategy: FSDPStrategy, model: nn.Module, *, is_last: bool) -> None:
        self._strategy = strategy
        self._model = model
        self._is_last = is_last

    def __enter__(self) -> None:
        self._strategy.enter_microbatch(self._model, is_last=self._is_last)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._is_last:
            self._strategy.leave_batch(self._model)
