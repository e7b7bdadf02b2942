"""Files to objects and back, and from store to store."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from stretto.object_store.errors import (
    AlreadyExistsError,
    BucketNotFoundError,
    CorruptedError,
    NotFoundError,
)
from stretto.object_store.get_result import GetResult
from stretto.object_store.store import Store
from stretto.object_store.types import (
    Checksum,
    Mode,
    ObjectMeta,
    Progress,
    PutMode,
    PutResult,
)

SMALL_FILE = 8 << 20
"""Files up to this many bytes are read at once and their MD5 is compared."""

_FIRST_READ = 64 << 10
VERIFIED_DOWNLOAD = 64 << 20
"""Objects up to this many bytes have their MD5 compared after a download."""


def upload_file(
    store: Store,
    key: str,
    path: str | os.PathLike[str],
    *,
    mode: Mode = PutMode.OVERWRITE,
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> PutResult:
    """Store a file and make sure that it has arrived whole.

    Large files go up in parallel parts where the store can do that. Afterwards the stored size is
    compared, and for small files the MD5 where the store gives one.

    Args:
        store: Where to.
        key: Under which key.
        path: The file.
        mode: Overwrite, create, or replace a known version.
        metadata: See `Store.put`.
        progress: Called with (bytes handed over, bytes in total).

    Raises:
        FileNotFoundError: There is no such file.
        CorruptedError: The store holds other bytes than were sent.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = _read_small(descriptor)
        if data is not None:
            return _upload_bytes(store, key, data, mode, metadata, progress)
        os.lseek(descriptor, 0, os.SEEK_SET)
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            size = os.fstat(descriptor).st_size
            source = Path(path) if progress is None else _CountingReader(file, size, progress)
            result = store.put(key, source, mode=mode, metadata=metadata)
    finally:
        os.close(descriptor)
    _compare_size(store, key, result.size)
    if progress is not None:
        progress(result.size, result.size)
    return result


def _read_small(descriptor: int) -> bytes | None:
    """All of a file, or None if it is not small. It may be growing."""
    data = os.read(descriptor, _FIRST_READ)
    more = os.read(descriptor, _FIRST_READ)  # only an empty read is the end, on some file systems
    if not more:
        return data
    if os.fstat(descriptor).st_size > SMALL_FILE:
        return None
    pieces, size = [data, more], len(data) + len(more)
    while size <= SMALL_FILE:
        data = os.read(descriptor, 1 << 20)
        if not data:
            return b"".join(pieces)
        pieces.append(data)
        size += len(data)
    return None


def _upload_bytes(
    store: Store,
    key: str,
    data: bytes,
    mode: Mode,
    metadata: Mapping[str, str] | None,
    progress: Progress | None,
) -> PutResult:
    result = store.put(key, data, mode=mode, metadata=metadata)
    checksum = result.checksum
    if checksum is None or checksum.algorithm != "md5":
        _compare_size(store, key, len(data))
    elif checksum.hexdigest != hashlib.md5(data, usedforsecurity=False).hexdigest():
        # Some services answer with a tag that looks like an MD5 and is none (KMS encryption does).
        with store.get(key) as found:
            if found.read() != data:
                raise CorruptedError(
                    "the store holds other bytes than were sent; upload it again",
                    store=store.uri(""),
                    key=key,
                )
        import logging

        logging.getLogger(__name__).info(
            "%s: its ETag is no MD5; open the store with etag_is_md5=False", store.uri(key)
        )
    if progress is not None:
        progress(len(data), len(data))
    return result


def _compare_size(store: Store, key: str, size: int) -> None:
    found = store.head(key).size
    if found != size:
        raise CorruptedError(
            f"the store holds {found} bytes where {size} were sent; upload it again",
            store=store.uri(""),
            key=key,
        )


class _CountingReader(io.RawIOBase):
    """A file that reports how far it has been read."""

    def __init__(self, file: BinaryIO | io.FileIO, total: int, progress: Progress) -> None:
        super().__init__()
        self._file = file
        self._total = total
        self._progress = progress

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        if data:
            self._progress(min(self._file.tell(), self._total), self._total)
        return data or b""


def download_file(
    store: Store,
    key: str,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ObjectMeta:
    """Bring an object to a file, which appears whole or not at all.

    Args:
        store: Where from.
        key: Which object.
        path: The file; missing folders are made.
        overwrite: Replace what is there, atomically.
        progress: Called with (bytes received, bytes in total).

    Returns:
        What the store said about the object.

    Raises:
        AlreadyExistsError: Something is there and ``overwrite`` is off.
        NotFoundError: There is no such object.
        CorruptedError: The MD5 of what came is not what the store vouches for.
    """
    target = Path(path)
    if not overwrite and os.path.lexists(target):
        raise AlreadyExistsError(f"{target} exists; pass overwrite=True to replace it")
    result = store.get(key)  # before anything is made on this side
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".stretto-{os.urandom(8).hex()}.tmp"
    try:
        meta = _receive_checked(store, result, temporary, progress)
        if overwrite:
            temporary.replace(target)
        else:
            _link_new(temporary, target)
    finally:
        result.close()
        temporary.unlink(missing_ok=True)
    return meta


def _receive_checked(
    store: Store, result: GetResult, temporary: Path, progress: Progress | None
) -> ObjectMeta:
    meta = result.meta
    first = _receive(result, temporary, progress)
    if first is None or first == meta.checksum:
        return meta
    # Damaged on the way, or a tag that looks like an MD5 and is none: a second reading tells.
    with store.get(meta.key) as again:
        second = _receive(again, temporary, progress)
        if second not in (first, again.meta.checksum):
            raise CorruptedError(
                f"reading twice gave {first.hexdigest} and {second and second.hexdigest}, "
                "and neither is the MD5 that the store vouches for",
                store=store.uri(""),
                key=meta.key,
            )
        return again.meta


def _receive(result: GetResult, temporary: Path, progress: Progress | None) -> Checksum | None:
    """Write a stream to a file; the MD5 of what came where it is worth comparing."""
    expected = result.meta.checksum
    compare = expected is not None and expected.algorithm == "md5"
    compare = compare and result.size <= VERIFIED_DOWNLOAD
    digest = hashlib.md5(usedforsecurity=False)
    done = 0
    with temporary.open("wb", buffering=0) as file:
        for chunk in result:
            view = memoryview(chunk)
            while view:
                view = view[file.write(view) :]
            if compare:
                digest.update(chunk)
            done += len(chunk)
            if progress is not None and done < result.size:
                progress(done, result.size)
        os.fsync(file.fileno())
    if progress is not None:
        progress(done, result.size)
    return Checksum("md5", digest.hexdigest()) if compare else None


def _link_new(temporary: Path, target: Path) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError as error:
        raise AlreadyExistsError(f"{target} exists; pass overwrite=True to replace it") from error
    except OSError:
        if os.path.lexists(target):  # no hard links here: the best that is left
            raise AlreadyExistsError(
                f"{target} exists; pass overwrite=True to replace it"
            ) from None
        temporary.replace(target)


def exists(store: Store, key: str) -> bool:
    """Whether there is an object. No permission is an error, never False.

    Args:
        store: Where to look.
        key: Which object.
    """
    try:
        store.head(key)
    except BucketNotFoundError:
        raise
    except NotFoundError:
        return False
    return True


def walk(store: Store, prefix: str = "") -> Iterator[ObjectMeta]:
    """All objects below a prefix whose keys are clean, in order of their keys' arrival.

    Args:
        store: Where to look.
        prefix: Whole path parts; empty for everything.
    """
    return (meta for meta in store.list(prefix) if meta.is_clean)


def copy_between(
    source: Store, source_key: str, destination: Store, destination_key: str
) -> PutResult:
    """Copy an object from one store to another through this process, in flat memory.

    Args:
        source: Where from.
        source_key: Which object.
        destination: Where to.
        destination_key: Under which key.
    """
    with source.get(source_key) as result:
        kept = result.meta.metadata if destination.capabilities.metadata else None
        return destination.put(destination_key, result, metadata=kept)
