"""A store that passes everything on; the base of the other wrappers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stretto.object_store.get_result import GetResult
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


class ForwardingStore(Store):
    """Passes every call to another store. Override what should differ.

    Args:
        inner: The store that does the work.
    """

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    @property
    def inner(self) -> Store:
        """The store that does the work."""
        return self._inner

    @property
    def capabilities(self) -> Capabilities:
        """What the inner store promises."""
        return self._inner.capabilities

    def put(
        self,
        key: str,
        source: Source,
        *,
        mode: Mode = PutMode.OVERWRITE,
        metadata: Mapping[str, str] | None = None,
    ) -> PutResult:
        """See `Store.put`."""
        return self._inner.put(key, source, mode=mode, metadata=metadata)

    def get(self, key: str, *, byte_range: ByteRange | None = None) -> GetResult:
        """See `Store.get`."""
        return self._inner.get(key, byte_range=byte_range)

    def head(self, key: str) -> ObjectMeta:
        """See `Store.head`."""
        return self._inner.head(key)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self._inner.delete(key)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """See `Store.list`."""
        return self._inner.list(prefix)

    def copy(self, source_key: str, destination_key: str) -> None:
        """See `Store.copy`."""
        self._inner.copy(source_key, destination_key)

    def checksum(self, key: str) -> Checksum | None:
        """See `Store.checksum`."""
        return self._inner.checksum(key)

    def uri(self, key: str) -> str:
        """See `Store.uri`."""
        return self._inner.uri(key)

    def check(self) -> None:
        """See `Store.check`."""
        self._inner.check()

    def close(self) -> None:
        """See `Store.close`."""
        self._inner.close()
