"""One process, one device, whole parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from stretto.trainer.devices import Device
from stretto.trainer.distributed.topology import Topology
from stretto.trainer.parallel import portable
from stretto.trainer.parallel.checks import refuse_unusable
from stretto.trainer.parallel.strategy import Prepared

_NOTHING: AbstractContextManager[None] = nullcontext()


class SingleStrategy:
    """No parallelism, and not one collective.

    Args:
        topology: Of one process.
    """

    name = "single"
    gradient_multiplier = 1.0

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    def prepare(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        device: Device,
        *,
        find_unused_parameters: bool = False,
    ) -> Prepared:
        """Move the model and its optimizers' state to the device."""
        refuse_unusable(model, optimizers)
        moved = device.module_to_device(model)
        for optimizer in optimizers:
            device.optimizer_to_device(optimizer)
        return Prepared(module=moved, model=moved, optimizers=tuple(optimizers))

    def microbatch_context(
        self, prepared: Prepared, *, is_last: bool
    ) -> AbstractContextManager[Any]:
        """Return a context that does nothing, always the same one."""
        return _NOTHING

    def sum_counts(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return the counts."""
        return tuple(counts)

    def mean_loss(self, loss: Tensor) -> Tensor:
        """Return the loss."""
        return loss

    def can_retry(self) -> bool:
        """Tell that a failed step can be done again: nobody else took part in it."""
        return True

    def model_state_dict(self, prepared: Prepared, *, full: bool = True) -> dict[str, Any]:
        """Return parameters and buffers by canonical name."""
        portable.refuse_sharded(full=full)
        return portable.model_state(prepared.model)

    def load_model_state_dict(
        self, prepared: Prepared, state_dict: Mapping[str, Any], *, strict: bool = True
    ) -> tuple[list[str], list[str]]:
        """Load parameters and buffers by canonical name."""
        return portable.load_model_state(prepared.model, state_dict, strict=strict)

    def optimizer_state_dict(self, prepared: Prepared, index: int) -> dict[str, Any]:
        """Return the state of one optimizer by canonical name."""
        return portable.optimizer_state(prepared.model, prepared.optimizers[index])

    def load_optimizer_state_dict(
        self, prepared: Prepared, index: int, state_dict: Mapping[str, Any]
    ) -> None:
        """Load the state of one optimizer by canonical name."""
        portable.load_optimizer_state(prepared.model, prepared.optimizers[index], state_dict)
