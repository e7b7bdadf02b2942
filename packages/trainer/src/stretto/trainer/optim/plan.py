"""The schedulers that a run was given, and when they are bound to its optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler

from stretto.trainer.optim.compiled import compile_composer_scheduler

if TYPE_CHECKING:
    from stretto.trainer.state import State


class SchedulerPlan:
    """Schedules waiting for the run's duration to be known.

    Args:
        given: torch schedulers and functions of the state.
        ratio: The scale schedule ratio.
        step_every_batch: Whether they step with every batch; None for every batch unless there is
            a torch scheduler, whose own unit is the epoch.
    """

    def __init__(
        self, given: Sequence[Any], ratio: float = 1.0, step_every_batch: bool | None = None
    ) -> None:
        self._torch = [s for s in given if isinstance(s, LRScheduler)]
        self._functions = [s for s in given if not isinstance(s, LRScheduler)]
        self._ratio = ratio
        self._bound = False
        self.step_every_batch = not self._torch if step_every_batch is None else step_every_batch

    def bind_own(self, state: State) -> None:
        """Set the torch schedulers, which need no duration, so that a checkpoint finds them."""
        state.model_state.schedulers = list(self._torch)

    def bind(self, state: State) -> None:
        """Set the run's schedulers and their first rates; once.

        Raises:
            ValueError: If a schedule's times do not fit the run.
        """
        if self._bound:
            return
        schedulers = list(self._torch)
        if self._functions:
            schedulers += [
                compile_composer_scheduler(self._functions, state, self._ratio, optimizer=optimizer)
                for optimizer in state.optimizers
            ]
        state.model_state.schedulers = schedulers
        self._bound = True
