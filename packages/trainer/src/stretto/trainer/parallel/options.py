"""What a user may say about parallelism, read from dicts, checked at construction.

The keys are those of Composer's ``FSDPConfig``, as the seed documents show them. Three kinds: those
that do something here; those that mean nothing under FSDP2 (a warning, once, where they are given);
those whose effect is not built (an error, unless they are given their "off" value).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any


class DDPSyncStrategy(StrEnum):
    """When gradients cross between the ranks.

    Under FSDP the first two decide where gradients are kept between microbatches: whole on every
    rank (one reduction a batch) or as shards (one a microbatch, less memory).
    """

    SINGLE_AUTO_SYNC = "single_auto_sync"
    """In the last microbatch's backward pass, overlapped with it."""

    MULTI_AUTO_SYNC = "multi_auto_sync"
    """In every microbatch's backward pass."""

    FORCED_SYNC = "forced_sync"
    """After the last backward pass, all at once; DDP only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DDPOptions:
    """Options of ``parallelism_config={"ddp": {...}}``.

    Attributes:
        find_unused_parameters: Some parameters get no gradient in some batches.
        gradient_as_bucket_view: Gradients share memory with what is sent.
        bucket_cap_mb: Size of one message; None means torch's own.
        static_graph: The same parameters are used in every batch.
    """

    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = True
    bucket_cap_mb: int | None = None
    static_graph: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FSDPOptions:
    """Options of ``parallelism_config={"fsdp": {...}}``.

    Attributes:
        sharding_strategy: ``FULL_SHARD`` frees whole parameters after forward, ``SHARD_GRAD_OP``
            keeps them until backward; ``HYBRID_SHARD`` and ``_HYBRID_SHARD_ZERO2`` do the same
            within each group of ``data_parallel_shard_degree`` ranks.
        reshard_after_forward: Overrides what the sharding strategy says about freeing.
        data_parallel_shard_degree: Ranks that one copy of the parameters is cut over; -1 means all.
        data_parallel_replicate_degree: Number of such copies; None means what the ranks allow.
        auto_wrap: Shard repeated blocks one by one; else only what is marked, and the rest as one.
        mixed_precision: ``DEFAULT`` (parameters are gathered in the trainer's precision, gradients
            summed in fp32), ``PURE`` (both in the trainer's precision), ``FULL`` (both as they
            are), or a dict of ``param_dtype``, ``reduce_dtype``, ``output_dtype``.
        activation_checkpointing: Recompute each block's activations in backward.
        state_dict_type: ``full``; ``sharded`` is not supported yet.
        sync_module_states: Accepted; ranks always start from rank 0's values.
        load_monolith_rank0_only: Accepted; a file only rank 0 can see is sent to the others anyway.
        verbose: Log what is sharded.
    """

    sharding_strategy: str = "FULL_SHARD"
    reshard_after_forward: bool | int | None = None
    data_parallel_shard_degree: int = -1
    data_parallel_replicate_degree: int | None = None
    auto_wrap: bool = True
    mixed_precision: str | Mapping[str, Any] = "DEFAULT"
    activation_checkpointing: bool = False
    state_dict_type: str = "full"
    sync_module_states: bool = False
    load_monolith_rank0_only: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.sharding_strategy == "NO_SHARD":
            raise ValueError(
                "sharding_strategy='NO_SHARD' keeps whole parameters on every rank. Leave 'fsdp' "
                "out of parallelism_config: several ranks then train with DDP."
            )
        _one_of("sharding_strategy", self.sharding_strategy, _STRATEGIES)
        if self.state_dict_type == "sharded":
            raise ValueError(
                "state_dict_type='sharded' is not supported yet: it comes with sharded "
                "checkpoints. Use 'full', where rank 0 writes one file."
            )
        _one_of("state_dict_type", self.state_dict_type, ("full",))
        if isinstance(self.mixed_precision, str):
            _one_of("mixed_precision", self.mixed_precision, ("DEFAULT", "PURE", "FULL"))
        else:
            _known("mixed_precision", self.mixed_precision, _MIXED_KEYS)
        if self.data_parallel_shard_degree == 0 or self.data_parallel_shard_degree < -1:
            raise ValueError(
                f"data_parallel_shard_degree is {self.data_parallel_shard_degree}; give a number "
                f"of ranks, or -1 for all."
            )

    @property
    def frees_after_forward(self) -> bool | int:
        """Whether whole parameters are freed between forward and backward."""
        if self.reshard_after_forward is not None:
            return self.reshard_after_forward
        return self.sharding_strategy in ("FULL_SHARD", "HYBRID_SHARD")


_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
_MIXED_KEYS = ("param_dtype", "reduce_dtype", "output_dtype", "buffer_dtype")

_MEANINGLESS = frozenset(
    {
        "activation_checkpointing_reentrant",
        "backward_prefetch",
        "backward_prefetch_limit",
        "forward_prefetch",
        "forward_prefetch_limit",
        "keep_low_precision_grads",
        "limit_all_gathers",
        "load_planner",
        "save_planner",
        "sharded_ckpt_prefix_dir",
        "te_checkpoint_wrapper",
        "te_shard_fp8_weight",
        "use_orig_params",
    }
)

_UNBUILT = frozenset(
    {"activation_cpu_offload", "cpu_offload", "device_mesh", "ignored_modules", "process_group"}
)

_warned: set[str] = set()


def read_fsdp_options(config: Mapping[str, Any] | FSDPOptions) -> FSDPOptions:
    """Read the dict of ``parallelism_config["fsdp"]``.

    Args:
        config: Keys of :class:`FSDPOptions`, or others of Composer's ``FSDPConfig``.

    Raises:
        ValueError: A key is unknown, its effect is not built, or its value makes no sense.
    """
    if isinstance(config, FSDPOptions):
        return config
    names = {field.name for field in fields(FSDPOptions)}
    _known("parallelism_config['fsdp']", config, names | _MEANINGLESS | _UNBUILT)
    for key in sorted(_UNBUILT & config.keys()):
        if config[key]:
            raise ValueError(
                f"parallelism_config['fsdp'][{key!r}] is {config[key]!r}, which is not supported. "
                f"Leave it out."
            )
    for key in sorted(_MEANINGLESS & config.keys()):
        if key not in _warned:
            _warned.add(key)
            warnings.warn(
                f"parallelism_config['fsdp'][{key!r}] means nothing under FSDP2 and is ignored.",
                stacklevel=2,
            )
    return FSDPOptions(**{key: value for key, value in config.items() if key in names})


def read_ddp_options(config: Mapping[str, Any] | DDPOptions | None) -> DDPOptions:
    """Read the dict of ``parallelism_config["ddp"]``.

    Args:
        config: Keys of :class:`DDPOptions`.

    Raises:
        ValueError: A key is unknown.
    """
    if isinstance(config, DDPOptions):
        return config
    given = config or {}
    _known("parallelism_config['ddp']", given, {field.name for field in fields(DDPOptions)})
    return DDPOptions(**given)


def read_sync_strategy(name: str | DDPSyncStrategy | None) -> DDPSyncStrategy | None:
    """Read the argument ``ddp_sync_strategy``.

    Args:
        name: One of :class:`DDPSyncStrategy`'s values in any case, or None.

    Raises:
        ValueError: The name is unknown.
    """
    if name is None or isinstance(name, DDPSyncStrategy):
        return name
    values = [member.value for member in DDPSyncStrategy]
    _one_of("ddp_sync_strategy", name.lower(), values)
    return DDPSyncStrategy(name.lower())


def _one_of(what: str, value: str, allowed: tuple[str, ...] | list[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{what} is {value!r}; use one of {', '.join(allowed)}.")


def _known(what: str, given: Mapping[str, Any], known: Any) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(
            f"{what} has the unknown keys {', '.join(map(repr, unknown))}; it knows "
            f"{', '.join(sorted(known))}."
        )
