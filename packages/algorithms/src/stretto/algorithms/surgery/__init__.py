"""Replace parts of a model in place, and keep everything else as it was."""

from __future__ import annotations

from stretto.algorithms.surgery.adopt import adopt
from stretto.algorithms.surgery.optimizers import rebind_optimizers
from stretto.algorithms.surgery.policy import Policy
from stretto.algorithms.surgery.replace import replace_modules
from stretto.algorithms.surgery.report import Replacement, SurgeryReport

__all__ = [
    "Policy",
    "Replacement",
    "SurgeryReport",
    "adopt",
    "rebind_optimizers",
    "replace_modules",
]
