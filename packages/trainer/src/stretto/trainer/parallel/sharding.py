"""The calls into torch's ``fully_shard`` and ``DTensor``. Imported by ``fsdp`` only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Replicate, Shard

from stretto.trainer import _torch
from stretto.trainer.parallel.buffers import broadcast_tensors
from stretto.trainer.precision import Precision

_DTYPES = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "amp_bf16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
    "amp_fp16": torch.float16,
    "fp32": torch.float32,
    "float32": torch.float32,
}

# Sums need no multiplication of the gradients on the wire, which gloo cannot do. Older torch has
# means only.
_SUMS = hasattr(FSDPModule, "set_force_sum_reduction_for_comms")


def mixed_precision_policy(
    wish: str | Mapping[str, Any], precision: Precision
) -> MixedPrecisionPolicy:
    """Return FSDP's policy for ``mixed_precision`` under the trainer's precision.

    Args:
        wish: ``DEFAULT``, ``PURE``, ``FULL``, or a dict of types.
        precision: Of the trainer.

    Raises:
        ValueError: A type is unknown.
    """
    if isinstance(wish, Mapping):
        return MixedPrecisionPolicy(
            param_dtype=_dtype("param_dtype", wish.get("param_dtype")),
            reduce_dtype=_dtype("reduce_dtype", wish.get("reduce_dtype")),
            output_dtype=_dtype("output_dtype", wish.get("output_dtype")),
        )
    low = precision.low_dtype
    if low is None or wish == "FULL":
        return MixedPrecisionPolicy()
    reduce_dtype = low if wish == "PURE" else torch.float32
    return MixedPrecisionPolicy(param_dtype=low, reduce_dtype=reduce_dtype)


def loss_multiplier(size: int) -> float:
    """Return what makes reduced gradients sums over this many ranks."""
    return 1.0 if _SUMS else float(size)


def shard_module(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    *,
    mesh: DeviceMesh,
    policy: MixedPrecisionPolicy,
    frees_after_forward: bool | int,
    recompute: bool,
) -> None:
    """Cut a model over a mesh, block by block, from rank 0's values.

    Only one block at a time lies whole on the device.

    Args:
        model: The root.
        blocks: Modules that are gathered one by one, inner ones first.
        mesh: One dimension, or copies times shards.
        policy: Types of the gathered parameters and of the reduction.
        frees_after_forward: Free gathered parameters between forward and backward, or a smaller
            number of ranks to cut them over meanwhile.
        recompute: Recompute the blocks' activations in backward.
    """
    if recompute:
        _recompute(model, blocks)
    placed: set[int] = set()
    for block in blocks:
        _place(block, mesh, placed)
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=frees_after_forward)
    _place(model, mesh, placed)
    # The root's parameters are needed at once in backward, so torch keeps them by itself.
    root: dict[str, Any] = (
        {} if frees_after_forward is True else {"reshard_after_forward": frees_after_forward}
    )
    fully_shard(model, mesh=mesh, mp_policy=policy, **root)


def require_unused_support() -> None:
    """Raise where parameters may not stay unused.

    Raises:
        ValueError: This torch cannot.
    """
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise ValueError(
            "An algorithm leaves parameters unused in some batches, which FSDP2 cannot handle in "
            f"torch {torch.__version__}. Use a newer torch, or DDP."
        )


def sum_gradients(model: nn.Module, *, find_unused: bool) -> None:
    """Make reductions sums, and let ranks that did not use a parameter take part in its sum."""
    for module in _sharded(model):
        if _SUMS:
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    if find_unused:
        _root(model).set_reduce_scatter_unused_params(True)


def set_reduction(model: nn.Module, *, is_last: bool, keep_whole: bool) -> None:
    """Say what the next backward pass does with gradients.

    Args:
        model: The root.
        is_last: It is the batch's last.
        keep_whole: Before the last, keep whole gradients here instead of reducing them to shards.
    """
    root = _root(model)
    if keep_whole:
        root.set_requires_gradient_sync(is_last)
    else:
        root.set_requires_all_reduce(is_last)
    root.set_is_last_backward(is_last)


def reshard(model: nn.Module) -> None:
    """Put the shards in the place of parameters that a forward pass left gathered."""
    for module in _sharded(model):
        module.reshard()


def free_after_inference(model: nn.Module) -> None:
    """Let a forward pass without gradients end with shards in the parameters' place.

    Training keeps the root's parameters gathered until backward; without a backward pass they would
    stay, and whoever looked at ``model.parameters()`` would find other objects than the optimizer
    has. ``eval_forward`` becomes a forward method of its own, so that it may call ``self.forward``.
    """
    depth = 0

    def after_forward(module: nn.Module, args: Any, output: Any) -> None:
        if depth == 0 and not torch.is_grad_enabled():
            reshard(model)

    model.register_forward_hook(after_forward)
    original = cast("Callable[..., Any] | None", getattr(model, "eval_forward", None))
    if original is None:
        return
    register_fsdp_forward_method(model, "eval_forward")
    inner = cast("Callable[..., Any]", cast("Any", model).eval_forward)

    @functools.wraps(original)
    def eval_forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            return inner(*args, **kwargs)
        finally:
            depth -= 1
            if depth == 0 and not torch.is_grad_enabled():
                reshard(model)

    cast("Any", model).eval_forward = eval_forward


def gathered(value: Tensor) -> Tensor:
    """Return a tensor whole; every rank must call it. Whole ones come back as they are."""
    return cast("Any", value).full_tensor() if isinstance(value, DTensor) else value.detach()


def cut_like(whole: Tensor, like: Tensor) -> Tensor:
    """Return this rank's slice of a whole tensor, as a DTensor laid out like another.

    Nothing is sent: every rank holds the whole tensor.

    Args:
        whole: On any device.
        like: A DTensor of the same shape, or a plain tensor, for which ``whole`` is returned.
    """
    if not isinstance(like, DTensor):
        return whole
    mesh, placements = like.device_mesh, like.placements
    local = whole
    for dimension, placement in enumerate(placements):
        if isinstance(placement, Shard):
            local = _slice(local, cast("Any", placement).dim, mesh, dimension)
        elif not isinstance(placement, Replicate):
            raise ValueError(f"A parameter is laid out as {placement!r}; only slices are known.")
    local = local.to(like.to_local().device, copy=True)
    return cast("Any", DTensor).from_local(
        local.contiguous(),
        mesh,
        placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.contiguous().stride(),
    )


def _slice(tensor: Tensor, dim: int, mesh: DeviceMesh, mesh_dimension: int) -> Tensor:
    """Return this rank's part: like ``torch.chunk``, so the last ranks may get less or nothing."""
    length = tensor.shape[dim]
    step = -(-length // mesh.size(mesh_dimension))
    start = min(mesh.get_local_rank(mesh_dimension) * step, length)
    return tensor.narrow(dim, start, min(step, length - start))


def _place(module: nn.Module, mesh: DeviceMesh, placed: set[int]) -> None:
    """Move what is not sharded yet to the mesh's device, and take rank 0's values."""
    device = torch.device(mesh.device_type)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    fresh: list[Tensor] = []
    for tensor in (*module.parameters(), *module.buffers()):
        if id(tensor) not in placed and not isinstance(tensor, DTensor):
            placed.add(id(tensor))
            # FSDP takes dense parameters only: channels_last ones become plain here.
            tensor.data = tensor.data.to(device).contiguous()
            fresh.append(tensor)
    if mesh.size() > 1:
        broadcast_tensors(fresh)


def _recompute(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapper

    chosen = {id(block) for block in blocks}

    def is_chosen(module: nn.Module) -> bool:
        return id(module) in chosen

    cast("Any", wrapper).apply_activation_checkpointing(model, check_fn=is_chosen)


def _dtype(key: str, value: Any) -> torch.dtype | None:
    if value is None or isinstance(value, torch.dtype):
        return value
    if isinstance(value, Precision):
        return value.low_dtype
    dtype = _DTYPES.get(str(value).lower())
    if dtype is None:
        raise ValueError(
            f"mixed_precision[{key!r}] is {value!r}; give a torch.dtype or one of "
            f"{', '.join(_DTYPES)}."
        )
    return dtype


def _sharded(model: nn.Module) -> list[FSDPModule]:
    modules = (module for _, module in _torch.iterate_modules(model))
    return [module for module in modules if isinstance(module, FSDPModule)]


def _root(model: nn.Module) -> FSDPModule:
    return cast("FSDPModule", model)
