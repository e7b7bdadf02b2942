"""How the ranks of a run share the work on one model.

The loop knows :class:`~stretto.trainer.parallel.strategy.ParallelStrategy` only;
:func:`make_strategy` is the one place that knows which there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.trainer.devices import Device
from stretto.trainer.distributed.process_group import ensure_process_group
from stretto.trainer.distributed.topology import Topology
from stretto.trainer.parallel.fqn import canonical_name, canonical_parameters
from stretto.trainer.parallel.options import (
    DDPOptions,
    DDPSyncStrategy,
    FSDPOptions,
    read_ddp_options,
    read_fsdp_options,
    read_sync_strategy,
)
from stretto.trainer.parallel.single import SingleStrategy
from stretto.trainer.parallel.strategy import ParallelStrategy, Prepared
from stretto.trainer.precision import Precision

__all__ = [
    "DDPOptions",
    "DDPSyncStrategy",
    "FSDPOptions",
    "ParallelStrategy",
    "Prepared",
    "canonical_name",
    "canonical_parameters",
    "make_strategy",
]

_KEYS = ("ddp", "fsdp", "fsdp2")


def make_strategy(
    parallelism_config: Mapping[str, Any] | None,
    topology: Topology,
    device: Device,
    *,
    ddp_sync_strategy: str | DDPSyncStrategy | None = None,
    precision: Precision = Precision.FP32,
    timeout: float = 300.0,
) -> ParallelStrategy:
    """Return the strategy for these ranks.

    Every rank must call it at the same place, with its process group up.

    Args:
        parallelism_config: ``{"fsdp": {...}}`` cuts the model over the ranks (also over one);
            ``{"ddp": {...}}`` sets options of DDP. Default: DDP if there are several ranks.
        topology: The ranks.
        device: Where to train.
        ddp_sync_strategy: When gradients cross; see
            :class:`~stretto.trainer.parallel.options.DDPSyncStrategy`. Default: in the last
            microbatch.
        precision: Of the trainer, for FSDP's mixed precision.
        timeout: Seconds, for the group that FSDP needs where there is one process only.

    Raises:
        ValueError: A key or value is unknown, not supported, or contradicts another.
    """
    config = dict(parallelism_config or {})
    _check_keys(config)
    sync = read_sync_strategy(ddp_sync_strategy)
    ddp_options = read_ddp_options(config.get("ddp"))
    fsdp = config.get("fsdp", config.get("fsdp2"))
    if fsdp is not None:
        options = read_fsdp_options(fsdp)
        from stretto.trainer.parallel.fsdp import FSDPStrategy

        ensure_process_group(device, timeout)
        return FSDPStrategy(topology, device, options, precision, sync)
    if topology.world_size == 1:
        return SingleStrategy(topology)
    from stretto.trainer.parallel.ddp import DDPStrategy

    return DDPStrategy(topology, ddp_options, sync)


def _check_keys(config: Mapping[str, Any]) -> None:
    if "tp" in config and config["tp"] is not None:
        raise ValueError(
            "parallelism_config['tp'] asks for tensor parallelism, which is not supported yet. "
            f"Known keys: {', '.join(_KEYS)}."
        )
    unknown = sorted(set(config) - {*_KEYS, "tp"})
    if unknown:
        raise ValueError(
            f"parallelism_config has the unknown keys {', '.join(map(repr, unknown))}; it knows "
            f"{', '.join(_KEYS)}."
        )
    if sum(config.get(key) is not None for key in _KEYS) > 1:
        raise ValueError(
            "parallelism_config asks for more than one of ddp, fsdp and fsdp2. Choose one."
        )
