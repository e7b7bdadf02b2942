"""Training methods for PyTorch: one function call each, on any model or loop.

Every method is a function (``apply_blurpool(model)``) and an algorithm of a run
(``Trainer(algorithms=[BlurPool()])``). What is named here is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.algorithms.blurpool import (
        BlurConv2d,
        BlurMaxPool2d,
        BlurPool,
        BlurPool2d,
        apply_blurpool,
        blur_2d,
        blurmax_pool2d,
    )
    from stretto.algorithms.errors import AlgorithmError, BatchFormatError, SurgeryError
    from stretto.algorithms.gradient_clipping import GradientClipping, apply_gradient_clipping
    from stretto.algorithms.label_smoothing import LabelSmoothing, smooth_labels
    from stretto.algorithms.mixup import MixUp, mixup_batch
    from stretto.algorithms.warnings import NoEffectWarning, NotIntendedUseWarning

__all__ = [
    "AlgorithmError",
    "BatchFormatError",
    "BlurConv2d",
    "BlurMaxPool2d",
    "BlurPool",
    "BlurPool2d",
    "GradientClipping",
    "LabelSmoothing",
    "MixUp",
    "NoEffectWarning",
    "NotIntendedUseWarning",
    "SurgeryError",
    "apply_blurpool",
    "apply_gradient_clipping",
    "blur_2d",
    "blurmax_pool2d",
    "mixup_batch",
    "smooth_labels",
]

_MODULES = {
    "blurpool": (
        "BlurConv2d",
        "BlurMaxPool2d",
        "BlurPool",
        "BlurPool2d",
        "apply_blurpool",
        "blur_2d",
        "blurmax_pool2d",
    ),
    "errors": ("AlgorithmError", "BatchFormatError", "SurgeryError"),
    "gradient_clipping": ("GradientClipping", "apply_gradient_clipping"),
    "label_smoothing": ("LabelSmoothing", "smooth_labels"),
    "mixup": ("MixUp", "mixup_batch"),
    "warnings": ("NoEffectWarning", "NotIntendedUseWarning"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
