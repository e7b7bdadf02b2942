"""Files below a root: found safely, written atomically."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TypeAlias

from stretto.object_store.errors import (
    AlreadyExistsError,
    BucketNotFoundError,
    InvalidKeyError,
    NotFoundError,
    ObjectStoreError,
    PermissionDeniedError,
    StoreFullError,
    TransientError,
)
from stretto.object_store.keys import validate_key
from stretto.object_store.source import iter_chunks
from stretto.object_store.types import Source

TEMPORARY = re.compile(r"\.stretto-[0-9a-f]{16}\.tmp")
_MKDIR_ATTEMPTS = 100
_STALE_SECONDS = 86_400.0
"""A write that is under way touches its file more often than this."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_TRANSIENT = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT}
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_IN_THE_WAY = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY}

CommitFunction: TypeAlias = Callable[[Path, Path], None]
"""Moves a finished temporary file (first) to its target (second), or raises."""


class Root:
    """A folder whose files are objects.

    Args:
        path: The folder; links in it are resolved once, here.
        uri: How errors call it.
        durable: Flush files and folders to the disk before a write counts as done.
    """

    def __init__(self, path: Path, *, uri: str, durable: bool = True) -> None:
        self.path = path.resolve()
        self.uri = uri
        self._durable = durable
        self._real = os.path.realpath(self.path)
        self._swept: set[Path] = set()

    def locate(self, key: str) -> Path:
        """The path of a key, which lies inside the root even after links are followed.

        Args:
            key: Any string; checked here.

        Raises:
            InvalidKeyError: It is not a key, or is one that names this module's temporary files.
            PermissionDeniedError: A symbolic link on its way leads out of the root.
        """
        validate_key(key, store=self.uri)
        name = key.rpartition("/")[2]
        if TEMPORARY.fullmatch(name):
            raise InvalidKeyError(
                f"key {key!r} is a name kept for unfinished writes", store=self.uri, key=key
            )
        path = self.path / key
        self._require_inside(path.parent, key)
        return path

    def require_target_inside(self, path: Path, key: str) -> None:
        """Refuse a file that is a link to somewhere outside.

        Args:
            path: The object's path.
            key: Its key.

        Raises:
            PermissionDeniedError: It leads out of the root.
        """
        if path.is_symlink():
            self._require_inside(path, key)

    def is_inside(self, path: Path) -> bool:
        """Whether a path stays in the root after links are followed.

        Args:
            path: Any path.
        """
        real = os.path.realpath(path)
        return real == self._real or real.startswith(self._real.rstrip("/") + "/")

    def _require_inside(self, path: Path, key: str) -> None:
        if not self.is_inside(path):
            raise PermissionDeniedError(
                "a symbolic link on the way leads out of the root", store=self.uri, key=key
            )

    def write(
        self, key: str, source: Source, commit: CommitFunction, *, exclusive: bool = False
    ) -> os.stat_result:
        """Write a temporary file beside the target, then commit it.

        Args:
            key: Where to.
            source: The bytes; its own errors come out as they are.
            commit: Moves the temporary file to the target.
            exclusive: Commit while nobody else does, in this folder.

        Returns:
            The stat of the finished file.
        """
        target = self.locate(key)
        chunks = iter_chunks(source)
        first = next(chunks, b"")  # a source that cannot be opened leaves no trace here
        with self.mapped_errors(key):
            descriptor, temporary = self._create_temporary(target.parent)
        try:
            with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor
                status = self._fill(file.fileno(), itertools.chain([first], chunks), key)
            with self.mapped_errors(key), locked(target.parent, exclusive=exclusive):
                commit(temporary, target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
                if not target.exists():
                    self.prune(target.parent)
        self._sync_folder(target.parent)
        return status

    def _fill(self, descriptor: int, chunks: Iterable[bytes], key: str) -> os.stat_result:
        for chunk in chunks:
            with self.mapped_errors(key):
                view = memoryview(chunk)
                while view:
                    view = view[os.write(descriptor, view) :]
        with self.mapped_errors(key):
            if self._durable:
                os.fsync(descriptor)
            return os.fstat(descriptor)

    def _create_temporary(self, folder: Path) -> tuple[int, Path]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        for _ in range(_MKDIR_ATTEMPTS):
            if not self.path.is_dir():
                raise self.missing(None)  # an unmounted disk's folder is not to be filled
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except FileNotFoundError:
                continue  # a delete took a parent away in between
            except FileExistsError:
                if self._blocked(folder):
                    raise
                continue  # it was there, and a delete took it away
            self._sweep(folder)
            temporary = folder / f".stretto-{os.urandom(8).hex()}.tmp"
            with contextlib.suppress(FileNotFoundError):  # a delete took the empty folder away
                return os.open(temporary, flags, 0o666), temporary
        raise TransientError(f"folder {folder} keeps vanishing", store=self.uri)

    def _sweep(self, folder: Path) -> None:
        """Once a folder: take away what killed writers left there long ago."""
        if folder in self._swept:
            return
        self._swept.add(folder)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if TEMPORARY.fullmatch(entry.name):
                    age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if age > _STALE_SECONDS:
                        Path(entry.path).unlink(missing_ok=True)

    def _blocked(self, folder: Path) -> bool:
        """Whether something that is no folder stands where a folder should be."""
        below = itertools.takewhile(lambda path: path != self.path, [folder, *folder.parents])
        return any(os.path.lexists(path) and not path.is_dir() for path in below)

    def _sync_folder(self, folder: Path) -> None:
        if self._durable:
            with contextlib.suppress(OSError):  # some file systems cannot, and need not
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def missing(self, key: str | None) -> NotFoundError:
        """The error for a file that is not there, or for a root that is not.

        Args:
            key: The key in question.
        """
        if not self.path.is_dir():
            return BucketNotFoundError("the root folder does not exist", store=self.uri, key=key)
        return NotFoundError("there is no such object", store=self.uri, key=key)

    def prune(self, folder: Path) -> None:
        """Remove folders that hold nothing, upwards, but never the root.

        Args:
            folder: Where to begin.
        """
        while folder != self.path and self.path in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    @contextlib.contextmanager
    def mapped_errors(self, key: str | None = None) -> Generator[None]:
        """Turn what the operating system says into this package's errors.

        Args:
            key: The key in question.
        """
        try:
            yield
        except ObjectStoreError:
            raise
        except OSError as error:
            mapped = self._map(error, key)
            if mapped is None:
                raise
            raise mapped from error

    def _map(self, error: OSError, key: str | None) -> ObjectStoreError | None:
        code, text = error.errno, error.strerror or str(error)
        where = {"store": self.uri, "key": key}
        if code == errno.ENOENT:
            return self.missing(key)
        if code in _FULL:
            return StoreFullError(f"no room left: {text}", **where)
        if code in _DENIED:
            return PermissionDeniedError(f"not allowed: {text}", **where)
        if code in _IN_THE_WAY:
            return InvalidKeyError(
                "a folder cannot be an object too: a local store cannot hold both 'a' and 'a/b'",
                **where,
            )
        if code == errno.ENAMETOOLONG:
            return InvalidKeyError("a part of the key is too long for the file system", **where)
        if code in _TRANSIENT:
            return TransientError(f"the file system failed: {text}", **where)
        return None


def replace_file(temporary: Path, target: Path) -> None:
    """Commit by taking the target's place.

    Args:
        temporary: The finished file.
        target: The object's path.
    """
    temporary.replace(target)


def create_file(uri: str, key: str) -> CommitFunction:
    """Commit only where there is nothing yet: a hard link fails if the name is taken.

    Where the file system has no hard links, the exclusive lock of `Root.write` stands in.

    Args:
        uri: The store, for the error.
        key: The key, for the error.
    """

    def commit(temporary: Path, target: Path) -> None:
        try:
            os.link(temporary, target, follow_symlinks=False)
        except FileExistsError as error:
            if target.is_dir() and not target.is_symlink():
                raise
            raise AlreadyExistsError("the key is taken", store=uri, key=key) from error
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            if os.path.lexists(target):
                raise AlreadyExistsError("the key is taken", store=uri, key=key) from error
            temporary.replace(target)

    return commit


@contextlib.contextmanager
def locked(folder: Path, *, exclusive: bool) -> Generator[None]:
    """Hold a lock on a folder: writers share it, a conditional replace has it alone.

    Args:
        folder: An existing folder.
        exclusive: Wait until everybody else has let go.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        except OSError:
            if exclusive:
                raise
        yield
    finally:
        os.close(descriptor)
