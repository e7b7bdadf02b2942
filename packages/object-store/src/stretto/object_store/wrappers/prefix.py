"""A part of a store, seen as a store of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from stretto.object_store.get_result import GetResult
from stretto.object_store.keys import validate_key, validate_prefix
from stretto.object_store.store import Store
from stretto.object_store.types import (
    ByteRange,
    Capabilities,
    Checksum,
    Mode,
    ObjectMeta,
    PutMode,
    PutResult,
    Source,
)
from stretto.object_store.wrappers.forward import ForwardingStore


class PrefixStore(ForwardingStore):
    """Puts a prefix before every key and takes it off every answer.

    Args:
        inner: The store that holds the objects.
        prefix: Whole path parts, not empty.
    """

    def __init__(self, inner: Store, prefix: str) -> None:
        super().__init__(inner)
        self._prefix = validate_key(prefix)
        inner_limit = inner.capabilities.max_key_bytes
        self._capabilities = replace(
            inner.capabilities, max_key_bytes=inner_limit - len(prefix.encode()) - 1
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r}, {self._prefix!r})"

    @property
    def capabilities(self) -> Capabilities:
        """What the inner store promises, for shorter keys."""
        return self._capabilities

    @property
    def prefix(self) -> str:
        """What is put before every key, without a slash at its end."""
        return self._prefix

    def put(
        self,
        key: str,
        source: Source,
        *,
        mode: Mode = PutMode.OVERWRITE,
        metadata: Mapping[str, str] | None = None,
    ) -> PutResult:
        """See `Store.put`."""
        return self._inner.put(self._full(key), source, mode=mode, metadata=metadata)

    def get(self, key: str, *, byte_range: ByteRange | None = None) -> GetResult:
        """See `Store.get`."""
        result = self._inner.get(self._full(key), byte_range=byte_range)
        result.meta = replace(result.meta, key=key)
        return result

    def head(self, key: str) -> ObjectMeta:
        """See `Store.head`."""
        return replace(self._inner.head(self._full(key)), key=key)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self._inner.delete(self._full(key))

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """See `Store.list`."""
        inner_prefix = validate_prefix(prefix)
        full = f"{self._prefix}/{inner_prefix}" if inner_prefix else self._prefix
        cut = len(self._prefix) + 1
        return (replace(meta, key=meta.key[cut:]) for meta in self._inner.list(full))

    def copy(self, source_key: str, destination_key: str) -> None:
        """See `Store.copy`."""
        self._inner.copy(self._full(source_key), self._full(destination_key))

    def checksum(self, key: str) -> Checksum | None:
        """See `Store.checksum`."""
        return self._inner.checksum(self._full(key))

    def uri(self, key: str) -> str:
        """See `Store.uri`."""
        return self._inner.uri(f"{self._prefix}/{key}" if key else self._prefix)

    def _full(self, key: str) -> str:
        # The inner store checks the whole key; a bad part cannot hide behind a good prefix.
        return f"{self._prefix}/{key}"
