"""The data that goes in and out of a store."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from stretto.object_store.keys import is_clean_key

if TYPE_CHECKING:
    from datetime import datetime

Source: TypeAlias = "bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO | Iterable[bytes]"
"""What `Store.put` accepts: bytes, a path, a file open for binary reading, or chunks of bytes."""

ByteRange: TypeAlias = tuple[int, int]
"""First byte and the byte after the last one, as in ``data[start:end]``."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes done and bytes in total; the last call has both equal."""


class PutMode(enum.Enum):
    """What a put does where the key is taken; see also `ReplaceIf`."""

    OVERWRITE = "overwrite"
    CREATE = "create"


@dataclass(frozen=True, slots=True)
class ReplaceIf:
    """Put only where the stored object still has this version.

    Attributes:
        version: `PutResult.version` or `ObjectMeta.version` of the object to be replaced.
    """

    version: str


Mode: TypeAlias = PutMode | ReplaceIf
"""How a put treats what is there already."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """A digest of the whole object.

    Attributes:
        algorithm: ``md5``, ``sha256``, ``crc32``, ``crc32c``; or ``md5-parts``, the MD5 of the
            MD5s of the parts of a multipart upload, whose digest ends in ``-<number of parts>``.
        hexdigest: The digest, lower case.
    """

    algorithm: str
    hexdigest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """What a store knows about one object.

    Attributes:
        key: The key, relative to the store that answered.
        size: Bytes.
        last_modified: Aware time of the last write.
        etag: The store's own tag, without quotes.
        version: What `ReplaceIf` takes; None where the store cannot replace conditionally.
        checksum: The digest that the store vouches for; None where there is none.
        metadata: What was given to `Store.put`; empty in listings.
    """

    key: str
    size: int
    last_modified: datetime
    etag: str | None = None
    version: str | None = None
    checksum: Checksum | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_clean(self) -> bool:
        """Whether the key is one that `Store.put` would accept (foreign writers' may not be)."""
        return is_clean_key(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """What a put left behind.

    Attributes:
        etag: The store's own tag, without quotes; None where it gives none.
        version: What `ReplaceIf` takes; None where the store cannot replace conditionally.
        size: Bytes that were sent.
        checksum: The digest that the store's answer vouches for; None where there is none.
    """

    etag: str | None
    version: str | None
    size: int
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store promises beyond put, get, head, delete and list.

    Attributes:
        create: ``PutMode.CREATE`` is atomic: of many racing creates exactly one succeeds.
        replace_if: `ReplaceIf` is supported and atomic.
        metadata: Metadata given to a put comes back from `Store.head` and `Store.get`.
        server_side_copy: `Store.copy` moves no bytes through this process.
        checksum_algorithms: What `Store.checksum` may answer with; empty where it never does.
        multipart: Large files go up in parts, in parallel.
        picklable: The store can cross a process boundary. False where that would need a secret.
        max_key_bytes: Bytes that a key may have.
        refused_characters: Characters that the service cannot keep in keys.
        max_object_size: Bytes one object may have; None where unknown or unlimited.
        max_conditional_size: Bytes that a put with another mode than overwrite may send.
        persistent: Objects outlive this process.
        ordered: Listings come in the order of the keys' UTF-8 bytes.
        remote: Calls go over a network, and repeating them makes sense.
    """

    create: bool = False
    replace_if: bool = False
    metadata: bool = False
    server_side_copy: bool = False
    checksum_algorithms: tuple[str, ...] = ()
    multipart: bool = False
    picklable: bool = False
    max_key_bytes: int = 1024
    refused_characters: str = ""
    max_object_size: int | None = None
    max_conditional_size: int | None = None
    persistent: bool = True
    ordered: bool = False
    remote: bool = True
