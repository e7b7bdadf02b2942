"""One rank works, all learn how it went: by polling, with no collective held open.

A large file can take longer to write than a collective may wait. So the ranks that wait look into
the store of the process group now and then; no timeout of the process group applies.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stretto.trainer import _torch
from stretto.trainer.distributed.process_group import is_initialized
from stretto.trainer.distributed.topology import Topology

_POLL_SECONDS = 0.05
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a rank that works tells the others.

    Attributes:
        rank: The rank that worked.
        value: What it made, in text; empty after a failure.
        error: What went wrong, or None.
    """

    rank: int
    value: str = ""
    error: str | None = None

    def dumps(self) -> str:
        """Return the record as text."""
        return json.dumps({"rank": self.rank, "value": self.value, "error": self.error})

    @classmethod
    def loads(cls, text: str | bytes) -> Outcome:
        """Read a record back."""
        return cls(**json.loads(text))


def share_outcome(
    topology: Topology,
    work: Callable[[], str],
    *,
    workers: Sequence[int] = (0,),
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Outcome, ...]:
    """Run some work on some ranks and return, on every rank, what each of them says.

    Every rank must call it, in the same order relative to other calls. An exception of the work is
    caught on the ranks that did not raise it, as text, and re-raised where it happened only after
    the others were told.

    Args:
        topology: Whose ranks take part.
        work: What to do on the working ranks; returns a text for all.
        workers: The global ranks that work.
        sleep: Waits between two looks into the store.

    Returns:
        One outcome for each worker, in their order.
    """
    number = next(_numbers)
    if topology.world_size == 1 or not is_initialized():
        return (Outcome(rank=topology.global_rank, value=work()),)
    store = _torch.default_store()
    key = f"stretto/outcome/{number}"
    try:
        if topology.global_rank in workers:
            _work_and_tell(store, key, topology.global_rank, work)
        return tuple(_wait(store, f"{key}/{rank}", sleep) for rank in workers)
    finally:
        _leave_together(store, f"{key}/heard", topology, sleep)


def _work_and_tell(store: _torch.Store, key: str, rank: int, work: Callable[[], str]) -> None:
    try:
        outcome = Outcome(rank=rank, value=work())
    except BaseException as error:
        outcome = Outcome(rank=rank, error=f"{type(error).__name__}: {error}")
        store.set(f"{key}/{rank}", outcome.dumps())
        raise
    store.set(f"{key}/{rank}", outcome.dumps())


def _leave_together(
    store: _torch.Store, key: str, topology: Topology, sleep: Callable[[float], None]
) -> None:
    """Let rank 0 wait for the others: the store may live in its process, which may end next."""
    heard = store.add(key, 1)
    while topology.is_rank_zero and heard < topology.world_size:
        sleep(_POLL_SECONDS)
        heard = store.add(key, 0)


def _wait(store: _torch.Store, key: str, sleep: Callable[[float], None]) -> Outcome:
    while not store.check([key]):
        sleep(_POLL_SECONDS)
    return Outcome.loads(store.get(key))
