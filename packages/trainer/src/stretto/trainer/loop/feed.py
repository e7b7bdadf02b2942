"""Fetch training batches and agree over the ranks what they count for."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stretto.core_events import Event
from stretto.trainer.data.to_device import make_placer

if TYPE_CHECKING:
    from stretto.core_events import Engine
    from stretto.trainer.data.spec import DataSpec
    from stretto.trainer.microbatching import FixedMicrobatching
    from stretto.trainer.state import State

log = logging.getLogger(__name__)

_END: Any = object()


class Clock:
    """Measures the wall-clock time of training, without that of evaluation."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        return elapsed

    def leave_out(self, seconds: float) -> None:
        """Do not count some seconds of the current lap."""
        self._last += seconds


@dataclass(slots=True)
class Fetched:
    """A batch of this rank and what it counts for.

    Attributes:
        batch: The batch, on the device.
        samples: Samples in the batches of all ranks.
        tokens: Tokens in the batches of all ranks.
        weight: What the batches of all ranks count for in the mean loss; None where only this
            rank counts.
        even: Whether all ranks have equally many samples.
        duration: Time since the last batch, the mean over the ranks; None where only this rank
            counts.
    """

    batch: Any
    samples: int
    tokens: int
    weight: int | None = None
    even: bool = True
    duration: timedelta | None = None


class BatchFeed:
    """Yields the batches of one epoch, and None when they have come to an end on any rank.

    Args:
        state: The run.
        engine: Hears BEFORE_DATALOADER.
        spec: The training data.
        microbatching: Says what a batch counts for.
        limit: Most batches in an epoch, None for all.
        clock: Measures batches.

    Attributes:
        rest: Time from the last fetched batch to the end of the epoch, the mean over the ranks;
            None where only this rank counts, whose clock goes on.
    """

    def __init__(
        self,
        state: State,
        engine: Engine[State],
        spec: DataSpec,
        microbatching: FixedMicrobatching,
        limit: int | None,
        clock: Clock,
    ) -> None:
        self._state = state
        self._run_event = engine.run_event
        self._spec = spec
        self._microbatching = microbatching
        self._limit = limit
        self._clock = clock
        self._place = make_placer(state.device, spec)
        self._shared = state.topology.world_size > 1
        self._iterator: Iterator[Any] = iter(())
        self._fetched = 0
        self.rest: timedelta | None = None

    def begin_epoch(self) -> None:
        """Start the loader, in the middle of its epoch if the run is there."""
        state, dataloader = self._state, self._spec.dataloader
        position, ranks = state.data_state.position, state.topology.data_parallel_size
        epoch = state.timestamp.epoch_count
        begun = state.timestamp.batch_in_epoch_count > 0
        consumed = position.count_consumed(dataloader, state.timestamp, ranks)
        if consumed != state.timestamp.batch_in_epoch_count:
            state.timestamp = state.timestamp.copy(batch_in_epoch=consumed)
        self._fetched = consumed
        self.rest = None
        if begun:
            self._iterator = position.resume_epoch(dataloader, epoch, consumed, ranks)
        else:
            self._iterator = position.begin_epoch(dataloader, epoch, ranks)

    def fetch(self) -> Fetched | None:
        """Return the next batch, or None at the end of the epoch."""
        self._run_event(Event.BEFORE_DATALOADER)
        batch: Any = _END
        if self._limit is None or self._fetched < self._limit:
            batch = next(self._iterator, _END)
        if batch is not _END:
            self._fetched += 1
            if self._place is not None:
                batch = self._place(batch)
        if self._shared:
            return self._agree(batch)
        if batch is _END:
            return None
        spec = self._spec
        return Fetched(
            batch, int(spec.get_num_samples_in_batch(batch)), spec.get_num_tokens_in_batch(batch)
        )

    def close(self) -> None:
        """Let go of the loader's iterator, and with it of its workers."""
        self._iterator = iter(())

    def _agree(self, batch: Any) -> Fetched | None:
        """Share in one collective whether all have a batch, and what the batches count for."""
        strategy = self._state.strategy
        micros = round(self._clock.lap() * 1e6)
        mine = (0, 0, 0, 0, 0, micros)
        if batch is not _END:
            spec = self._spec
            own = int(spec.get_num_samples_in_batch(batch))
            mine = (
                1,
                own,
                own * own,
                spec.get_num_tokens_in_batch(batch),
                self._microbatching.weigh(batch),
                micros,
            )
        present, samples, squares, tokens, weight, micros = strategy.sum_counts(mine)
        ranks = strategy.topology.data_parallel_size
        if present < ranks:
            if present and self._state.topology.is_rank_zero:
                log.warning(
                    "Only %d of %d ranks have another batch: the epoch ends here, and theirs are "
                    "not trained on. Give every rank equally many batches.",
                    present,
                    ranks,
                )
            self.rest = timedelta(microseconds=micros / ranks)
            return None
        return Fetched(
            batch,
            samples,
            tokens,
            weight,
            are_even(samples, squares, ranks),
            timedelta(microseconds=micros / ranks),
        )


def are_even(total: int, squares: int, ranks: int) -> bool:
    """Tell from the sum and the sum of squares whether all ranks have the same number."""
    return squares * ranks == total * total
