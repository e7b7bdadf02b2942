"""What is known about one path: the unit of journal and manifest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from json.encoder import encode_basestring_ascii as _quote
from typing import Any

from stretto.run_directory import Fingerprint

WHOLE = 4 << 20
"""Files up to this size are read into memory at once; larger ones are streamed."""

EDGE = 4096
"""Bytes at either end of a larger file that are remembered to tell growth from a rewrite."""


class RecordKind(Enum):
    """What a path is, as far as mirroring is concerned."""

    FILE = "file"
    """A regular file; its object holds its content."""
    POINTER = "pointer"
    """A symbolic link to a mirrored file; its object holds the key of that file."""
    LINK = "link"
    """Any other symbolic link: recorded, not followed, no object."""
    EMPTY_DIRECTORY = "empty_directory"
    """A folder that holds nothing mirrored: recorded, no object."""
    SPECIAL = "special"
    """A socket, FIFO or device: recorded, no object."""

    @property
    def has_object(self) -> bool:
        """Whether an object in the store belongs to the path."""
        return self in _WITH_OBJECT


_WITH_OBJECT = frozenset({RecordKind.FILE, RecordKind.POINTER})


@dataclass(frozen=True, slots=True)
class Record:
    """One path, and what the store holds for it.

    Attributes:
        path: Path relative to the directory, ``surrogateescape`` for foreign bytes.
        kind: What it is.
        fingerprint: The version on disk that is stored (or recorded).
        size: Bytes of the stored object; 0 where there is none.
        sha256: Hex digest of the stored object; empty where there is none.
        head_crc: CRC-32 of the first `EDGE` bytes of what is stored; 0 up to `WHOLE` bytes.
        tail_crc: CRC-32 of its last `EDGE` bytes; 0 up to `WHOLE` bytes.
        mode: ``st_mode`` of the path.
        target: What a symbolic link says; None for everything else.
        stored_at: Seconds since the epoch when it was stored (or recorded).
        deleted_at: Seconds since the epoch when it was seen to be gone from the directory; None
            while it is there.
    """

    path: str
    kind: RecordKind
    fingerprint: Fingerprint
    size: int
    sha256: str
    head_crc: int
    tail_crc: int
    mode: int
    target: str | None
    stored_at: float
    deleted_at: float | None = None

    def deleted(self, when: float) -> Record:
        """Return this record, marked as gone from the directory.

        Args:
            when: Seconds since the epoch.
        """
        return replace(self, deleted_at=when)

    def seen(self, fingerprint: Fingerprint, mode: int) -> Record:
        """Return this record for a path that changed in its metadata only.

        Args:
            fingerprint: The fingerprint it has now.
            mode: The mode it has now.
        """
        return replace(self, fingerprint=fingerprint, mode=mode, deleted_at=None)

    def to_json(self, tag: str) -> str:
        """Return the record as a line of JSON: a list of a tag and what `to_row` gives.

        Written out by hand, since this is done for every file that is stored.

        Args:
            tag: The first element; letters only.
        """
        print_ = self.fingerprint
        target = "null" if self.target is None else _quote(self.target)
        deleted = "null" if self.deleted_at is None else repr(self.deleted_at)
        return (
            f'["{tag}",{_quote(self.path)},"{self.kind.value}",{print_.size},{print_.mtime_ns},'
            f'{print_.ctime_ns},{print_.inode},{self.size},"{self.sha256}",{self.head_crc},'
            f"{self.tail_crc},{self.mode},{target},{self.stored_at!r},{deleted}]"
        )

    def to_row(self) -> list[Any]:
        """Return the record as a flat list that JSON can hold."""
        print_ = self.fingerprint
        return [
            self.path,
            self.kind.value,
            print_.size,
            print_.mtime_ns,
            print_.ctime_ns,
            print_.inode,
            self.size,
            self.sha256,
            self.head_crc,
            self.tail_crc,
            self.mode,
            self.target,
            self.stored_at,
            self.deleted_at,
        ]

    @classmethod
    def from_row(cls, row: list[Any]) -> Record:
        """Rebuild a record.

        Args:
            row: What `to_row` gave.

        Raises:
            ValueError: The row is not one.
        """
        try:
            path, kind, size, mtime_ns, ctime_ns, inode = row[:6]
            return cls(
                path, RecordKind(kind), Fingerprint(size, mtime_ns, ctime_ns, inode), *row[6:]
            )
        except TypeError as error:
            raise ValueError(f"not a record: {row!r}") from error
