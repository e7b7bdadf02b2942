"""BlurPool: a low-pass filter before subsampling, so that small shifts change little.

Zhang 2019, "Making Convolutional Networks Shift-Invariant Again", arXiv:1904.11486. A strided
convolution or pooling samples without regard to what lies between its samples, and a shift by one
pixel can change its output entirely. BlurPool smooths first, with a small binomial filter.

The layers are subclasses of those that they replace and have the same parameters under the same
names: a state dict of the plain model loads into the blurred one and the other way round, and one
written by Composer is understood. The filter itself is in no state dict.
"""

from __future__ import annotations

from stretto.algorithms.blurpool.layers import BlurConv2d, BlurMaxPool2d, BlurPool2d
from stretto.algorithms.blurpool.maths import binomial_filter, blur_2d, blurmax_pool2d
from stretto.algorithms.blurpool.method import BlurPool, apply_blurpool

__all__ = [
    "BlurConv2d",
    "BlurMaxPool2d",
    "BlurPool",
    "BlurPool2d",
    "apply_blurpool",
    "binomial_filter",
    "blur_2d",
    "blurmax_pool2d",
]
