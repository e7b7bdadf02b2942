"""The errors of this package.

The tree::

    RunDirectoryError(OSError)
    ├── InvalidRunDirectoryError(ValueError)            a value that cannot name a run directory
    ├── RunDirectoryIsAFileError(NotADirectoryError)    a file stands where a folder must be
    ├── RunDirectoryPermissionError(PermissionError)    we may not create it or write in it
    └── IncompleteScanError                             parts of a tree could not be read
    InvalidRankError(ValueError)                        a rank variable is not a number
"""

from __future__ import annotations

from collections.abc import Sequence


class RunDirectoryError(OSError):
    """Something is wrong with the run directory."""


class InvalidRunDirectoryError(RunDirectoryError, ValueError):
    """A value cannot name a run directory (it is empty, a URL, the root of the file system, …)."""


class RunDirectoryIsAFileError(RunDirectoryError, NotADirectoryError):
    """A file stands where the run directory, or one of its parents, must be."""


class RunDirectoryPermissionError(RunDirectoryError, PermissionError):
    """The run directory cannot be created or written to for want of permission."""


class InvalidRankError(ValueError):
    """An environment variable that tells a rank or a size is not a fitting whole number."""


class IncompleteScanError(RunDirectoryError):
    """A scan could not read everything; what it could read had been yielded before.

    Attributes:
        directory: The directory that was scanned.
        errors: One error for each path that could not be read; each carries ``filename``.
    """

    def __init__(self, directory: str, errors: Sequence[OSError]) -> None:
        """Describe an incomplete scan.

        Args:
            directory: The directory that was scanned.
            errors: What went wrong, at least one.
        """
        self.directory = directory
        self.errors: tuple[OSError, ...] = tuple(errors)
        first = self.errors[0]
        super().__init__(
            f"{len(self.errors)} path(s) below {directory!r} could not be read, "
            f"the first {first.filename!r}: {first.strerror}. Everything else was scanned. "
            f"Give read permission, exclude the path, or pass on_error to go on without it."
        )

    def __reduce__(self) -> tuple[type[IncompleteScanError], tuple[str, tuple[OSError, ...]]]:
        """Let the error cross a process boundary."""
        return type(self), (self.directory, self.errors)
