"""The file system's own clock.

The time of a network disk can differ from that of the machine; what was written after a moment
can be told only by the clock that stamps the files.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

_LONGEST_TICK_NS = 20_000_000


def filesystem_now_ns(
    directory: str | os.PathLike[str], *, system_now_ns: Callable[[], int] | None = None
) -> int:
    """Return the file system's now: whatever is written from here on is stamped no earlier.

    A nameless file is created where the kernel can do that (nothing appears in the folder), else
    one with a random name that is removed at once. Where neither can be made, because the disk is
    full or read-only, the system's clock answers.

    Args:
        directory: A folder on the file system in question. Where it is not there, its nearest
            parent that is stands in; nothing is created on the way.
        system_now_ns: The clock to fall back to, in nanoseconds since the epoch. Default: the
            machine's clock, less the tick by which the stamps of local files may lie behind it.

    Returns:
        Nanoseconds since the epoch.
    """
    folder = _nearest_folder(os.fspath(directory))
    for stamp in (_stamp_of_nameless_file, _stamp_of_named_file):
        try:
            return stamp(folder)
        except OSError:
            continue
    return (system_now_ns or _cautious_now_ns)()


def to_float_seconds(nanoseconds: int) -> float:
    """Return the latest float that is not later than a time in nanoseconds.

    A float has steps of about 240 ns today. Rounding up would declare a file older than the
    moment just before which it was written.

    Args:
        nanoseconds: Nanoseconds since the epoch.

    Returns:
        Seconds since the epoch.
    """
    seconds = nanoseconds / 1_000_000_000
    while to_nanoseconds(seconds) > nanoseconds:
        seconds = math.nextafter(seconds, -math.inf)
    return seconds


def to_nanoseconds(seconds: float) -> int:
    """Return the exact value of a float of seconds in nanoseconds, rounded up.

    Args:
        seconds: Seconds since the epoch, finite.

    Returns:
        The first whole nanosecond that is not earlier.
    """
    numerator, denominator = seconds.as_integer_ratio()
    return -(-numerator * 1_000_000_000 // denominator)


def _nearest_folder(directory: str) -> str:
    path = Path(directory).absolute()
    for candidate in (path, *path.parents):
        if candidate.is_dir():
            return str(candidate)
    return os.curdir


def _stamp_of_nameless_file(folder: str) -> int:
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None:
        raise OSError("no nameless files on this platform")
    return _stamp_and_close(os.open(folder, flag | os.O_WRONLY, 0o600))


def _stamp_of_named_file(folder: str) -> int:
    # `.tmp`: whatever mirrors or backs up the folder leaves such files out.
    name = Path(folder, f".stretto-clock-{os.getpid()}-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        return _stamp_and_close(descriptor)
    finally:
        name.unlink()


def _stamp_and_close(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)


def _cautious_now_ns() -> int:
    # Kernels stamp files with a clock that they move on once a tick, so it runs behind.
    return time.time_ns() - _LONGEST_TICK_NS
