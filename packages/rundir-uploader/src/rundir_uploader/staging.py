"""Copies of files, taken while the training loop waits: ``staging="blocking"``.

The default, ``"background"``, needs none of this: files are read from where they lie.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rundir_uploader.keys import STATE_FOLDER
from rundir_uploader.reader import (
    CHUNK,
    ChangedWhileReadError,
    GoneError,
    NotARegularFileError,
    SourceError,
    between_writes,
    is_fresh,
    open_inside,
    same_content,
)
from rundir_uploader.settings import Staging
from rundir_uploader.task import StagedCopy
from stretto.run_directory import FileEntry, Fingerprint

_FICLONE = 0x40049409
_ATTEMPTS = 3


class Stager:
    """Takes copies; each is removed when nobody needs it any more.

    Args:
        staging: Where, and how much.
        root: The mirrored directory, its own links resolved.
        full: Called once with a sentence when the cap is reached.
    """

    def __init__(self, staging: Staging, root: str, full: Callable[[str], None]) -> None:
        base = Path(root, STATE_FOLDER) if staging.folder is None else Path(staging.folder)
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
        self._folder = base / f"staging-{name}"
        self._cap = staging.cap
        self._root = root
        self._full = full
        self._lock = threading.Lock()
        self._bytes = 0
        self._count = 0
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, mode=0o700)

    def copy(self, entry: FileEntry) -> StagedCopy | None:
        """Copy a file as it is at one moment.

        Args:
            entry: What the scan saw.

        Returns:
            The copy; None where none could be taken, and the file is to be read from where it lies.
        """
        if not self._reserve(entry.fingerprint.size):
            self._full(
                f"copies of files take up {self._cap} bytes, the most they may; others are read "
                "from where they lie"
            )
            return None
        target = self._folder / f"{self._next_number()}"
        try:
            found = self._copy_to(target, entry)
        except (OSError, ChangedWhileReadError, GoneError, NotARegularFileError, SourceError):
            found = None
        if found is None:
            self._release(str(target), entry.fingerprint.size)
            return None
        copy = StagedCopy(str(target), found)
        weakref.finalize(copy, self._release, str(target), entry.fingerprint.size)
        return copy

    def close(self) -> None:
        """Remove all copies."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _copy_to(self, target: Path, entry: FileEntry) -> Fingerprint | None:
        for _ in range(_ATTEMPTS):
            with open_inside(self._root, entry.path, entry.fingerprint) as (source, found):
                before = between_writes(source, found)
                fresh = is_fresh(before, time.time_ns())
                descriptor = os.open(
                    target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
                )
                try:
                    _clone_or_copy(source, descriptor, before.size)
                    whole = os.fstat(descriptor).st_size == before.size
                finally:
                    os.close(descriptor)
                if whole and same_content(before, source):
                    # A change in the same tick of the clock would not show: let the next scan look
                    # at the content again.
                    return replace(before, ctime_ns=0) if fresh else before
        return None

    def _reserve(self, size: int) -> bool:
        with self._lock:
            if self._bytes + size > self._cap:
                return False
            self._bytes += size
            return True

    def _release(self, path: str, size: int) -> None:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - called while objects are torn down
        with self._lock:
            self._bytes -= size

    def _next_number(self) -> int:
        with self._lock:
            self._count += 1
            return self._count


def _clone_or_copy(source: int, target: int, size: int) -> None:
    """Share the blocks where the file system can, else copy them inside the kernel."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
        os.ftruncate(target, size)
        return
    except OSError:
        os.ftruncate(target, 0)
    done = 0
    while done < size:
        try:
            count = os.copy_file_range(source, target, size - done, done, done)
        except OSError:
            count = _copy_through(source, target, min(CHUNK, size - done), done)
        if count == 0:
            return
        done += count


def _copy_through(source: int, target: int, size: int, offset: int) -> int:
    data = os.pread(source, size, offset)
    return os.pwrite(target, data, offset) if data else 0
