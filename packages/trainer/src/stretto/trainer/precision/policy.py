"""Who casts the forward pass, and who unscales, checks and applies the gradients.

A training step asks one object, in this order: :meth:`~PrecisionPolicy.forward_context` and
:meth:`~PrecisionPolicy.backward` for each microbatch, :meth:`~PrecisionPolicy.unscale`, whatever
looks at or clips the gradients, :meth:`~PrecisionPolicy.step`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from stretto.trainer import _torch
from stretto.trainer.devices import Device
from stretto.trainer.distributed.process_group import is_initialized
from stretto.trainer.distributed.topology import Topology
from stretto.trainer.precision.names import Precision, resolve_precision
from stretto.trainer.precision.scaler import LossScaler

_NOTHING: AbstractContextManager[None] = nullcontext()


class PrecisionPolicy(Protocol):
    """The number format of a run."""

    @property
    def precision(self) -> Precision:
        """The format."""
        ...

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass and its loss."""
        ...

    def backward(self, loss: Tensor, *, create_graph: bool = False) -> None:
        """Run the backward pass of a microbatch's loss."""
        ...

    def unscale(self, optimizers: Sequence[Optimizer]) -> None:
        """Bring the gradients to their true size; does nothing the second time in a step."""
        ...

    def step(self, optimizers: Sequence[Optimizer]) -> None:
        """Apply the gradients, except where they are not finite because the loss was scaled."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must keep; empty where nothing is scaled."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up a saved state; an empty one changes nothing."""
        ...


class UnscaledPolicy:
    """fp32, and bf16, whose range is wide enough to need no scaling.

    Args:
        precision: fp32 or amp_bf16.
        device: Where the computation runs.
    """

    def __init__(self, precision: Precision, device: Device) -> None:
        self.precision = precision
        self._device_type = device.torch_device.type
        self._dtype = precision.low_dtype

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return autocast to bf16, or a context that does nothing."""
        if self._dtype is None:
            return _NOTHING
        return torch.autocast(self._device_type, dtype=self._dtype)

    def backward(self, loss: Tensor, *, create_graph: bool = False) -> None:
        """Run the backward pass."""
        _torch.backward(loss, create_graph=create_graph)

    def unscale(self, optimizers: Sequence[Optimizer]) -> None:
        """Do nothing: the gradients have their true size."""

    def step(self, optimizers: Sequence[Optimizer]) -> None:
        """Apply the gradients."""
        for optimizer in optimizers:
            _torch.optimizer_step(optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Do nothing: a scale saved by an fp16 run means nothing here."""


class ScaledPolicy:
    """fp16 on a GPU: the loss is scaled, and a step that overflows is skipped on every rank.

    Args:
        device: Where the computation runs.
        scaler: Scales, checks and steps.
    """

    precision = Precision.AMP_FP16

    def __init__(self, device: Device, scaler: LossScaler) -> None:
        self._device_type = device.torch_device.type
        self._scaler = scaler

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return autocast to fp16."""
        return torch.autocast(self._device_type, dtype=torch.float16)

    def backward(self, loss: Tensor, *, create_graph: bool = False) -> None:
        """Run the backward pass of the scaled loss."""
        _torch.backward(self._scaler.scaled(loss), create_graph=create_graph)

    def unscale(self, optimizers: Sequence[Optimizer]) -> None:
        """Divide the gradients by the scale, once a step."""
        self._scaler.unscale(optimizers)

    def step(self, optimizers: Sequence[Optimizer]) -> None:
        """Apply finite gradients, then set the next scale."""
        self._scaler.step(optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and its age."""
        return dict(self._scaler.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up a saved scale; an empty one, from a run in another format, changes nothing."""
        if state_dict:
            self._scaler.load_state_dict(dict(state_dict))


def make_precision_policy(
    precision: str | Precision | None, device: Device, topology: Topology
) -> PrecisionPolicy:
    """Return the policy of a number format.

    Args:
        precision: ``fp32``, ``amp_bf16``, ``amp_fp16`` (GPU only), or None: on a GPU ``amp_bf16``
            if the chip has it, else ``amp_fp16``; elsewhere ``fp32``.
        device: Where the computation runs.
        topology: Whose ranks must agree on skipping a step.

    Raises:
        ValueError: The name is unknown, or the device cannot do it.
    """
    resolved = resolve_precision(precision, device)
    if resolved is not Precision.AMP_FP16:
        return UnscaledPolicy(resolved, device)
    agree = _largest_over_ranks if topology.world_size > 1 else None
    return ScaledPolicy(device, LossScaler(device.torch_device, agree=agree))


def _largest_over_ranks(flags: Tensor) -> None:
    if is_initialized():
        _torch.all_reduce(flags, "MAX")
