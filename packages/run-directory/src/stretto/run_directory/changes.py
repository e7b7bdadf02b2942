"""What changed in a run directory, and which run came last."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from stretto.run_directory.clock import filesystem_now_ns, to_float_seconds, to_nanoseconds
from stretto.run_directory.layout import get_run_directory
from stretto.run_directory.scan import FileEntry, FileKind, scan

_log = logging.getLogger(__name__)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def get_run_directory_timestamp() -> float:
    """Return the current time on the file system of the run directory.

    The disk's time can differ from the machine's, so this is what belongs into
    :func:`get_modified_files`. Where nothing can be written (a full or read-only disk) the
    machine's clock answers; the run directory need not be there yet.

    Returns:
        Seconds since the epoch, rounded down: files written from here on are never earlier.

    Raises:
        RunDirectoryError: There is no valid run directory.
    """
    return to_float_seconds(filesystem_now_ns(get_run_directory()))


def get_modified_files(
    modified_since_timestamp: float | datetime, *, ignore_hidden: bool = True
) -> list[str]:
    """List the files of this rank's run directory that are new or changed since a moment.

    A file counts as changed by its modification time or its change time, whichever is later: one
    that was moved, copied or unpacked into the folder with old times is listed too. So is what
    lies in a folder that was moved in as a whole, until that folder is written to: who must not
    miss any change compares fingerprints (:func:`~stretto.run_directory.scan.scan`).

    Symbolic links to files are listed when the link or the file changed. Links to folders are not
    followed; dangling links, sockets, FIFOs and devices are not listed, for nothing can be read
    from them.

    Args:
        modified_since_timestamp: Seconds since the epoch on the disk's clock (see
            :func:`get_run_directory_timestamp`), or a datetime; a naive one is local time. Files
            of exactly that time are listed.
        ignore_hidden: Leave out every file of which a part of the path below the run directory
            begins with a dot.

    Returns:
        Absolute paths, sorted folder by folder; empty where there is no run directory yet.

    Raises:
        ValueError: The timestamp is not finite.
        TypeError: The timestamp is neither a number nor a datetime.
        RunDirectoryError: There is no valid run directory.
    """
    since_ns = _as_nanoseconds(modified_since_timestamp)
    root = get_run_directory()
    if not Path(root).is_dir():
        return []
    return list(_modified(root, since_ns, ignore_hidden))


def _modified(root: str, since_ns: int, ignore_hidden: bool) -> Iterator[str]:
    moved_in = "\0"  # begins no path
    for entry in scan(root, ignore_hidden=ignore_hidden, on_error=_warn):
        path = f"{root}{os.sep}{entry.path.replace('/', os.sep)}"
        inside = entry.path.startswith(moved_in)
        if entry.kind is FileKind.DIRECTORY:
            if not inside and _was_moved(entry, since_ns):
                moved_in = entry.path + "/"
        elif entry.kind is FileKind.FILE:
            if inside or _latest_ns(entry) >= since_ns:
                yield path
        elif entry.kind is FileKind.SYMLINK:
            target_ns = _target_ns(path)
            if target_ns is not None and (inside or max(target_ns, _latest_ns(entry)) >= since_ns):
                yield path


def _latest_ns(entry: FileEntry) -> int:
    return max(entry.fingerprint.mtime_ns, entry.fingerprint.ctime_ns)


def _was_moved(entry: FileEntry, since_ns: int) -> bool:
    """Tell whether a folder changed, but not by what is in it: renaming stamps only the ctime."""
    changed_ns = entry.fingerprint.ctime_ns
    return changed_ns >= since_ns and changed_ns > entry.fingerprint.mtime_ns


def _target_ns(path: str) -> int | None:
    """Return when the file behind a link changed; None where it is no file."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return max(status.st_mtime_ns, status.st_ctime_ns)


def _warn(error: OSError) -> None:
    _log.warning("Cannot look at %r, so its changes are not seen: %s", error.filename, error)


def _as_nanoseconds(moment: float | datetime) -> int:
    if isinstance(moment, datetime):
        # Exact: whole microseconds, no float on the way.
        return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1) * 1000
    try:
        return to_nanoseconds(moment)
    except (OverflowError, ValueError) as error:
        raise ValueError(
            f"modified_since_timestamp is {moment!r}, and must be finite: seconds since the epoch."
        ) from error
    except AttributeError as error:
        raise TypeError(
            f"modified_since_timestamp is {moment!r}, and must be a float of seconds or a datetime."
        ) from error


def find_latest_run(
    root: str | os.PathLike[str] = "runs", marker: str = "checkpoints"
) -> str | None:
    """Find the newest run that left something behind, to go on from it.

    Args:
        root: The folder that holds the run directories. Default: ``./runs``.
        marker: A path in the node run directory, or in a rank's folder in it, which a run must
            have: a file that is not empty, or a folder with such a file in it (hidden
            files and unfinished ``*.tmp`` files do not count).

    Returns:
        The absolute path of the run whose marker changed last, None where there is none.
    """
    best: tuple[int, str] | None = None
    parent = Path(root).absolute()
    if not parent.is_dir():
        return None
    for run in parent.iterdir():
        stamps = [
            stamp for place in (run, *run.glob("rank_*")) for stamp in _stamps(place / marker)
        ]
        if stamps:
            best = max(best or (0, ""), (max(stamps), str(run)))
    return None if best is None else best[1]


def _stamps(marker: Path) -> Iterator[int]:
    """Yield the modification times, in nanoseconds, of the whole files at or below a path."""
    files = marker.rglob("*") if marker.is_dir() else [marker]
    for file in files:
        if file.name.startswith(".") or file.suffix == ".tmp":
            continue
        try:
            if file.is_file() and (status := file.stat()).st_size:
                yield status.st_mtime_ns
        except OSError:
            continue
