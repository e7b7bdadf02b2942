"""One training batch: gradients, step, progress, and what is logged of it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch import Tensor

from stretto.core_events import Event
from stretto.trainer.loop.feed import are_even
from stretto.trainer.loop.losses import LossShares
from stretto.trainer.loop.microbatch import GradientPass

if TYPE_CHECKING:
    from stretto.core_events import Engine, Logger
    from stretto.trainer.loop.feed import Clock, Fetched
    from stretto.trainer.microbatching import FixedMicrobatching
    from stretto.trainer.state import State

FLUSH_BATCHES = 10
FLUSH_SECONDS = 1.0

_BATCH_EVENTS = frozenset({Event.AFTER_DATALOADER, Event.BATCH_START, Event.BEFORE_TRAIN_BATCH})


class BatchRunner:
    """Runs training batches, from AFTER_DATALOADER to BATCH_END.

    Args:
        state: The run.
        engine: Hears the events.
        logger: Gets losses and progress.
        microbatching: Cuts and weighs batches.
        clock: Measures batches.
        step_schedulers: Whether schedulers step with every batch.
    """

    def __init__(
        self,
        state: State,
        engine: Engine[State],
        logger: Logger,
        microbatching: FixedMicrobatching,
        clock: Clock,
        *,
        step_schedulers: bool,
    ) -> None:
        self._state = state
        self._run_event = engine.run_event
        self._logger = logger
        self._microbatching = microbatching
        self._clock = clock
        self._schedulers = tuple(state.schedulers) if step_schedulers else ()
        self._shared = state.topology.world_size > 1
        self._recount = self._shared and _changes_batches(state)
        self._logs = bool(logger.destinations)
        self._shares: LossShares | None = None
        self._unflushed = 0
        self._unflushed_seconds = 0.0
        if self._shared:
            (logging_ranks,) = state.strategy.sum_counts([int(self._logs)])
            self._shares = LossShares(state.strategy, active=logging_ranks > 0)
        self._gradients = GradientPass(
            state, engine, microbatching, keep_losses=self._logs or self._shares is not None
        )

    def run(self, fetched: Fetched) -> None:
        """Train on one batch."""
        state, batch_state, run_event = self._state, self._state.batch_state, self._run_event
        batch_state.batch = fetched.batch
        fetched.batch = None
        run_event(Event.AFTER_DATALOADER)
        run_event(Event.BATCH_START)
        run_event(Event.BEFORE_TRAIN_BATCH)
        weight, even = fetched.weight, fetched.even
        if self._recount:
            weight, even = self._count_again(batch_state.batch)
        losses = self._gradients.compute_gradients(batch_state.batch, weight, even=even)
        precision, optimizers = state.precision, state.optimizers
        precision.unscale(optimizers)
        run_event(Event.AFTER_TRAIN_BATCH)
        precision.step(optimizers)
        self._log(losses)
        duration = fetched.duration
        if duration is None:
            duration = timedelta(seconds=self._clock.lap())
        state.timestamp = state.timestamp.to_next_batch(fetched.samples, fetched.tokens, duration)
        for scheduler in self._schedulers:
            scheduler.step()
        run_event(Event.BATCH_END)
        self._flush_if_due(duration)

    def _count_again(self, batch: Any) -> tuple[int, bool]:
        """Agree over the ranks what their batches count for after algorithms changed them."""
        microbatching, strategy = self._microbatching, self._state.strategy
        own = int(microbatching.spec.get_num_samples_in_batch(batch))
        counts = (microbatching.weigh(batch), own, own * own)
        weight, samples, squares = strategy.sum_counts(counts)
        return weight, are_even(samples, squares, strategy.topology.data_parallel_size)

    def flush(self) -> None:
        """Deliver everything that was logged so far; to be called on every rank."""
        if self._shares is not None:
            self._shares.resolve()
        self._logger.flush()
        self._unflushed, self._unflushed_seconds = 0, 0.0

    def _log(self, losses: dict[str, Tensor]) -> None:
        values: Any = losses if self._shares is None else self._shares.add(losses)
        if not self._logs:
            return
        metrics: dict[str, Any] = progress_metrics(self._state)
        size = self._microbatching.size
        if size is not None:
            metrics["trainer/device_train_microbatch_size"] = size
        for name, value in values.items():
            metrics[f"loss/train/{name}"] = value
        self._logger.log_metrics(metrics, self._state.timestamp.batch_count)

    def _flush_if_due(self, duration: timedelta) -> None:
        """Flush after some batches or some time, by numbers that all ranks agree on."""
        self._unflushed += 1
        self._unflushed_seconds += duration.total_seconds()
        if self._unflushed >= FLUSH_BATCHES or self._unflushed_seconds >= FLUSH_SECONDS:
            self.flush()


def progress_metrics(state: State) -> dict[str, int]:
    """Return the progress of a run as metrics."""
    timestamp = state.timestamp
    metrics = {
        "time/epoch": timestamp.epoch_count,
        "time/batch": timestamp.batch_count,
        "time/sample": timestamp.sample_count,
        "time/batch_in_epoch": timestamp.batch_in_epoch_count,
        "time/sample_in_epoch": timestamp.sample_in_epoch_count,
    }
    if timestamp.token_count:
        metrics["time/token"] = timestamp.token_count
        metrics["time/token_in_epoch"] = timestamp.token_in_epoch_count
    return metrics


def _changes_batches(state: State) -> bool:
    """Whether an algorithm may leave a batch with another number of samples."""
    return any(a.events is None or not _BATCH_EVENTS.isdisjoint(a.events) for a in state.algorithms)
