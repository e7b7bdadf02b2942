"""The interface that every back end implements."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from stretto.object_store.errors import CorruptedError
from stretto.object_store.get_result import GetResult
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


class Store(ABC):
    """Objects under keys. One instance serves many threads.

    Keys are clean relative paths (`stretto.object_store.validate_key`); every method that takes
    one raises InvalidKeyError for any other. All errors belong to the tree of
    `stretto.object_store.errors`.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this store promises."""

    @abstractmethod
    def put(
        self,
        key: str,
        source: Source,
        *,
        mode: Mode = PutMode.OVERWRITE,
        metadata: Mapping[str, str] | None = None,
    ) -> PutResult:
        """Store an object: all of it becomes visible at once, or nothing does.

        Args:
            key: Where to.
            source: Bytes, a path, a file open for binary reading (from its position on), or an
                iterable of bytes.
            mode: Overwrite, create, or replace a known version.
            metadata: Short ASCII strings to keep with the object; names are lower-cased.

        Raises:
            AlreadyExistsError: ``PutMode.CREATE`` and the key is taken.
            PreconditionFailedError: `ReplaceIf` and the stored version is another, or gone.
            ValueError: The mode or the metadata is something this store cannot do.
        """

    @abstractmethod
    def get(self, key: str, *, byte_range: ByteRange | None = None) -> GetResult:
        """Open an object for reading.

        Args:
            key: Which object.
            byte_range: Part of it, as in ``data[start:end]``; it may reach past the end.

        Raises:
            NotFoundError: There is none.
            ValueError: The range is negative or the wrong way round.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectMeta:
        """Describe an object without reading it.

        Args:
            key: Which object.

        Raises:
            NotFoundError: There is none.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object.

        Args:
            key: Which object.

        Raises:
            NotFoundError: There is none.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """Walk over all objects below a prefix, page by page, in no promised order.

        Args:
            prefix: Whole path parts: ``a/b`` finds ``a/b/c``, not ``a/bc`` and not ``a/b``
                itself. Empty for everything. Objects that other writers stored under unclean
                names are listed too: see `ObjectMeta.is_clean`.
        """

    @abstractmethod
    def copy(self, source_key: str, destination_key: str) -> None:
        """Copy an object within the store; what is at the destination is replaced.

        Args:
            source_key: Which object.
            destination_key: Where to.

        Raises:
            NotFoundError: There is no such source.
        """

    @abstractmethod
    def uri(self, key: str) -> str:
        """The full address of a key, taken literally (nothing is percent-encoded).

        Args:
            key: A key; it need not exist.
        """

    def checksum(self, key: str) -> Checksum | None:
        """The digest of the object that the store vouches for.

        A local store computes it on the spot by reading. None where nothing is vouched for.

        Args:
            key: Which object.

        Raises:
            NotFoundError: There is no such object.
        """
        return self.head(key).checksum

    def probe(self) -> None:
        """Write, read back and delete a small object, to learn whether the store can be used.

        Raises:
            ObjectStoreError: One of these is not possible; the class says why.
        """
        key = f".rundir-uploader/probe-{os.urandom(8).hex()}"
        data = os.urandom(32)
        self.put(key, data)
        try:
            with self.get(key) as result:
                found = result.read()
            if found != data:
                raise CorruptedError("a probe came back changed", store=self.uri(""), key=key)
        finally:
            self.delete(key)

    def check(self) -> None:
        """Ask the store cheaply whether it is there and lets us in.

        Raises:
            BucketNotFoundError: The bucket does not exist.
            CredentialsError: The credential is missing or wrong.
        """
        next(iter(self.list(".rundir-uploader/probe")), None)

    def close(self) -> None:  # noqa: B027 - most stores have nothing to let go
        """Let connections go. The store must not be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
