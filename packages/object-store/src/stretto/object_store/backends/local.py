"""A folder as a store: atomic writes, and nothing outside its root whatever the key."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO

from stretto.object_store.backends.local_files import (
    TEMPORARY,
    CommitFunction,
    Root,
    create_file,
    replace_file,
)
from stretto.object_store.errors import (
    BucketNotFoundError,
    InvalidUrlError,
    PermissionDeniedError,
    PreconditionFailedError,
)
from stretto.object_store.get_result import GetResult, check_range, clip_range
from stretto.object_store.keys import validate_prefix
from stretto.object_store.source import CHUNK_SIZE
from stretto.object_store.store import Store
from stretto.object_store.types import (
    ByteRange,
    Capabilities,
    Checksum,
    Mode,
    ObjectMeta,
    PutMode,
    PutResult,
    ReplaceIf,
    Source,
)
from stretto.object_store.url import StoreUrl


class LocalStore(Store):
    """Objects as plain files below a root.

    Symbolic links inside the root are followed as long as they stay inside; one that leads out
    is refused. Listings do not walk into linked folders.

    Args:
        root: The folder; made, with its parents, if it is missing.
        uri: How the store calls itself; None for ``file://<root>``.
        durable: Flush to the disk before a write counts as done.
        create: Make the root if it is missing.

    Raises:
        BucketNotFoundError: The root is missing and ``create`` is off.
        InvalidUrlError: The root is not a folder.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        uri: str | None = None,
        durable: bool = True,
        create: bool = True,
    ) -> None:
        path = Path(root).absolute()
        self._uri = uri if uri is not None else f"file://{path}"
        self._durable = durable
        _require_folder(path, create=create, uri=self._uri)
        self._root = Root(path, uri=self._uri, durable=durable)

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root.path)!r})"

    def __reduce__(self) -> tuple[partial[LocalStore], tuple[str]]:
        rebuild = partial(LocalStore, uri=self._uri, durable=self._durable)
        return (rebuild, (str(self._root.path),))

    @property
    def root(self) -> Path:
        """The folder, absolute, its links resolved."""
        return self._root.path

    @property
    def capabilities(self) -> Capabilities:
        """Atomic in every mode; metadata is not kept."""
        return Capabilities(
            create=True,
            replace_if=True,
            server_side_copy=True,
            checksum_algorithms=("sha256",),
            picklable=True,
            remote=False,
        )

    def put(
        self,
        key: str,
        source: Source,
        *,
        mode: Mode = PutMode.OVERWRITE,
        metadata: Mapping[str, str] | None = None,
    ) -> PutResult:
        """See `Store.put`."""
        if metadata:
            raise ValueError("a local store keeps no metadata; see capabilities.metadata")
        if mode is PutMode.CREATE:
            status = self._root.write(key, source, create_file(self._uri, key), exclusive=True)
        elif isinstance(mode, ReplaceIf):
            commit = self._replace_if(key, mode.version)
            status = self._root.write(key, source, commit, exclusive=True)
        else:
            status = self._root.write(key, source, replace_file)
        version = _version(status)
        return PutResult(etag=version, version=version, size=status.st_size)

    def get(self, key: str, *, byte_range: ByteRange | None = None) -> GetResult:
        """See `Store.get`."""
        check_range(byte_range)
        file = self._open(key)
        status = os.fstat(file.fileno())
        start, end = clip_range(byte_range, status.st_size)
        return GetResult(
            _meta(key, status),
            self._read(key, file, start, end),
            byte_range=(start, end),
            close=file.close,
            store=self._uri,
        )

    def head(self, key: str) -> ObjectMeta:
        """See `Store.head`."""
        path = self._root.locate(key)
        self._root.require_target_inside(path, key)
        with self._root.mapped_errors(key):
            status = _stat_file(path)
        if status is None:
            raise self._root.missing(key)
        return _meta(key, status)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        path = self._root.locate(key)
        with self._root.mapped_errors(key):
            if path.is_dir() and not path.is_symlink():
                raise self._root.missing(key)
            try:
                path.unlink()
            except NotADirectoryError as error:
                raise self._root.missing(key) from error
            self._root.prune(path.parent)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """See `Store.list`."""
        prefix = validate_prefix(prefix, store=self._uri)
        folder = self._root.locate(prefix) if prefix else self._root.path
        if not self._root.path.is_dir():
            raise self._root.missing(None)
        if prefix:
            self._root.require_target_inside(folder, prefix)
        return _walk(self._root, folder, prefix)

    def copy(self, source_key: str, destination_key: str) -> None:
        """See `Store.copy`."""
        with self.get(source_key) as result:
            self.put(destination_key, result)

    def checksum(self, key: str) -> Checksum:
        """See `Store.checksum`; reads the file, and answers with its SHA-256."""
        digest = hashlib.sha256()
        with self.get(key) as result:
            for chunk in result:
                digest.update(chunk)
        return Checksum("sha256", digest.hexdigest())

    def uri(self, key: str) -> str:
        """See `Store.uri`."""
        return f"{self._uri}/{key}" if key else self._uri

    def _replace_if(self, key: str, version: str) -> CommitFunction:
        def commit(temporary: Path, target: Path) -> None:
            status = _stat_file(target)
            if status is None or _version(status) != version:
                raise PreconditionFailedError(
                    f"the object is not at version {version!r}", store=self._uri, key=key
                )
            temporary.replace(target)

        return commit

    def _open(self, key: str) -> BinaryIO:
        path = self._root.locate(key)
        self._root.require_target_inside(path, key)
        with self._root.mapped_errors(key):
            try:
                # Without O_NONBLOCK a named pipe would wait for a writer.
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except NotADirectoryError as error:
                raise self._root.missing(key) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._root.missing(key)
        return open(descriptor, "rb", buffering=0)  # noqa: PTH123 - a descriptor

    def _read(self, key: str, file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            with self._root.mapped_errors(key):
                chunk = os.pread(file.fileno(), min(CHUNK_SIZE, end - start), start)
            if not chunk:
                return
            start += len(chunk)
            yield chunk


def _walk(root: Root, folder: Path, prefix: str) -> Iterator[ObjectMeta]:
    pending = [(str(folder), f"{prefix}/" if prefix else "")]
    while pending:
        path, start = pending.pop()
        with root.mapped_errors(start.rstrip("/") or None):
            try:
                with os.scandir(path) as entries:
                    found = sorted(entries, key=lambda entry: entry.name)
            except (FileNotFoundError, NotADirectoryError):
                continue  # deleted since its parent was read, or a file
        folders: list[tuple[str, str]] = []
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                folders.append((entry.path, f"{start}{entry.name}/"))
            elif not TEMPORARY.fullmatch(entry.name):
                status = _listed(root, entry)
                if status is not None:
                    yield _meta(start + entry.name, status)
        pending.extend(reversed(folders))


def _listed(root: Root, entry: os.DirEntry[str]) -> os.stat_result | None:
    if entry.is_symlink() and not root.is_inside(Path(entry.path)):
        return None
    return _stat_file(Path(entry.path))


def _stat_file(path: Path) -> os.stat_result | None:
    """The stat of a regular file; None for anything else and for nothing."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _version(status: os.stat_result) -> str:
    # Every write makes a new file, so the inode changes even where the clock is too coarse.
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _meta(key: str, status: os.stat_result) -> ObjectMeta:
    version = _version(status)
    return ObjectMeta(
        key=key,
        size=status.st_size,
        last_modified=datetime.fromtimestamp(status.st_mtime, UTC),
        etag=version,
        version=version,
    )


def _require_folder(path: Path, *, create: bool, uri: str) -> None:
    if not path.exists():
        if not create:
            raise BucketNotFoundError("the root folder does not exist", store=uri)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except PermissionError as error:
            raise PermissionDeniedError(f"cannot make the root: {error}", store=uri) from error
        except OSError as error:
            raise InvalidUrlError(f"cannot make the root folder {path}: {error}") from error
    if not path.is_dir():
        raise InvalidUrlError(f"the root {path} is not a folder; give another path")


def open_local(
    url: StoreUrl,
    *,
    create: bool = False,
    durable: bool = True,
    must_exist: bool = False,
    **options: object,
) -> LocalStore:
    """The store in a folder, which is made if it is missing.

    Args:
        url: Its prefix is the absolute path.
        create: Without meaning here: the folder is made either way.
        durable: Flush to the disk before a write counts as done.
        must_exist: Refuse a folder that is missing, rather than making it.
        **options: There are no others.

    Raises:
        InvalidUrlError: An unknown option was given, or the path is not a folder.
        BucketNotFoundError: The folder is missing and ``must_exist`` is on.
    """
    if options:
        raise InvalidUrlError(
            "a local store takes the options durable and must_exist only; got "
            f"{', '.join(sorted(options))}"
        )
    return LocalStore(url.prefix, durable=durable, create=not must_exist)
