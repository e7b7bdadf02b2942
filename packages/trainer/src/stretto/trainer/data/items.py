"""Read and replace one item of a batch by index, name or a pair of functions.

Replacing never changes a container in place: the whole batch is kept for a second pass, so the
result is a new container that shares the other items.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

from torch import Tensor

from stretto.trainer._loose import is_mapping, is_sequence

BatchKey = (
    int
    | str
    | Callable[[Any], Any]
    | tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]
    | Sequence[int | str]
)


def batch_get(batch: Any, key: BatchKey) -> Any:
    """Return an item of a batch.

    Args:
        batch: The batch.
        key: An index, a name (of a mapping's entry or an attribute), a function of the batch, a
            pair of functions `(get, set)`, or a sequence of indices and names for a tuple of items.

    Raises:
        KeyError: If a mapping has no such entry.
        IndexError: If a sequence is too short.
    """
    if isinstance(key, int):
        return batch[key]
    if isinstance(key, str):
        return batch[key] if is_mapping(batch) else getattr(batch, key)
    if callable(key):
        return key(batch)
    if _is_pair(key):
        return cast("Any", key)[0](batch)
    return tuple(batch_get(batch, k) for k in cast("Sequence[int | str]", key))


def batch_set(batch: Any, key: BatchKey, value: Any) -> Any:
    """Return a batch in which an item is replaced.

    Args:
        batch: The batch; left as it is, unless a `set` function of the user's changes it.
        key: As for `batch_get`; for a pair `(get, set)`, `set(batch, value)` returns the new batch.
        value: The new item, or items for a sequence of keys.

    Raises:
        ValueError: If the key is a single function, which cannot set.
    """
    if isinstance(key, int | str):
        return _replace(batch, key, value)
    if callable(key):
        raise ValueError("a batch key that is one function can only read: give a pair (get, set)")
    if _is_pair(key):
        result = cast("Any", key)[1](batch, value)
        return batch if result is None else result
    for one, item in zip(cast("Sequence[int | str]", key), value, strict=True):
        batch = _replace(batch, one, item)
    return batch


def _is_pair(key: Any) -> bool:
    return is_sequence(key) and len(key) == 2 and all(map(callable, key))


def _replace(batch: Any, key: int | str, value: Any) -> Any:
    if isinstance(batch, tuple):
        return _replace_in_tuple(cast("tuple[Any, ...]", batch), key, value)
    clone: Any = batch.clone() if isinstance(batch, Tensor) else copy.copy(batch)
    if isinstance(key, str) and not is_mapping(batch):
        setattr(clone, key, value)
    else:
        clone[key] = value
    return clone


def _replace_in_tuple(batch: tuple[Any, ...], key: int | str, value: Any) -> tuple[Any, ...]:
    fields: tuple[str, ...] | None = getattr(batch, "_fields", None)
    if isinstance(key, str):
        if fields is None:
            raise TypeError(f"a tuple has no item called {key!r}: use an index")
        key = fields.index(key)
    items: list[Any] = list(batch)
    items[key] = value
    return type(batch)(*items) if fields is not None else tuple(items)
