"""The ranks of one node tell each other, through files, who has finished."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rundir_uploader.lock import state_folder
from rundir_uploader.processes import ProcessIdentity, host_name

_FOLDER = "ranks"


def _report_path(folder: Path, local_rank: int) -> Path:
    return folder / _FOLDER / f"{host_name()}-{local_rank}.json"


def report_rank(directory: Path, local_rank: int, *, finished: bool) -> None:
    """Leave word that this process is a rank of the run, or that it has finished.

    Never raises for a disk that cannot be written to: whether the process lives tells the rest.

    Args:
        directory: The node run directory; made if it is missing.
        local_rank: Of this process.
        finished: Whether it will write no more.
    """
    said = {"process": asdict(ProcessIdentity.current()), "finished": finished}
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        path = _report_path(state_folder(directory), local_rank)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.new")
        temporary.write_text(json.dumps(said))
        temporary.replace(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """Which other ranks of this node are waited for.

    Attributes:
        local_world_size: How many ranks there are on this node, rank 0 included.
        stale: What dead ranks of an earlier run had said when this run began, by local rank.
        grace: Seconds to wait for a rank that has never said anything.
    """

    local_world_size: int
    stale: Mapping[int, str] = field(default_factory=dict[int, str])
    grace: float = 30.0

    @classmethod
    def begin(cls, directory: Path, local_world_size: int, *, grace: float = 30.0) -> RankPlan:
        """Look at what was left from an earlier run.

        Args:
            directory: The node run directory.
            local_world_size: How many ranks there are on this node.
            grace: Seconds to wait for a rank that has never said anything.
        """
        stale: dict[int, str] = {}
        for rank in range(1, local_world_size):
            said = _read(directory, rank)
            if said and not _lives(said):
                stale[rank] = said
        return cls(local_world_size=local_world_size, stale=stale, grace=grace)

    def wait(
        self,
        directory: Path,
        *,
        give_up: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> list[int]:
        """Wait until every other rank has finished or died, however long one lives.

        Args:
            directory: The node run directory.
            give_up: Asked now and then; True ends the wait.
            clock: Monotonic seconds.
            sleep: Waits.

        Returns:
            The local ranks that were not waited for to the end; empty unless told to give up.
        """
        began = clock()
        pause = 0.02
        while True:
            open_ranks = [
                rank
                for rank in range(1, self.local_world_size)
                if not self._is_done(directory, rank, clock() - began)
            ]
            if not open_ranks or give_up():
                return open_ranks
            sleep(pause)
            pause = min(0.5, pause * 1.5)

    def _is_done(self, directory: Path, rank: int, waited: float) -> bool:
        said = _read(directory, rank)
        if not said or said == self.stale.get(rank):
            return waited >= self.grace
        return not _lives(said)


def _read(directory: Path, local_rank: int) -> str:
    try:
        return _report_path(state_folder(directory), local_rank).read_text()
    except OSError:
        return ""


def _lives(said: str) -> bool:
    """Whether a rank that said this may write more."""
    try:
        report = json.loads(said)
        return not report["finished"] and ProcessIdentity(**report["process"]).is_alive()
    except (ValueError, KeyError, TypeError):
        return False
