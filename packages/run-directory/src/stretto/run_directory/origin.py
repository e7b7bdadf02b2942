"""The name that a run gets when nobody gave it one.

It is a UTC timestamp that every process of the run works out alike, also when no process told
another: not the time at which somebody asked, but the time at which the process started that
started them all. Its last digits come from that process's number, so that two runs begun in the
same instant do not share a folder.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import zlib
from datetime import UTC, datetime
from pathlib import Path

# A forked child knows its forefather by this.
_PROCESS_AT_IMPORT = os.getpid()

# A launcher is told from what it starts by these: it gives them to its children and has none.
_MARKS = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID")

_fallback: dict[str, int] = {}


def default_run_name() -> str:
    """Return a name for this run, such as ``2026-11-29T17-46-00.123456Z``.

    It holds only characters that every file system and URL takes. Processes that
    ``multiprocessing`` started get the name of the process that started them; ranks that
    ``torchrun``, ``srun`` or ``mpirun`` started on one node get that of their launcher. On systems
    without ``/proc`` it is the time of the first call in this process.

    Returns:
        The name.
    """
    origin = _origin()
    started_ns = _start_time_ns(origin)
    if started_ns is None:
        return _format(_fallback.setdefault("now", time.time_ns() // 1000))
    marks = [os.environ.get(mark, "") for mark in (_MARKS[0], "SLURM_JOB_ID", _MARKS[2])]
    digits = zlib.crc32(repr((origin, marks)).encode()) % 10_000
    # The kernel tells start times in hundredths of a second; the rest is free.
    return _format(started_ns // 10_000_000 * 10_000 + digits)


def _format(microseconds: int) -> str:
    seconds, rest = divmod(microseconds, 1_000_000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H-%M-%S}.{rest:06d}Z"


def _origin() -> int:
    """Return the number of the process that started all processes of this run on this node."""
    parent = multiprocessing.parent_process()
    process = parent.pid if parent is not None and parent.pid is not None else _PROCESS_AT_IMPORT
    mark = next((mark for mark in _MARKS if os.environ.get(mark)), None)
    if mark is None:
        return process
    ancestor: int | None = process
    while ancestor is not None and ancestor > 0 and _was_started_with(ancestor, mark):
        ancestor = _parent_of(ancestor)
    return ancestor or process


def _was_started_with(process: int, variable: str) -> bool:
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False
    return any(item.startswith(f"{variable}=".encode()) for item in environment.split(b"\0"))


def _parent_of(process: int) -> int | None:
    fields = _stat_fields(process)
    return int(fields[1]) if fields else None


def _start_time_ns(process: int) -> int | None:
    fields = _stat_fields(process)
    if not fields:
        return None
    try:
        status = Path("/proc/stat").read_text(encoding="ascii", errors="replace")
        boot = next(line for line in status.splitlines() if line.startswith("btime "))
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration, ValueError, AttributeError):
        return None
    return int(boot.split()[1]) * 1_000_000_000 + int(fields[19]) * 1_000_000_000 // ticks


def _stat_fields(process: int) -> list[str]:
    """Return the fields of ``/proc/<process>/stat`` from the third on.

    The second is the program's name, in parentheses, and may hold blanks and parentheses itself.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
