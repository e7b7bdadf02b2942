"""What every device can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stretto.trainer import _torch

ModuleT = TypeVar("ModuleT", bound=nn.Module)
BatchT = TypeVar("BatchT")


class Device(ABC):
    """A place where tensors live and work is done.

    Attributes:
        name: The name users give: ``cpu``, ``gpu`` or ``mps``.
        dist_backend: What the ranks of a run talk over on this device; empty if nothing does.
    """

    name: ClassVar[str]
    dist_backend: ClassVar[str]

    @property
    @abstractmethod
    def torch_device(self) -> torch.device:
        """The device in torch's terms."""

    def module_to_device(self, module: ModuleT) -> ModuleT:
        """Move a module's parameters and buffers here, in place, and return it.

        The parameters stay the same objects, so an optimizer keeps them.
        """
        return module.to(self.torch_device)

    def tensor_to_device(self, tensor: Tensor) -> Tensor:
        """Return the tensor here; itself if it is here already."""
        return tensor.to(self.torch_device, non_blocking=True)

    def batch_to_device(self, batch: BatchT) -> BatchT:
        """Return a batch with every tensor in it here.

        Args:
            batch: A tensor, or dicts, lists, tuples and named tuples of such, to any depth. What
                else has a ``to`` method is asked to move itself; the rest stays as it is.
        """
        return cast("BatchT", self._moved(batch))

    def optimizer_to_device(self, optimizer: Optimizer) -> Optimizer:
        """Move an optimizer's state to where its parameters are, in place, and return it.

        Step counters stay on the host, where the optimizers that are not fused expect them.
        """
        for values in _torch.optimizer_state(optimizer).values():
            for key, value in values.items():
                if isinstance(value, Tensor) and key != "step":
                    values[key] = value.to(self.torch_device)
        return optimizer

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.tensor_to_device(value)
        if isinstance(value, Mapping):
            mapping = cast("Mapping[Any, Any]", value)
            moved = {key: self._moved(item) for key, item in mapping.items()}
            return moved if type(mapping) is dict else _rebuilt(mapping, moved)
        if isinstance(value, tuple):
            entries = cast("tuple[Any, ...]", value)
            items = [self._moved(item) for item in entries]
            return cast("Any", type(entries))(*items) if hasattr(entries, "_fields") else (*items,)
        if isinstance(value, list):
            return [self._moved(item) for item in cast("list[Any]", value)]
        if callable(move := getattr(value, "to", None)):
            return move(self.torch_device)
        return value


def _rebuilt(mapping: Any, moved: dict[Any, Any]) -> Any:
    """Give moved values to a mapping of the original's own type, such as a BatchEncoding."""
    if callable(move := getattr(mapping, "copy", None)):
        copied = move()
        if isinstance(copied, type(mapping)):
            for key, value in moved.items():
                cast("Any", copied)[key] = value
            return copied
    return moved
