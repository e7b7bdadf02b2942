"""What the queue holds."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.run_directory import FileEntry, Fingerprint


@dataclass(frozen=True, eq=False)
class StagedCopy:
    """A private copy of one version of a file, removed when nobody refers to this object.

    Attributes:
        path: Where it lies.
        fingerprint: Of the file when it was copied.
    """

    path: str
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class Task:
    """Store this version of this path, or a newer one.

    Attributes:
        entry: What the scan saw.
        generation: Number of the scan that saw it.
        urgent: Whether somebody waits for it: no settling, no pacing.
        copy: The copy to read; None to read the file itself.
        target: For a link: the relative path of the file that it led to.
    """

    entry: FileEntry
    generation: int
    urgent: bool = False
    copy: StagedCopy | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """A path that is not stored yet.

    Attributes:
        path: Its path.
        reason: Why the last try failed, or what it waits for.
        failed: Whether a try failed.
        age: Seconds since its change was first seen.
        size: Bytes on disk.
    """

    path: str
    reason: str
    failed: bool
    age: float
    size: int
