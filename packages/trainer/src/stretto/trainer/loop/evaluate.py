"""Run evaluations: each sample counts once, however many ranks share the work."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stretto.core_events import Event, Timestamp
from stretto.trainer import dist
from stretto.trainer.checkpoint.rng import capture_rng_state, restore_rng_state
from stretto.trainer.data.sampler import count_valid
from stretto.trainer.data.spec import dataloader_length
from stretto.trainer.data.split import slice_rows
from stretto.trainer.data.to_device import make_placer
from stretto.trainer.loop.feed import are_even
from stretto.trainer.loop.metrics import log_metrics, place_metrics
from stretto.trainer.microbatching import FixedMicrobatching

if TYPE_CHECKING:
    from torchmetrics import Metric

    from stretto.core_events import Engine, Logger
    from stretto.trainer.data.spec import DataSpec
    from stretto.trainer.evaluator import Evaluator
    from stretto.trainer.state import State

_END: Any = object()


class EvaluationRunner:
    """Runs evaluators on the model as it is.

    Args:
        state: The run.
        engine: Hears the events.
        logger: Gets the metrics.
    """

    def __init__(self, state: State, engine: Engine[State], logger: Logger) -> None:
        self._state = state
        self._run_event = engine.run_event
        self._logger = logger

    def run_due(self, event: Event, flush: Callable[[], None]) -> float:
        """Run the evaluators that are due at an event of the training.

        Args:
            event: BATCH_END, EPOCH_END or FIT_END.
            flush: Delivers what the training logged before.

        Returns:
            The seconds it took.
        """
        due = [e for e in self._state.evaluators if e.is_due(self._state, event)]
        if not due:
            return 0.0
        started = time.perf_counter()
        flush()
        self._run_event(Event.EVAL_BEFORE_ALL)
        for evaluator in due:
            self.run(evaluator)
        self._run_event(Event.EVAL_AFTER_ALL)
        return time.perf_counter() - started

    def run_standalone(
        self, evaluators: Sequence[Evaluator], subset_num_batches: int | None = None
    ) -> None:
        """Run evaluators outside training."""
        self._run_event(Event.EVAL_STANDALONE_START)
        for evaluator in evaluators:
            self.run(evaluator, subset_num_batches)
        self._run_event(Event.EVAL_STANDALONE_END)

    def run(self, evaluator: Evaluator, subset_num_batches: int | None = None) -> None:
        """Run one evaluator over its data and log its metrics.

        Args:
            evaluator: What to run.
            subset_num_batches: Most batches to use, instead of the evaluator's own number.

        Raises:
            ValueError: If a rank has no batch at all, though others have.
        """
        state = self._state
        metrics = state.eval_metrics[evaluator.label]
        limit = subset_num_batches or evaluator.subset_num_batches or -1
        with _evaluating(state, evaluator, limit), torch.no_grad():
            place_metrics(metrics, state)
            self._run_event(Event.EVAL_START)
            self._run_batches(evaluator, metrics, limit)
            log_metrics(metrics, evaluator.label, state, self._logger)
            self._run_event(Event.EVAL_END)
        self._logger.flush()

    def _run_batches(self, evaluator: Evaluator, metrics: dict[str, Metric], limit: int) -> None:
        state, batch_state = self._state, self._state.batch_state
        spec = evaluator.dataloader
        microbatching = FixedMicrobatching(spec, evaluator.device_eval_microbatch_size)
        transform = spec.microbatch_transforms
        for shared in _share_batches(state, evaluator, limit):
            batch_state.batch = shared.batch
            self._run_event(Event.EVAL_BATCH_START)
            parts, valid = list(microbatching.split(shared.batch)), shared.valid
            if state.topology.shard_size > 1 and not shared.even:
                # Every pass gathers parameters from all ranks, so all make equally many.
                parts += parts[-1:] * (max(dist.all_gather_object(len(parts))) - len(parts))
            for part in parts:
                rows = int(spec.get_num_samples_in_batch(part))
                batch_state.batch = part if transform is None else transform(part)
                self._run_part(metrics, rows, min(valid, rows))
                valid = max(0, valid - rows)
            batch_state.batch = shared.batch
            state.eval_timestamp = state.eval_timestamp.to_next_batch(shared.samples, shared.tokens)
            self._run_event(Event.EVAL_BATCH_END)

    def _run_part(self, metrics: dict[str, Metric], rows: int, valid: int) -> None:
        """Run one forward pass and show the metrics those of its rows that are not padding."""
        state, batch_state = self._state, self._state.batch_state
        self._run_event(Event.EVAL_BEFORE_FORWARD)
        with state.precision.forward_context():
            batch_state.outputs = state.model.eval_forward(batch_state.batch)
        self._run_event(Event.EVAL_AFTER_FORWARD)
        if valid == 0:
            return
        batch, outputs = batch_state.batch, batch_state.outputs
        if valid < rows:
            batch = slice_rows(batch, rows, 0, valid)
            outputs = slice_rows(outputs, rows, 0, valid, strict=False)
        for metric in metrics.values():
            state.model.update_metric(batch, outputs, metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """This rank's batch, how much of it is not padding, and what all ranks' batches count."""

    batch: Any
    valid: int
    samples: int
    tokens: int
    even: bool


def _share_batches(state: State, evaluator: Evaluator, limit: int) -> Iterator[_Shared]:
    """Yield batches until no rank has more.

    A rank whose batches have come to an end gets its last one again, with nothing valid in it, for
    the collectives in the others' forward passes.
    """
    spec: DataSpec = evaluator.dataloader
    place = make_placer(state.device, spec)
    left = count_valid(spec.dataloader)
    shared = state.topology.world_size > 1
    last: Any = _END
    rows = 0
    for batch in _endless(spec.dataloader, limit):
        valid, tokens = 0, 0
        if batch is not _END:
            last = batch if place is None else place(batch)
            rows = int(spec.get_num_samples_in_batch(last))
            valid = rows if left is None else min(rows, left)
            left = None if left is None else left - valid
            tokens = spec.get_num_tokens_in_batch(last)
        counts = (int(batch is not _END), valid, tokens, rows, rows * rows)
        if shared:
            counts = state.strategy.sum_counts(counts)
        having, samples, tokens, total, squares = counts
        if not having:
            return
        if shared and last is _END:
            raise ValueError(
                f"evaluation {evaluator.label!r} has no batch for rank "
                f"{state.topology.global_rank}, though other ranks have: give every rank at least "
                "one, or use stretto.trainer.dist.get_sampler(dataset)"
            )
        even = are_even(total, squares, state.topology.data_parallel_size)
        yield _Shared(batch=last, valid=valid, samples=samples, tokens=tokens, even=even)


def _endless(dataloader: Iterable[Any], limit: int) -> Iterator[Any]:
    """Yield the batches of a loader, then `_END` for ever."""
    yield from islice(dataloader, None if limit < 0 else limit)
    while True:
        yield _END


@contextmanager
def _evaluating(state: State, evaluator: Evaluator, limit: int) -> Generator[None]:
    """Put the state into evaluation and back, as if nothing had happened to the training."""
    training = [module for module in state.model.modules() if module.training]
    batch_state = state.batch_state
    batch = (batch_state.batch, batch_state.outputs, batch_state.loss)
    loader = (state.dataloader, state.dataloader_label, state.dataloader_len)
    rng = capture_rng_state()
    length = dataloader_length(evaluator.dataloader.dataloader)
    if limit != -1:
        length = limit if length is None else min(length, limit)
    state.set_dataloader(evaluator.dataloader.dataloader, evaluator.label, length)
    state.eval_timestamp = Timestamp()
    state.model.eval()
    try:
        yield
    finally:
        _set_training(training)
        state.set_dataloader(*loader)
        batch_state.batch, batch_state.outputs, batch_state.loss = batch
        restore_rng_state(rng)


def _set_training(modules: Sequence[nn.Module]) -> None:
    for module in modules:
        module.training = True
