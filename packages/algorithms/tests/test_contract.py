"""Every method passes the contract, alone and with the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stretto.algorithms import BlurPool, GradientClipping, LabelSmoothing, MixUp
from stretto.algorithms.testing import CHECKS, Case

METHODS = {
    "blurpool": lambda: BlurPool(),
    "blurpool_last": lambda: BlurPool(blur_first=False, filter_size=5),
    "mixup": lambda: MixUp(alpha=1.0),
    "mixup_one_share": lambda: MixUp(alpha=1.0, per_sample=False),
    "mixup_losses": lambda: MixUp(alpha=1.0, interpolate_loss=True),
    "label_smoothing": lambda: LabelSmoothing(0.1),
    "clipping_norm": lambda: GradientClipping("norm", 0.1),
    "clipping_value": lambda: GradientClipping("value", 1e-3),
    "clipping_adaptive": lambda: GradientClipping("adaptive", 0.01),
}


# Compiling takes seconds.
PARAMETERS = [
    pytest.param(check, id=name, marks=[pytest.mark.slow] if name == "fullgraph" else [])
    for name, check in CHECKS.items()
]


@pytest.mark.parametrize("check", PARAMETERS)
@pytest.mark.parametrize("make", METHODS.values(), ids=list(METHODS))
def test_contract(make: Callable[[], object], check: Callable[[Case], None]) -> None:
    check(Case(make=make))
