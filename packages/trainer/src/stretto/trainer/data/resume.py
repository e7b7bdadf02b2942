"""Where in its training data a run is, and how to come back there.

The position counts batches that were trained on, not those a worker has already fetched. An epoch
can be entered again in its middle because the random state that its order was drawn from is kept:
it is put back, the order is drawn again, and as many batches are skipped as were consumed, without
reading them where the loader is a plain one over a map dataset.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import DataLoader, IterableDataset

from stretto.trainer.checkpoint.rng import capture_rng_state, restore_rng_state
from stretto.trainer.data.sampler import set_epoch

if TYPE_CHECKING:
    from stretto.core_events import Timestamp

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 5.0

_NOTHING: Any = object()


@dataclass(slots=True, kw_only=True)
class DataPosition:
    """What must be known to enter the current epoch again.

    Attributes:
        epoch_start: Random state of this rank when the epoch's order was drawn, None before the
            first epoch.
        loader: State of the loader, if it is one that keeps its own.
        pending_rng: Random state to put back before the next batch, after a checkpoint was loaded.
        pending_generators: States to give the loader's own generators when the next epoch starts,
            after a checkpoint was loaded.
        ranks: How many ranks share the epoch's data.
        batch_size: Samples in a batch of the loader that the epoch was begun with, None if unknown.
    """

    epoch_start: dict[str, Any] | None = None
    loader: Mapping[str, Any] | None = None
    pending_rng: Mapping[str, Any] | None = None
    pending_generators: Sequence[torch.Tensor] | None = None
    ranks: int = 1
    batch_size: int | None = None
    _current: Any = field(default=None, repr=False)

    def begin_epoch(self, dataloader: Iterable[Any], epoch: int, ranks: int = 1) -> Iterator[Any]:
        """Start an epoch at its first batch and remember how its order is drawn."""
        self._restore_pending()
        set_epoch(dataloader, epoch)
        if self.pending_generators is not None:
            _set_generators(dataloader, self.pending_generators)
        self._enter(dataloader, ranks)
        self.loader = None
        self.epoch_start = {"rng": capture_rng_state(), "generators": _generators(dataloader)}
        return iter(dataloader)

    def resume_epoch(
        self, dataloader: Iterable[Any], epoch: int, consumed: int, ranks: int = 1
    ) -> Iterator[Any]:
        """Go on in the middle of an epoch, after `consumed` batches of this rank."""
        now = self.pending_rng if self.pending_rng is not None else capture_rng_state()
        self.pending_rng = now
        set_epoch(dataloader, epoch)
        self._enter(dataloader, ranks)
        iterator = self._skip(dataloader, consumed)
        self._restore_pending()
        return iterator

    def count_consumed(self, dataloader: Any, timestamp: Timestamp, ranks: int) -> int:
        """Return how many batches of this rank's loader the epoch so far stands for.

        A checkpoint may come from another number of ranks or a loader with other batches: then
        samples are what counts.

        Args:
            dataloader: The loader.
            timestamp: The run's progress.
            ranks: How many ranks share the data now.
        """
        consumed = timestamp.batch_in_epoch_count
        batch_size = _batch_size(dataloader)
        if batch_size is None or (self.ranks == ranks and self.batch_size in (None, batch_size)):
            return consumed
        consumed, left_over = divmod(timestamp.sample_in_epoch_count, batch_size * ranks)
        if left_over:
            log.warning(
                "%d samples of the current epoch are trained on again: %d ranks with batches of %d "
                "do not divide the samples trained on so far.",
                left_over,
                ranks,
                batch_size,
            )
        return consumed

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's position."""
        loader = self.loader
        if keeps_own_state(self._current):
            loader = self._current.state_dict()
        generators = self.pending_generators
        if generators is None and self._current is not None:
            generators = _generators(self._current)
        return {
            "epoch_start": self.epoch_start,
            "loader": loader,
            "generators": generators,
            "batch_size": self.batch_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a position that `state_dict` returned."""
        self.epoch_start = state.get("epoch_start")
        self.loader = state.get("loader")
        self.pending_generators = state.get("generators")
        self.batch_size = state.get("batch_size")

    def _enter(self, dataloader: Iterable[Any], ranks: int) -> None:
        self._current = dataloader
        self.pending_generators = None
        self.ranks = ranks
        self.batch_size = _batch_size(dataloader)

    def _restore_pending(self) -> None:
        if self.pending_rng is not None:
            restore_rng_state(dict(self.pending_rng))
            self.pending_rng = None

    def _skip(self, dataloader: Iterable[Any], consumed: int) -> Iterator[Any]:
        if self.loader is not None and keeps_own_state(dataloader):
            cast("Any", dataloader).load_state_dict(dict(self.loader))
            self.loader = None
            return iter(dataloader)
        if self.epoch_start is not None:
            restore_rng_state(self.epoch_start["rng"])
            _set_generators(dataloader, self.epoch_start["generators"])
        if _order_can_be_skipped(dataloader):
            return skip_batches(cast("DataLoader[Any]", dataloader), consumed)
        return _replay(iter(dataloader), consumed)


class _Skipping:
    """A sampler without its first entries, for one pass.

    Args:
        sampler: Yields indices, or lists of them.
        count: How many entries to leave out.
    """

    def __init__(self, sampler: Iterable[Any], count: int) -> None:
        self._sampler = sampler
        self._count = count
        self._entries: Iterator[Any] = iter(())
        self._first: Any = _NOTHING
        self._begun = False

    def __iter__(self) -> _Skipping:
        self._entries = iter(self._sampler)
        self._begun = False
        return self

    def __next__(self) -> Any:
        self.begin()
        entry, self._first = self._first, _NOTHING
        return next(self._entries) if entry is _NOTHING else entry

    def __len__(self) -> int:
        return max(0, len(cast("Sequence[Any]", self._sampler)) - self._count)

    def begin(self) -> None:
        """Let the sampler draw its order now, and go to the first entry that is wanted."""
        if self._begun:
            return
        self._begun = True
        for _ in range(self._count):
            next(self._entries, None)
        self._first = next(self._entries, _NOTHING)


def skip_batches(dataloader: DataLoader[Any], count: int) -> Iterator[Any]:
    """Return an iterator over a loader's batches in the same order, without the first ones.

    Nothing is read for the batches that are left out. The random state that decides the order is
    used before this returns.

    Args:
        dataloader: A plain loader over a map dataset.
        count: How many batches to leave out.
    """
    loader = cast("Any", dataloader)
    order: dict[str, Any]
    if loader.batch_sampler is None:
        skipping = _Skipping(loader.sampler, count)
        order = {"sampler": skipping, "batch_size": None}
    else:
        skipping = _Skipping(loader.batch_sampler, count)
        order = {"batch_sampler": skipping}
    workers: dict[str, Any] = {}
    if loader.num_workers:
        workers = {
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    rest: DataLoader[Any] = DataLoader(
        loader.dataset,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        **order,
        **workers,
    )
    iterator = iter(rest)
    skipping.begin()
    return iterator


def keeps_own_state(dataloader: Any) -> bool:
    """Whether a loader can save and load its own position (`state_dict`, `load_state_dict`)."""
    return callable(getattr(dataloader, "state_dict", None)) and callable(
        getattr(dataloader, "load_state_dict", None)
    )


def _batch_size(dataloader: Any) -> int | None:
    size: object = getattr(dataloader, "batch_size", None)
    return size if isinstance(size, int) else None


def _order_can_be_skipped(dataloader: Any) -> bool:
    return type(dataloader) is DataLoader and not isinstance(
        cast("Any", dataloader).dataset, IterableDataset
    )


def _replay(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """Fetch and drop batches, saying so now and then."""
    started = said = time.monotonic()
    for done in range(count):
        if next(iterator, iterator) is iterator:
            break
        if time.monotonic() - said > PROGRESS_SECONDS:
            said = time.monotonic()
            log.warning(
                "Fetched %d of the %d batches that were trained on before, in %.0f s, to come back "
                "to the middle of the epoch. A loader with state_dict() and load_state_dict() "
                "would not need this.",
                done + 1,
                count,
                said - started,
            )
    return iterator


def _generators(dataloader: Any) -> list[torch.Tensor]:
    return [generator.get_state() for generator in _own_generators(dataloader)]


def _set_generators(dataloader: Any, states: Sequence[torch.Tensor]) -> None:
    for generator, state in zip(_own_generators(dataloader), states, strict=False):
        generator.set_state(state)


def _own_generators(dataloader: Any) -> list[torch.Generator]:
    """List the generators that a loader and its samplers draw from, each once."""
    batch_sampler = getattr(dataloader, "batch_sampler", None)
    holders = (
        dataloader,
        getattr(dataloader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    )
    found: list[torch.Generator] = []
    for holder in holders:
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not g for g in found):
            found.append(generator)
    return found
