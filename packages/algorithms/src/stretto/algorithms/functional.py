"""Every method as a function, in one module: ``from stretto.algorithms import functional``."""

from __future__ import annotations

from stretto.algorithms.blurpool import apply_blurpool, blur_2d, blurmax_pool2d
from stretto.algorithms.gradient_clipping import apply_gradient_clipping
from stretto.algorithms.label_smoothing import smooth_labels
from stretto.algorithms.mixup import mixup_batch

__all__ = [
    "apply_blurpool",
    "apply_gradient_clipping",
    "blur_2d",
    "blurmax_pool2d",
    "mixup_batch",
    "smooth_labels",
]
