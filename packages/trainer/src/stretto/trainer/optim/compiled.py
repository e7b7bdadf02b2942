"""Make torch schedulers that follow a run's progress."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

if TYPE_CHECKING:
    from stretto.trainer.optim.scheduler import ComposerScheduler
    from stretto.trainer.state import State


def compile_composer_scheduler(
    scheduler: ComposerScheduler | Sequence[ComposerScheduler],
    state: State,
    ssr: float = 1.0,
    *,
    optimizer: Optimizer | None = None,
) -> LambdaLR:
    """Return a torch scheduler that sets the rates of an optimizer from a run's progress.

    Args:
        scheduler: One schedule, or several whose multipliers are multiplied.
        state: The run; read at every step.
        ssr: The scale schedule ratio, above 0.
        optimizer: Whose groups' initial rates are scaled; by default the run's first.

    Raises:
        ValueError: If `ssr` is not above 0, or a schedule's times do not fit the run.
    """
    if not ssr > 0:
        raise ValueError(f"scale_schedule_ratio must be above 0, got {ssr}")
    several = tuple(scheduler) if isinstance(scheduler, Sequence) else (scheduler,)

    def multiplier(_: int) -> float:
        return math.prod(one(state, ssr) for one in several)

    return LambdaLR(state.optimizers[0] if optimizer is None else optimizer, multiplier)
