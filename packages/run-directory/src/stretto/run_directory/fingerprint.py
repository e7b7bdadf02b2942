"""How one version of a file is told from the next."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the file system says about one version of a file, without reading its content.

    Two equal fingerprints of one path mean the same content, whatever any clock says: a file
    that was renamed in with old times differs in its inode and change time, one that was
    rewritten with its times set back differs in its change time.

    Attributes:
        size: Size in bytes.
        mtime_ns: Time of the last change of the content, in nanoseconds since the epoch.
        ctime_ns: Time of the last change of content or metadata, in nanoseconds since the epoch
            (on Windows the time of creation).
        inode: Number of the file on its file system.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, stat_result: os.stat_result) -> Fingerprint:
        """Take the fingerprint from a stat result.

        Args:
            stat_result: What ``os.stat``, ``os.lstat`` or ``os.fstat`` returned.

        Returns:
            The fingerprint.
        """
        return cls(
            stat_result.st_size,
            stat_result.st_mtime_ns,
            stat_result.st_ctime_ns,
            stat_result.st_ino,
        )
