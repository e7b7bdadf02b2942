"""How an uploader is doing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStatus:
    """One moment of an uploader.

    Attributes:
        state: ``starting``, ``running``, ``draining``, ``finished``, ``incomplete``, ``stopped``
            or ``refused`` (the store or another uploader did not let it begin).
        stored: Files and links whose object is in the store.
        stored_bytes: Bytes in these objects.
        pending: Files that are not stored in their present version.
        pending_bytes: Bytes in these files on disk.
        in_flight: Transfers at this moment.
        failed: Pairs of a path whose last try failed, and the reason.
        retries: Failed tries so far, of any file.
        sent_bytes: Bytes that went to the store so far, manifests included.
        gone: Files that were deleted before they were stored.
        lag: Seconds since the oldest unsent change was seen; 0 if all is stored.
        scans: How often the directory was scanned.
        scan_seconds: How long the last scan took.
        restarts: How often the uploader's own process had to be started again.
        problem: What is wrong with the uploader as a whole; empty if nothing is.
    """

    state: str = "starting"
    stored: int = 0
    stored_bytes: int = 0
    pending: int = 0
    pending_bytes: int = 0
    in_flight: int = 0
    failed: tuple[tuple[str, str], ...] = ()
    retries: int = 0
    sent_bytes: int = 0
    gone: int = 0
    lag: float = 0.0
    scans: int = 0
    scan_seconds: float = 0.0
    restarts: int = 0
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the status as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, said: dict[str, Any]) -> UploadStatus:
        """Rebuild a status.

        Args:
            said: What `to_dict` gave, perhaps through JSON.
        """
        values = dict(said)
        values["failed"] = tuple((path, reason) for path, reason in said.get("failed", ()))
        return cls(**values)
