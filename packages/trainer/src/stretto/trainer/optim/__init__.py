"""Optimizers, and schedulers that know the run's duration."""

from __future__ import annotations

from stretto.trainer.optim.compiled import compile_composer_scheduler
from stretto.trainer.optim.decoupled import DecoupledSGDW
from stretto.trainer.optim.scheduler import (
    ComposerScheduler,
    ConstantScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWithWarmupScheduler,
    LinearScheduler,
    LinearWithWarmupScheduler,
)

__all__ = [
    "ComposerScheduler",
    "ConstantScheduler",
    "CosineAnnealingScheduler",
    "CosineAnnealingWithWarmupScheduler",
    "DecoupledSGDW",
    "LinearScheduler",
    "LinearWithWarmupScheduler",
    "compile_composer_scheduler",
]
