"""A PyTorch training loop: DDP, FSDP2, checkpoints, exact resumption, loggers, launcher.

Names are imported when they are first used, so that importing the package costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.core_events import (
        Algorithm,
        Callback,
        Engine,
        Event,
        Logger,
        LoggerDestination,
        Time,
        Timestamp,
        TimeUnit,
    )
    from stretto.trainer import dist
    from stretto.trainer.data.spec import DataSpec
    from stretto.trainer.evaluator import Evaluator
    from stretto.trainer.models import ComposerClassifier, ComposerModel
    from stretto.trainer.state import State
    from stretto.trainer.trainer import Trainer

__all__ = [
    "Algorithm",
    "Callback",
    "ComposerClassifier",
    "ComposerModel",
    "DataSpec",
    "Engine",
    "Evaluator",
    "Event",
    "Logger",
    "LoggerDestination",
    "State",
    "Time",
    "TimeUnit",
    "Timestamp",
    "Trainer",
    "dist",
]

_HOMES = {
    "ComposerClassifier": "stretto.trainer.models",
    "ComposerModel": "stretto.trainer.models",
    "DataSpec": "stretto.trainer.data.spec",
    "Evaluator": "stretto.trainer.evaluator",
    "State": "stretto.trainer.state",
    "Trainer": "stretto.trainer.trainer",
}


def __getattr__(name: str) -> object:
    if name == "dist":
        return import_module("stretto.trainer.dist")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "stretto.core_events")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
