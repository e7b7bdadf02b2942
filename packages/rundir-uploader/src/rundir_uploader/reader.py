"""Read a file that somebody else may be writing, so that what is read is one moment's content.

A version is accepted where the fingerprint is the same before and after reading. Where it
changed, and the file is no shorter than before, the first part is read a second time: if both
readings agree, the file held exactly these bytes between them, so what was read is its last whole
prefix. Anything else is `ChangedWhileReadError`, and the file is read again later.

The kernel stamps changes in steps of a few milliseconds. A file that was changed less than a step
ago is waited for, so that a later change cannot hide behind the same stamp.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from rundir_uploader.records import EDGE
from stretto.run_directory import Fingerprint

CHUNK = 1 << 20
_STEP_NS = 20_000_000
_TRIES = 20
_COARSE_STEP_NS = 2_000_000_000
_SECOND_NS = 1_000_000_000
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ChangedWhileReadError(Exception):
    """The file changed under the reader, in another way than by growing."""


class GoneError(Exception):
    """The file is not there any more."""


class NotARegularFileError(Exception):
    """Something else than a regular file took the path."""


class SourceError(Exception):
    """The local file cannot be read; ``__cause__`` is the operating system's error."""


def open_regular(root: str, path: str, expected: Fingerprint) -> tuple[int, Fingerprint]:
    """Open a regular file below a root, without following any link.

    Args:
        root: The mirrored directory.
        path: Relative path of the file.
        expected: What the scan saw there. A file of another inode is looked for again, one
            folder at a time, so that a folder that became a link cannot lead outside.

    Returns:
        A descriptor, which is the caller's to close, and the fingerprint that the file has now.

    Raises:
        GoneError: There is no such file any more.
        NotARegularFileError: It is something else now.
        SourceError: It cannot be opened.
    """
    try:
        descriptor = os.open(f"{root}/{path}", _FLAGS)
    except OSError as error:
        raise _opening_error(root, path, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (
            status.st_ino != expected.inode and not _same_when_walked(root, path, status)
        ):
            raise NotARegularFileError(path)
        return descriptor, Fingerprint.of(status)
    except BaseException:
        os.close(descriptor)
        raise


@contextmanager
def open_inside(root: str, path: str, expected: Fingerprint) -> Generator[tuple[int, Fingerprint]]:
    """Do the same as `open_regular`, and close the descriptor at the end.

    Args:
        root: The mirrored directory.
        path: Relative path of the file.
        expected: What the scan saw there.

    Yields:
        A descriptor, and the fingerprint that the file has now.
    """
    descriptor, found = open_regular(root, path, expected)
    try:
        yield descriptor, found
    finally:
        os.close(descriptor)


def _opening_error(root: str, path: str, error: OSError) -> Exception:
    try:
        status = os.lstat(f"{root}/{path}")
    except (FileNotFoundError, NotADirectoryError):
        return GoneError(path)
    except OSError:
        return SourceError(reason_of(error))
    if not stat.S_ISREG(status.st_mode):
        return NotARegularFileError(path)
    return SourceError(reason_of(error))


def reason_of(error: OSError) -> str:
    """Return a sentence for an error of the operating system.

    Args:
        error: It.
    """
    return f"cannot be read: {error.strerror or error}"


def _same_when_walked(root: str, path: str, found: os.stat_result) -> bool:
    """Open the path one folder at a time, refusing links; tell whether it is the same file."""
    parts = path.split("/")
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=folder)
            os.close(folder)
            folder = inner
        status = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    finally:
        os.close(folder)
    return (status.st_dev, status.st_ino) == (found.st_dev, found.st_ino)


def settled(
    descriptor: int, found: Fingerprint, *, sleep: Callable[[float], None] = time.sleep
) -> Fingerprint:
    """Return a fingerprint that any later change will differ from, at a moment of no writing.

    Args:
        descriptor: An open file.
        found: The fingerprint that it has.
        sleep: Waits.

    Raises:
        ChangedWhileReadError: As `between_writes`.
    """
    now = time.time_ns()
    if is_fresh(found, now):
        sleep((_step_of(found) - (now - found.ctime_ns)) / 1e9)
    return between_writes(descriptor, found)


def between_writes(descriptor: int, found: Fingerprint) -> Fingerprint:
    """Return the fingerprint of a file at a moment when no write to it is under way.

    A write stamps the file when it begins, and may go on for long: what is read meanwhile is a
    mixture under one stamp. So a fingerprint counts only if it is the same after every write that
    was under way has ended.

    Args:
        descriptor: An open file.
        found: The fingerprint that it has.

    Raises:
        ChangedWhileReadError: It is written to without a pause, in another way than by growing.
    """
    before = found
    for _ in range(_TRIES):
        _wait_for_writes(descriptor)
        before, found = found, Fingerprint.of(os.fstat(descriptor))
        if found == before:
            return found
    if found.size <= before.size:
        raise ChangedWhileReadError
    return found


def _wait_for_writes(descriptor: int) -> None:
    """Wait until every write to a file that is under way has ended.

    Asking for the place of data takes the lock that a write holds, on ext4, tmpfs and most others;
    where it does not, nothing is lost but the wait.
    """
    with suppress(OSError):  # an empty file, or one without data behind its start
        os.lseek(descriptor, 0, os.SEEK_DATA)
    os.lseek(descriptor, 0, os.SEEK_SET)


def is_fresh(found: Fingerprint, now_ns: int) -> bool:
    """Whether a file changed so lately that another change might get the same time stamp.

    Args:
        found: Its fingerprint.
        now_ns: Nanoseconds since the epoch.
    """
    return 0 <= now_ns - found.ctime_ns < _step_of(found)


def _step_of(found: Fingerprint) -> int:
    """Return the step of the file system's clock, as far as one time stamp shows it."""
    return _COARSE_STEP_NS if found.ctime_ns % _SECOND_NS == 0 else _STEP_NS


def same_content(before: Fingerprint, descriptor: int) -> bool:
    """Whether nothing was written to an open file since a fingerprint was taken.

    Args:
        before: The fingerprint.
        descriptor: The open file.
    """
    status = os.fstat(descriptor)
    if (
        status.st_mtime_ns != before.mtime_ns
        or status.st_size != before.size
        or status.st_ino != before.inode
    ):
        return False
    # Being unlinked or replaced changes only the change time, and nobody can open it again.
    return status.st_ctime_ns == before.ctime_ns or status.st_nlink == 0


def read_whole(descriptor: int, before: Fingerprint) -> bytes:
    """Read a small file in one go.

    Args:
        descriptor: The open file.
        before: Its settled fingerprint.

    Raises:
        ChangedWhileReadError: It changed, in another way than by growing.
    """
    data = _read_at(descriptor, before.size, 0)
    if len(data) != before.size:
        raise ChangedWhileReadError
    if not same_content(before, descriptor) and (
        os.fstat(descriptor).st_size < before.size or _read_at(descriptor, before.size, 0) != data
    ):
        raise ChangedWhileReadError
    return data


def _read_at(descriptor: int, size: int, offset: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    if len(data) in (0, size):
        return data
    parts = [data]
    done = len(data)
    while done < size and (more := os.pread(descriptor, size - done, offset + done)):
        parts.append(more)
        done += len(more)
    return b"".join(parts)


def edges_at(descriptor: int, size: int) -> tuple[int, int]:
    """Return the CRC-32 of the first and the last `EDGE` bytes of an open file.

    Args:
        descriptor: The open file.
        size: How many of its bytes count.
    """
    head = zlib.crc32(_read_at(descriptor, min(size, EDGE), 0))
    if size <= EDGE:
        return head, head
    return head, zlib.crc32(_read_at(descriptor, EDGE, size - EDGE))


def digest_of(descriptor: int, size: int) -> str:
    """Return the SHA-256 of the first bytes of an open file.

    Args:
        descriptor: The open file.
        size: How many of its bytes count.
    """
    digest = hashlib.sha256()
    done = 0
    while done < size and (data := os.pread(descriptor, min(CHUNK, size - done), done)):
        digest.update(data)
        done += len(data)
    return digest.hexdigest() if done == size else ""
