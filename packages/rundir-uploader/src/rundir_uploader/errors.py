"""The errors of this package.

The tree::

    UploaderError
    ├── IncompleteUploadError   (RuntimeError)   something that should be stored is not
    ├── DirectoryLockedError    (RuntimeError)   another uploader mirrors this directory
    ├── UploaderSettingsError   (ValueError)     an argument that cannot be used
    └── WorkerError             (RuntimeError)   the uploader's own process cannot run

What a store raises comes from ``stretto.object_store`` and is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_LISTED = 10


class UploaderError(Exception):
    """Base of everything that this package raises on purpose."""


class IncompleteUploadError(UploaderError, RuntimeError):
    """Some of what is on disk is not in the store.

    Args:
        missing: Pairs of a path relative to the directory, and the reason.
        directory: What was being mirrored.
        destination: Where to, without secrets.

    Attributes:
        missing: As given, in a list.
        directory: As given.
        destination: As given.
    """

    def __init__(
        self, missing: Sequence[tuple[str, str]], *, directory: str = "", destination: str = ""
    ) -> None:
        self.missing = list(missing)
        self.directory = directory
        self.destination = destination
        super().__init__(self._describe())

    def _describe(self) -> str:
        listed = "; ".join(
            f"{path.encode('utf-8', 'replace').decode()} ({reason})"
            for path, reason in self.missing[:_LISTED]
        )
        more = len(self.missing) - _LISTED
        tail = f"; and {more} more" if more > 0 else ""
        again = (
            f" When the reason is gone, run: rundir-uploader sync {self.directory} "
            f"{self.destination}"
            if self.directory and self.destination
            else ""
        )
        return f"{len(self.missing)} file(s) are not in the store: {listed}{tail}.{again}"

    def __reduce__(self) -> tuple[Callable[..., IncompleteUploadError], tuple[Any, ...]]:
        return (_rebuild_incomplete, (self.missing, self.directory, self.destination))


def _rebuild_incomplete(
    missing: list[tuple[str, str]], directory: str, destination: str
) -> IncompleteUploadError:
    return IncompleteUploadError(missing, directory=directory, destination=destination)


class DirectoryLockedError(UploaderError, RuntimeError):
    """Another uploader holds this directory, a parent or a child of it."""


class UploaderSettingsError(UploaderError, ValueError):
    """An argument that cannot be used; the message names the value and the remedy."""


class WorkerError(UploaderError, RuntimeError):
    """The uploader's own process did not start, or keeps dying."""
