"""A store in this process's memory, for tests and small things."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from stretto.object_store.errors import (
    AlreadyExistsError,
    InvalidUrlError,
    NotFoundError,
    PreconditionFailedError,
)
from stretto.object_store.get_result import GetResult, check_range, clip_range
from stretto.object_store.keys import validate_key, validate_prefix
from stretto.object_store.metadata import normalize_metadata
from stretto.object_store.source import CHUNK_SIZE, iter_chunks
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    data: bytes
    meta: ObjectMeta


class MemoryStore(Store):
    """Objects in a dictionary.

    Args:
        name: Shown in URIs.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._objects: dict[str, _Object] = {}
        self._lock = threading.Lock()
        self._writes = 0

    def __repr__(self) -> str:
        return f"MemoryStore({self._name!r})"

    @property
    def capabilities(self) -> Capabilities:
        """Everything but crossing a process boundary."""
        return Capabilities(
            create=True,
            replace_if=True,
            metadata=True,
            server_side_copy=True,
            checksum_algorithms=("md5",),
            persistent=False,
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
        validate_key(key, store=self.uri(""))
        kept = normalize_metadata(metadata)
        data = b"".join(iter_chunks(source))
        with self._lock:
            found = self._objects.get(key)
            if mode is PutMode.CREATE and found is not None:
                raise AlreadyExistsError("the key is taken", store=self.uri(""), key=key)
            if isinstance(mode, ReplaceIf) and (
                found is None or found.meta.version != mode.version
            ):
                raise PreconditionFailedError(
                    f"the object is not at version {mode.version!r}", store=self.uri(""), key=key
                )
            meta = self._write(key, data, kept)
        return PutResult(etag=meta.etag, version=meta.version, size=len(data))

    def get(self, key: str, *, byte_range: ByteRange | None = None) -> GetResult:
        """See `Store.get`."""
        check_range(byte_range)
        found = self._find(key)
        start, end = clip_range(byte_range, len(found.data))
        pieces = (
            found.data[place : min(place + CHUNK_SIZE, end)]
            for place in range(start, end, CHUNK_SIZE)
        )
        return GetResult(found.meta, pieces, byte_range=(start, end), store=self.uri(""))

    def head(self, key: str) -> ObjectMeta:
        """See `Store.head`."""
        return self._find(key).meta

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        validate_key(key, store=self.uri(""))
        with self._lock:
            if self._objects.pop(key, None) is None:
                raise self._missing(key)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """See `Store.list`."""
        prefix = validate_prefix(prefix, store=self.uri(""))
        start = f"{prefix}/" if prefix else ""
        with self._lock:
            found = [item.meta for key, item in self._objects.items() if key.startswith(start)]
        return iter(sorted(found, key=lambda meta: meta.key))

    def copy(self, source_key: str, destination_key: str) -> None:
        """See `Store.copy`."""
        validate_key(destination_key, store=self.uri(""))
        found = self._find(source_key)
        with self._lock:
            self._write(destination_key, found.data, dict(found.meta.metadata))

    def uri(self, key: str) -> str:
        """See `Store.uri`."""
        return f"memory://{self._name}" + (f"/{key}" if key else "")

    def _write(self, key: str, data: bytes, metadata: dict[str, str]) -> ObjectMeta:
        self._writes += 1
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        meta = ObjectMeta(
            key=key,
            size=len(data),
            last_modified=datetime.now(UTC),
            etag=digest,
            version=str(self._writes),
            checksum=Checksum("md5", digest),
            metadata=metadata,
        )
        self._objects[key] = _Object(data=data, meta=meta)
        return meta

    def _find(self, key: str) -> _Object:
        validate_key(key, store=self.uri(""))
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise self._missing(key)
        return found

    def _missing(self, key: str) -> NotFoundError:
        return NotFoundError("there is no such object", store=self.uri(""), key=key)


_shared: dict[str, MemoryStore] = {}
_shared_lock = threading.Lock()


def open_memory(url: StoreUrl, *, create: bool = False, **options: object) -> MemoryStore:
    """The store behind ``memory://NAME``; the same name is the same store in this process.

    Args:
        url: Its bucket is the name; empty for a store of one's own.
        create: Without meaning here.
        **options: There are none.

    Raises:
        InvalidUrlError: An option was given.
    """
    if options:
        raise InvalidUrlError(f"memory:// takes no options; got {', '.join(sorted(options))}")
    if not url.bucket:
        return MemoryStore()
    with _shared_lock:
        return _shared.setdefault(url.bucket, MemoryStore(url.bucket))
