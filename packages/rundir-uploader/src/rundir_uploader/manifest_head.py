"""The head of a manifest: what is read first and replaced last."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, cast

from stretto.object_store.errors import CorruptedError

FORMAT = "rundir-uploader manifest"
VERSION = 1
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestHead:
    """The state of one writer's manifest.

    Attributes:
        writer: Which one.
        sequence: Counts the heads of this writer.
        snapshot: Name of the snapshot beside the head; None while there is none.
        deltas: Names of the deltas beside the head, oldest first.
        host: Machine of the writer.
        updated_at: Seconds since the epoch.
        finished: Whether the writer had stored everything and left.
        pending: How many paths were not stored when this was written.
        files: Objects that are described.
        size: Bytes in them.
        token: Drawn at random, tells this head from others of the same number.
        ancestors: Tokens of the heads that it was built upon, the newest first.
    """

    writer: str
    sequence: int
    snapshot: str | None = None
    deltas: tuple[str, ...] = ()
    host: str = ""
    updated_at: float = 0.0
    finished: bool = False
    pending: int = 0
    files: int = 0
    size: int = 0
    token: str = ""
    ancestors: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the content of the head object."""
        return _encode({"format": FORMAT, "version": VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, data: bytes, *, where: str) -> ManifestHead:
        """Read a head object.

        Args:
            data: Its content.
            where: Its URI, for the error.

        Raises:
            CorruptedError: It is none, or one of a later version.
        """
        try:
            said = cast("dict[str, Any]", json.loads(data))
            if (said.pop("format"), said.pop("version")) != (FORMAT, VERSION):
                raise CorruptedError(f"{where} has another format; use a newer rundir-uploader")
            said["deltas"] = tuple(said["deltas"])
            said["ancestors"] = tuple(said.get("ancestors", ()))
            return cls(**said)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptedError(f"{where} cannot be read: {error}") from error
