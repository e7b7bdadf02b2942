"""Batches: how they are described, counted, split, moved and resumed."""

from __future__ import annotations

from stretto.trainer.data.spec import DataSpec, ensure_data_spec
from stretto.trainer.data.split import count_rows, default_split_batch, slice_rows

__all__ = ["DataSpec", "count_rows", "default_split_batch", "ensure_data_spec", "slice_rows"]
