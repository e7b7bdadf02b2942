"""Number formats, and who unscales, checks and applies the gradients."""

from __future__ import annotations

from stretto.trainer.precision.names import Precision, default_precision
from stretto.trainer.precision.policy import PrecisionPolicy, make_precision_policy
from stretto.trainer.precision.scaler import LossScaler

__all__ = [
    "LossScaler",
    "Precision",
    "PrecisionPolicy",
    "default_precision",
    "make_precision_policy",
]
