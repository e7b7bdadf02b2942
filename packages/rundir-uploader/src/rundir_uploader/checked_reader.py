"""A large file as a stream that is checked at its end."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable

from rundir_uploader.reader import (
    CHUNK,
    ChangedWhileReadError,
    SourceError,
    digest_of,
    reason_of,
    same_content,
)
from stretto.run_directory import Fingerprint


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
            self.failure = SourceError(reason_of(error))
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
