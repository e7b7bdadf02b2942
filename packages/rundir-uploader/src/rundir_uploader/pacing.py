"""When a file that has not come to rest is sent."""

from __future__ import annotations

from dataclasses import dataclass

from rundir_uploader.errors import UploaderSettingsError
from rundir_uploader.records import Record
from stretto.run_directory import Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How long to hold back. Nothing is held back at a flush or at the end.

    Attributes:
        settle: Seconds that a file must have rested before it is read.
        max_settle: Seconds after which one that never rests is read all the same.
        growth: A stored file that only grows is sent again when it is this many times as large.
        max_age: Seconds after which it is sent again in any case.
    """

    settle: float = 1.0
    max_settle: float = 30.0
    growth: float = 1.5
    max_age: float = 600.0

    def __post_init__(self) -> None:
        if min(self.settle, self.max_settle, self.max_age) < 0 or self.growth < 1:
            raise UploaderSettingsError(
                f"{self} is not possible: times must not be negative, growth at least 1"
            )

    def holds(self, record: Record, now: Fingerprint, age: float) -> bool:
        """Whether a file that may only have grown is not sent yet.

        Args:
            record: What is stored.
            now: The file's fingerprint.
            age: Seconds since the growth was first seen.
        """
        return self.may_have_grown(record, now) and (
            now.size < record.size * self.growth and age < self.max_age
        )

    def may_have_grown(self, record: Record, now: Fingerprint) -> bool:
        """Whether a file could be its stored version with something appended.

        Args:
            record: What is stored.
            now: The file's fingerprint.
        """
        return record.fingerprint.inode == now.inode and now.size > record.size > 0
