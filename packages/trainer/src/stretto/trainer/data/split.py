"""Count, slice and split a batch by rows, so that what belongs to one sample stays together.

A batch is a tensor, or tuples, lists and mappings of them. Its *columns* (inputs, labels) all have
the same number of rows; a list of one object a sample is a column too. What has no rows (a number,
a string, None, a tensor without dimensions) goes with every part unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, cast

from torch import Tensor

from stretto.trainer._loose import is_mapping, is_sequence, kind_of

REMEDY = (
    "give DataSpec(get_num_samples_in_batch=..., split_batch=...) functions that know this batch"
)


def count_rows(batch: Any) -> int:
    """Return the number of samples in a batch.

    Args:
        batch: A tensor of shape (rows, ...), or a tuple, list or mapping of columns.

    Raises:
        ValueError: If the columns do not have the same number of rows, or nothing has rows.
    """
    rows = _count_tensors(batch)  # what nearly every batch is made of, without a search
    if rows is not None:
        return rows
    rows = _find_rows(batch)
    if rows is None:
        raise ValueError(f"cannot tell how many samples a {kind_of(batch)} holds: {REMEDY}")
    if _is_container(batch):
        _check(batch, rows, top=True)
    return rows


def slice_rows(batch: Any, rows: int, start: int, stop: int, *, strict: bool = True) -> Any:
    """Return rows `start` to `stop` of everything in a batch; containers are new, tensors views.

    Args:
        batch: The batch, of `rows` samples.
        rows: How many samples the batch holds.
        start: First row to keep.
        stop: One past the last row to keep.
        strict: Whether a tensor with another number of rows is an error; otherwise it is kept
            whole, as the outputs of a model may hold such.

    Raises:
        ValueError: If `strict` and a column has another number of rows.
    """
    if isinstance(batch, Tensor) and batch.ndim and batch.shape[0] == rows:
        return batch[start:stop]
    return _slice(batch, rows, start, stop, strict, top=True)


def default_split_batch(batch: Any, microbatch_size: int) -> Sequence[Any]:
    """Split a batch into blocks of consecutive rows, the last one perhaps smaller.

    Args:
        batch: A tensor, or a tuple, list or mapping of columns.
        microbatch_size: Most rows in a block, at least 1.

    Raises:
        ValueError: If the size is below 1 or the batch's rows cannot be told.
    """
    if microbatch_size < 1:
        raise ValueError(f"microbatch_size must be at least 1, got {microbatch_size}")
    rows = count_rows(batch)
    if rows <= microbatch_size:
        return [batch]
    if not _is_container(batch) and not _is_array(batch):
        raise ValueError(f"cannot split a {kind_of(batch)} into microbatches: {REMEDY}")
    starts = range(0, rows, microbatch_size)
    return [slice_rows(batch, rows, i, min(i + microbatch_size, rows)) for i in starts]


def _count_tensors(batch: Any) -> int | None:
    """Return the rows of a tensor, or of a tuple or list of tensors with equally many."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else None
    if not isinstance(batch, tuple | list):
        return None
    rows: int | None = None
    for column in cast("Sequence[Any]", batch):
        if not isinstance(column, Tensor) or not column.ndim:
            return None
        if rows is None:
            rows = column.shape[0]
        elif column.shape[0] != rows:
            return None
    return rows


def _is_container(value: Any) -> bool:
    return isinstance(value, tuple | list | Mapping)


def _is_array(value: Any) -> bool:
    """Whether a value is a tensor or an array (anything with a shape that can be sliced)."""
    return isinstance(value, Tensor) or (hasattr(value, "shape") and hasattr(value, "__getitem__"))


def _elements(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(cast("Mapping[Any, Any]", value).values())
    return list(cast("Sequence[Any]", value))


def _find_rows(value: Any) -> int | None:
    """Look for the number of rows: arrays at this level first, then inside, then own length."""
    if _is_array(value):
        return int(value.shape[0]) if len(value.shape) else None
    if not _is_container(value):
        custom = not isinstance(value, str | bytes) and hasattr(value, "__len__")
        return len(value) if custom else None
    elements = _elements(value)
    arrays = [e for e in elements if _is_array(e) and len(e.shape)]
    if arrays:
        return int(arrays[0].shape[0])
    for element in elements:
        if _is_container(element):
            found = _find_rows(element)
            if found is not None:
                return found
    return None if isinstance(value, Mapping) else len(elements)


def _has_rows(value: Any, rows: int) -> bool:
    if _is_array(value):
        return bool(len(value.shape)) and int(value.shape[0]) == rows
    return _is_container(value) and _find_rows(value) == rows


def _holds_rows(value: Any, rows: int, *, top: bool) -> bool:
    """Whether a list or tuple is one column with an object a row, rather than several columns."""
    if len(value) != rows or isinstance(value, Mapping):
        return False
    columns = bool(rows) and all(_has_rows(element, rows) for element in value)
    if top:
        return not any(_is_array(e) and len(e.shape) for e in value) and not columns
    return not (columns and isinstance(value, tuple))


def _check(value: Any, rows: int, *, top: bool = False) -> None:
    if _is_array(value):
        if len(value.shape) and int(value.shape[0]) != rows:
            raise _uneven(int(value.shape[0]), rows)
    elif _is_container(value) and not _holds_rows(value, rows, top=top):
        if not top and isinstance(value, list) and not any(map(_is_array, _elements(value))):
            raise _uneven(len(_elements(value)), rows)
        for element in _elements(value):
            _check(element, rows)


def _uneven(found: int, rows: int) -> ValueError:
    return ValueError(
        f"the batch has columns of {rows} and of {found} rows, so its samples are unclear: {REMEDY}"
    )


def _slice(value: Any, rows: int, start: int, stop: int, strict: bool, *, top: bool = False) -> Any:
    if _is_array(value):
        if not len(value.shape):
            return value
        if int(value.shape[0]) == rows:
            return value[start:stop]
        if strict:
            raise _uneven(int(value.shape[0]), rows)
        return value
    if is_mapping(value):
        parts = {k: _slice(v, rows, start, stop, strict) for k, v in value.items()}
        return _rebuild_mapping(value, parts)
    if not is_sequence(value):
        return value
    if _holds_rows(value, rows, top=top):
        return _rebuild_sequence(value, list(value[start:stop]))
    return _rebuild_sequence(value, [_slice(e, rows, start, stop, strict) for e in value])


def _rebuild_mapping(original: Mapping[Any, Any], parts: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(original) is dict or not isinstance(original, MutableMapping):
        return parts
    clone: MutableMapping[Any, Any] = copy.copy(original)
    clone.update(parts)
    return clone


def _rebuild_sequence(original: tuple[Any, ...] | list[Any], parts: list[Any]) -> Any:
    if isinstance(original, list):
        return parts
    if hasattr(original, "_fields"):  # a named tuple
        return type(original)(*parts)
    return tuple(parts)
