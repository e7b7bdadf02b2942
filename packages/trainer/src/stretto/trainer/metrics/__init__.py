"""Metrics of our own; torchmetrics is imported when one of them is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.trainer.metrics.cross_entropy import CrossEntropy

__all__ = ["CrossEntropy"]


def __getattr__(name: str) -> object:
    if name == "CrossEntropy":
        from stretto.trainer.metrics.cross_entropy import CrossEntropy

        return CrossEntropy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
