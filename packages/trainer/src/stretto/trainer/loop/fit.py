"""The whole of a fit: epochs, what comes between them, and the end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from stretto.core_events import Event, TimeUnit
from stretto.trainer.loop.batch import BatchRunner, progress_metrics
from stretto.trainer.loop.evaluate import EvaluationRunner
from stretto.trainer.loop.feed import BatchFeed, Clock
from stretto.trainer.loop.limits import is_finished
from stretto.trainer.loop.metrics import log_metrics, place_metrics
from stretto.trainer.microbatching import FixedMicrobatching

if TYPE_CHECKING:
    from stretto.core_events import Engine, Logger
    from stretto.trainer.data.spec import DataSpec
    from stretto.trainer.state import State

log = logging.getLogger(__name__)


class FitLoop:
    """Trains until the maximum duration is reached.

    Args:
        state: The run; its loader is set, its model prepared.
        engine: Hears the events.
        logger: Gets losses, metrics and progress.
        spec: The training data.
        limit: Most batches in an epoch, None for all.
        step_every_batch: Whether schedulers step with every batch rather than every epoch.
    """

    def __init__(
        self,
        state: State,
        engine: Engine[State],
        logger: Logger,
        spec: DataSpec,
        *,
        limit: int | None,
        step_every_batch: bool,
    ) -> None:
        self._state = state
        self._run_event = engine.run_event
        self._logger = logger
        self._step_epochs = not step_every_batch
        self._clock = Clock()
        execution = state.execution
        microbatching = FixedMicrobatching(
            spec,
            execution.device_train_microbatch_size,
            by_tokens=execution.accumulate_train_batch_on_tokens,
        )
        self._feed = BatchFeed(state, engine, spec, microbatching, limit, self._clock)
        self._batches = BatchRunner(
            state, engine, logger, microbatching, self._clock, step_schedulers=step_every_batch
        )
        self._evaluations = EvaluationRunner(state, engine, logger)

    def run(self) -> None:
        """Train from where the run is to its end."""
        state, run_event = self._state, self._run_event
        run_event(Event.FIT_START)
        state.model.train()
        place_metrics(state.train_metrics, state, reset=False)
        self._clock.lap()
        while not is_finished(state):
            timestamp = state.timestamp
            if timestamp.batch_in_epoch_count == 0:
                if timestamp.epoch_in_iteration_count == 0:
                    run_event(Event.ITERATION_START)
                run_event(Event.EPOCH_START)
                place_metrics(state.train_metrics, state)
            if self._run_epoch():
                self._end_epoch()
        self._log_train_metrics()
        self._logger.log_metrics(progress_metrics(state))
        self._batches.flush()
        run_event(Event.FIT_END)
        self._evaluate(Event.FIT_END)

    def _run_epoch(self) -> bool:
        """Train on the batches of one epoch; return whether it came to its end."""
        state, run_event = self._state, self._run_event
        fetch, train = self._feed.fetch, self._batches.run
        self._feed.begin_epoch()
        try:
            while (fetched := fetch()) is not None:
                train(fetched)
                if state.evaluators:
                    self._evaluate(Event.BATCH_END)
                run_event(Event.BATCH_CHECKPOINT)
                if state.iteration_length is not None:
                    self._end_iteration_by_tokens()
                if is_finished(state):
                    # The end of the run may be that of the epoch too.
                    return state.timestamp.batch_in_epoch_count == state.dataloader_len
        finally:
            self._feed.close()
        if state.timestamp.batch_in_epoch_count == 0:
            raise ValueError(
                "the training dataloader yielded no batch in this epoch: check its dataset, "
                "drop_last and sampler; an iterator can be used for one epoch only"
            )
        return True

    def _end_epoch(self) -> None:
        state, run_event = self._state, self._run_event
        self._log_train_metrics()
        state.timestamp = state.timestamp.to_next_epoch(self._feed.rest)
        if self._step_epochs:
            for scheduler in state.schedulers:
                scheduler.step()
        self._batches.flush()
        run_event(Event.EPOCH_END)
        self._evaluate(Event.EPOCH_END)
        run_event(Event.EPOCH_CHECKPOINT)
        length = state.iteration_length
        if (
            length is not None
            and length.unit is TimeUnit.EPOCH
            and state.timestamp.epoch_in_iteration_count >= length.value
        ):
            self._end_iteration()

    def _end_iteration_by_tokens(self) -> None:
        length = self._state.iteration_length
        if (
            length is not None
            and length.unit is TimeUnit.TOKEN
            and self._state.timestamp.token_in_iteration_count >= length.value
        ):
            self._end_iteration()

    def _end_iteration(self) -> None:
        self._state.timestamp = self._state.timestamp.to_next_iteration()
        self._run_event(Event.ITERATION_END)
        self._run_event(Event.ITERATION_CHECKPOINT)

    def _evaluate(self, event: Event) -> None:
        if self._state.evaluators:
            self._clock.leave_out(self._evaluations.run_due(event, self._batches.flush))

    def _log_train_metrics(self) -> None:
        """Log the metrics of this epoch so far and begin them anew."""
        state = self._state
        if state.train_metrics and state.timestamp.batch_in_epoch_count:
            log_metrics(state.train_metrics, state.dataloader_label or "train", state, self._logger)
            place_metrics(state.train_metrics, state)
