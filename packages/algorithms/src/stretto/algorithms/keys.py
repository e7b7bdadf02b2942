"""Keys: where in a batch the input and the target are.

A key is an index (``0``), a name (``"labels"``), or a pair ``(getter, setter)`` with
``getter(batch) -> value`` and ``setter(batch, value) -> batch``.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, MutableMapping
from typing import Any, TypeAlias, cast

import torch

from stretto.algorithms.errors import BatchFormatError

__all__ = ["BatchKey", "check_key", "get_item", "set_item"]

Getter: TypeAlias = Callable[[Any], Any]
Setter: TypeAlias = Callable[[Any, Any], Any]
BatchKey: TypeAlias = int | str | tuple[Getter, Setter]


def check_key(key: object, name: str) -> BatchKey:
    """Return `key` if it is a key.

    Args:
        key: What the user gave.
        name: The argument's name, for the message.

    Raises:
        TypeError: It is neither an integer, nor a string, nor a pair of callables.
    """
    if isinstance(key, (int, str)) and not isinstance(key, bool):
        return key
    if isinstance(key, (tuple, list)):
        pair = tuple(cast("tuple[object, ...]", key))
        if len(pair) == 2 and all(callable(part) for part in pair):
            return cast("tuple[Getter, Setter]", pair)
    raise TypeError(
        f"{name}={key!r} is no key. Give an index (0), a name ('labels'), or a pair "
        "(getter, setter) with getter(batch) -> value and setter(batch, value) -> batch."
    )


def get_item(batch: Any, key: BatchKey) -> Any:
    """Return the part of `batch` that `key` names.

    Args:
        batch: A tensor, sequence, mapping, named tuple, dataclass, or anything a getter reads.
        key: See the module's description. A name is looked up as an item of a mapping and as an
            attribute of everything else.

    Raises:
        BatchFormatError: The batch has no such part.
    """
    if isinstance(key, tuple):
        return key[0](batch)
    try:
        if isinstance(key, str) and not _has_items(batch):
            return getattr(batch, key)
        return batch[key]
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise BatchFormatError(_describe(batch, key)) from error


def set_item(batch: Any, key: BatchKey, value: Any) -> Any:
    """Return a batch like `batch` in which `key` names `value`.

    The container is copied (one level deep), so that a microbatch never writes into the batch it
    was cut from; the other parts are shared.

    Args:
        batch: As in `get_item`.
        key: As in `get_item`.
        value: The new part.

    Raises:
        BatchFormatError: The batch has no such part.
    """
    if isinstance(key, tuple):
        return key[1](batch, value)
    get_item(batch, key)
    if isinstance(batch, tuple):
        return _set_in_tuple(cast("tuple[Any, ...]", batch), key, value)
    if isinstance(batch, torch.Tensor):
        raise BatchFormatError(
            "The batch is a single tensor, and a part of it cannot be replaced without writing "
            "into the user's data. Give a pair (getter, setter) as the key."
        )
    if isinstance(key, str) and dataclasses.is_dataclass(cast("object", batch)):
        return dataclasses.replace(batch, **{key: value})
    copied = copy.copy(batch)
    if isinstance(key, str) and not _has_items(batch):
        setattr(copied, key, value)
    else:
        copied[key] = value
    return copied


def _has_items(batch: Any) -> bool:
    """Say whether names are items: mappings, and look-alikes such as transformers' encodings."""
    return isinstance(batch, MutableMapping) or hasattr(batch, "keys")


def _set_in_tuple(batch: tuple[Any, ...], key: int | str, value: Any) -> tuple[Any, ...]:
    replace = cast("Callable[..., tuple[Any, ...]] | None", getattr(batch, "_replace", None))
    if replace is not None:
        fields = cast("tuple[str, ...]", getattr(batch, "_fields", ()))
        return replace(**{fields[key] if isinstance(key, int) else key: value})
    parts = list(batch)
    parts[cast("int", key)] = value
    return tuple(parts)


def _describe(batch: Any, key: int | str) -> str:
    kind = type(batch).__name__
    if _has_items(batch):
        return f"The batch ({kind}) has no {key!r}; it has {sorted(map(str, batch.keys()))}."
    if isinstance(batch, (tuple, list)):
        size = len(cast("tuple[Any, ...]", batch))
        return (
            f"The batch is a {kind} of {size} parts and has no {key!r}. "
            "Give input_key and target_key that fit your batches."
        )
    return f"The batch ({kind}) has no {key!r}. Give a pair (getter, setter) as the key."
