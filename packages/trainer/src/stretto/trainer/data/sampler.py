"""Which samples a rank gets: checks for training, and what is padding in evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from stretto.trainer._loose import length_of

if TYPE_CHECKING:
    from stretto.trainer.distributed.topology import Topology


def check_distributed(dataloader: Iterable[Any], topology: Topology, label: str) -> None:
    """Check that the ranks of a run get different samples of a map dataset.

    Args:
        dataloader: The loader.
        topology: This rank's place among all.
        label: The loader's name, for messages.

    Raises:
        ValueError: If a torch loader over a map dataset has no distributed sampler, or one for
            another number of ranks.
    """
    ranks = topology.data_parallel_size
    if ranks == 1 or not isinstance(dataloader, DataLoader):
        return
    if isinstance(cast("Any", dataloader).dataset, IterableDataset):
        return
    samplers = list(_samplers(dataloader))
    shares = [s for s in samplers if isinstance(getattr(s, "num_replicas", None), int)]
    if not shares:
        raise ValueError(
            f"the {label} dataloader reads a map dataset on {ranks} ranks without a distributed "
            "sampler, so every rank would get the same samples: pass "
            "DataLoader(..., sampler=stretto.trainer.dist.get_sampler(dataset, shuffle=...))"
        )
    given = shares[0].num_replicas
    if given != ranks:
        raise ValueError(
            f"the {label} dataloader's sampler shares its samples among {given} ranks, but this "
            f"run has {ranks}: make it with stretto.trainer.dist.get_sampler(dataset)"
        )


def set_epoch(dataloader: Iterable[Any], epoch: int) -> None:
    """Tell the loader's samplers which epoch begins, so that each has its own order."""
    for sampler in _samplers(dataloader):
        tell = getattr(sampler, "set_epoch", None)
        if callable(tell):
            tell(epoch)


def count_valid(dataloader: Iterable[Any]) -> int | None:
    """Return how many samples of this rank's pass are its own; those after them are padding.

    A distributed sampler gives every rank equally many samples by repeating some at the end. A
    sampler of another kind may say `num_valid_samples`.

    Returns:
        The number, or None where nothing is padding.
    """
    for sampler in _samplers(dataloader):
        declared = getattr(sampler, "num_valid_samples", None)
        if isinstance(declared, int):
            return declared
        if isinstance(sampler, DistributedSampler):
            return _share(cast("Any", sampler))
    return None


def _share(sampler: Any) -> int | None:
    samples = length_of(sampler.dataset)
    if sampler.drop_last or samples is None:
        return None
    # Position p of rank r is entry p * ranks + r of the padded order.
    return max(0, -(-(samples - sampler.rank) // sampler.num_replicas))


def _samplers(dataloader: Any) -> Iterator[Any]:
    batch_sampler = getattr(dataloader, "batch_sampler", None)
    inner = getattr(batch_sampler, "sampler", None)
    outer = getattr(dataloader, "sampler", None)
    seen: list[Any] = []
    for sampler in (outer, inner, batch_sampler):
        if sampler is not None and all(sampler is not other for other in seen):
            seen.append(sampler)
            yield sampler
