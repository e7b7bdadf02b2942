"""What the training loop knows about parallelism: nothing beyond this file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from stretto.trainer.devices import Device
from stretto.trainer.distributed.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A model and its optimizers, ready to train.

    Attributes:
        module: What the loop calls in training: a DDP wrapper, or the model itself.
        model: The user's model. Evaluation calls this one.
        optimizers: The very objects that were handed in, holding the parameters of ``model``.
    """

    module: nn.Module
    model: nn.Module
    optimizers: tuple[Optimizer, ...]


class ParallelStrategy(Protocol):
    """How the ranks of a run share the work on one model.

    After every microbatch of a batch went through ``backward(loss * gradient_multiplier /
    denominator)``, within :meth:`microbatch_context`, the gradients are those of the sum of all
    ranks' losses over the denominator: the same under every strategy and for every microbatch size.
    """

    @property
    def name(self) -> str:
        """``single``, ``ddp`` or ``fsdp``."""
        ...

    @property
    def topology(self) -> Topology:
        """The ranks, with this strategy's mesh and shards."""
        ...

    @property
    def gradient_multiplier(self) -> float:
        """What a loss is multiplied by, so that gradients come out as sums over the ranks."""
        ...

    def prepare(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        device: Device,
        *,
        find_unused_parameters: bool = False,
    ) -> Prepared:
        """Move a model to the device, share it out, and keep its optimizers bound to it.

        Every rank starts from rank 0's parameters and buffers.

        Args:
            model: The user's model; whole, not on the meta device.
            optimizers: Of its parameters. Their groups are changed in place.
            device: Where to train.
            find_unused_parameters: Some parameters get no gradient in some batches.

        Raises:
            ValueError: The model has no parameters, one is on the meta device, or an optimizer
                holds one that is not the model's.
        """
        ...

    def microbatch_context(
        self, prepared: Prepared, *, is_last: bool
    ) -> AbstractContextManager[Any]:
        """Return the context of one microbatch's forward and backward pass, both within it.

        Gradients cross between the ranks in the last one.
        """
        ...

    def sum_counts(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Return the sums of some whole numbers over the data-parallel ranks.

        On the host: the device is not waited for.
        """
        ...

    def mean_loss(self, loss: Tensor) -> Tensor:
        """Return the mean of a detached tensor over the data-parallel ranks, on its device."""
        ...

    def can_retry(self) -> bool:
        """Tell whether a step that failed half-way can be done again in this process."""
        ...

    def model_state_dict(self, prepared: Prepared, *, full: bool = True) -> dict[str, Any]:
        """Return parameters and buffers by canonical name, whole.

        Every rank must call it. Where parameters are shards, only rank 0 gets them (the others an
        empty dict), on the CPU.

        Raises:
            ValueError: ``full`` is false; sharded state dicts are not supported yet.
        """
        ...

    def load_model_state_dict(
        self, prepared: Prepared, state_dict: Mapping[str, Any], *, strict: bool = True
    ) -> tuple[list[str], list[str]]:
        """Load whole parameters and buffers by canonical name, on every rank.

        Returns:
            The names that are missing in the state dict, and those it has beyond the model's.

        Raises:
            CheckpointMismatchError: ``strict`` and there are such names, or a shape differs.
                Nothing was loaded then.
        """
        ...

    def optimizer_state_dict(self, prepared: Prepared, index: int) -> dict[str, Any]:
        """Return the state of one optimizer by canonical name, whole.

        Like :meth:`model_state_dict`: called by all ranks, empty beyond rank 0 where shards are
        gathered. The dict has ``state`` (name to values) and ``param_groups`` (with names).
        """
        ...

    def load_optimizer_state_dict(
        self, prepared: Prepared, index: int, state_dict: Mapping[str, Any]
    ) -> None:
        """Load the state of one optimizer by canonical name, on every rank.

        Raises:
            CheckpointMismatchError: Names, groups or shapes differ. Nothing was loaded then.
        """
        ...
