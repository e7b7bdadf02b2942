"""Making sure, before a file is written, that it can be read without running code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from stretto.trainer.checkpoint.errors import UnsafeCheckpointError

_SCALARS = (bool, int, float, str, bytes, type(None))
_TORCH_DATA = (torch.dtype, torch.device, torch.Size)

LeafT = TypeVar("LeafT")


def plain(value: Any, path: str) -> Any:
    """Return a copy of a tree that ``torch.load(weights_only=True)`` can read.

    Containers become plain ones, numpy's scalars Python's, tensors go to the CPU; views are cut out
    of what they are a view of, and tensors that share memory still do.

    Args:
        value: Tensors, numbers, text, bytes, None, in dicts, lists, tuples and sets.
        path: Where in the checkpoint it stands, for the message.

    Raises:
        UnsafeCheckpointError: Something else is in it.
    """
    return _Walk().copy(value, path)


def mapped(value: Any, kind: type[LeafT], change: Callable[[LeafT], Any]) -> Any:
    """Return a tree of dicts, lists and tuples with the leaves of one kind changed.

    Args:
        value: The tree.
        kind: Which leaves.
        change: Called for each of them.
    """
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {key: mapped(item, kind, change) for key, item in entries.items()}
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        items = [mapped(item, kind, change) for item in cast("list[Any]", value)]
        return items if isinstance(value, list) else tuple(items)
    return value


class _Walk:
    """One walk over one tree; remembers tensors by the memory they lie in."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[Any, ...], Tensor] = {}

    def copy(self, value: Any, path: str) -> Any:
        if type(value) in _SCALARS or isinstance(value, _TORCH_DATA):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, Mapping):
            entries = cast("Mapping[Any, Any]", value)
            return {
                self._key(key, path): self.copy(item, f"{path}/{key}")
                for key, item in entries.items()
            }
        if isinstance(value, list | tuple):
            entries = cast("list[Any]", value)
            items = [self.copy(item, f"{path}/{place}") for place, item in enumerate(entries)]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, set | frozenset):
            return {self._key(item, path) for item in cast("set[Any]", value)}
        if type(value).__module__ == "numpy" and hasattr(value, "item") and not value.shape:
            return self.copy(value.item(), path)
        raise self._refused(value, path)

    def _key(self, key: Any, path: str) -> Any:
        if type(key) in _SCALARS:
            return key
        if isinstance(key, tuple):
            return tuple(self._key(part, path) for part in cast("tuple[Any, ...]", key))
        raise self._refused(key, f"{path} (a key)")

    def _tensor(self, tensor: Tensor, path: str) -> Tensor:
        found = tensor.detach()
        if type(found) is not Tensor and type(found) is not nn.Parameter:
            raise self._refused(tensor, path)
        if found.layout is not torch.strided or found.is_meta:
            return found.cpu()
        storage = found.untyped_storage()
        key = (
            storage.data_ptr(),
            found.storage_offset(),
            tuple(found.shape),
            found.stride(),
            found.dtype,
            found.device,
        )
        if key not in self._tensors:
            on_cpu = found.cpu()
            is_view = found.numel() * found.element_size() < on_cpu.untyped_storage().nbytes()
            self._tensors[key] = on_cpu.clone() if is_view else on_cpu
        return self._tensors[key]

    @staticmethod
    def _refused(value: Any, path: str) -> UnsafeCheckpointError:
        kind = cast("type[object]", type(value))
        return UnsafeCheckpointError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold: "
            f"reading it would need code to run. Return tensors, numbers, text, bytes, None, and "
            f"dicts, lists, tuples and sets of these from state_dict()."
        )
