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
import io
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
        return SourceError(_reason(error))
    if not stat.S_ISREG(status.st_mode):
        return NotARegularFileError(path)
    return SourceError(_reason(error))


def _reason(error: OSError) -> str:
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


class CheckedReader(io.RawIOBase):
    """A large file as a stream, whose last bytes come only if the whole is one moment's content.

    Args:
        descriptor: The open file, which stays the caller's.
        before: Its settled fingerprint; bytes behind its size are not read.
        progress: Called with the number of bytes after each read.

    Attributes:
        failure: What stopped the reading; a store may wrap what the stream raises.
    """

    def __init__(
        self,
        descriptor: int,
        before: Fingerprint,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._before = before
        self._progress = progress
        self._position = 0
        self._hashed = 0
        self._digest = hashlib.sha256()
        self.failure: Exception | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to another position; going back to the start begins a new reading.

        Args:
            offset: Where to.
            whence: From where, as for every file.
        """
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._before.size}
        self._position = base[whence] + offset
        if self._position == 0:
            self.failure = None
            self._hashed = 0
            self._digest = hashlib.sha256()
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Read on.

        Args:
            size: At most so many bytes; negative for all that are left.

        Raises:
            ChangedWhileReadError: The file changed, in another way than by growing.
            SourceError: The file cannot be read.
        """
        left = self._before.size - self._position
        size = left if size < 0 else min(size, left)
        if size <= 0:
            return b""
        try:
            data = os.pread(self._descriptor, size, self._position)
            if not data:
                raise ChangedWhileReadError
            self._take(data)
            if self._position == self._before.size:
                self._check()
        except OSError as error:
            self.failure = SourceError(_reason(error))
            raise self.failure from error
        except ChangedWhileReadError as error:
            self.failure = error
            raise
        if self._progress is not None:
            self._progress(len(data))
        return data

    def readall(self) -> bytes:
        """Read all that is left."""
        parts: list[bytes] = []
        while data := self.read(CHUNK):
            parts.append(data)
        return b"".join(parts)

    def readinto(self, buffer: object) -> int:
        """Read on, into a buffer.

        Args:
            buffer: Anything writable that holds bytes.
        """
        view = memoryview(buffer).cast("B")  # pyright: ignore[reportArgumentType]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def hexdigest(self) -> str:
        """Return the SHA-256 of all that was read; empty if that is not the whole."""
        return self._digest.hexdigest() if self._hashed == self._before.size else ""

    def _take(self, data: bytes) -> None:
        if self._hashed == self._position:
            self._digest.update(data)
            self._hashed += len(data)
        self._position += len(data)

    def _check(self) -> None:
        if same_content(self._before, self._descriptor):
            return
        shorter = os.fstat(self._descriptor).st_size < self._before.size
        known = self.hexdigest()
        if shorter or not known or digest_of(self._descriptor, self._before.size) != known:
            raise ChangedWhileReadError
