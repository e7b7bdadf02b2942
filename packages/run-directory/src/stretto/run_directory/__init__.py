"""Where a training run keeps its files, and which of them changed.

Nothing is created and nothing is settled at import. See :mod:`stretto.run_directory.layout` for the
place, :mod:`~stretto.run_directory.scan` for what lies there, and
:mod:`~stretto.run_directory.rank` for who is asking.
"""

from __future__ import annotations

from stretto.run_directory.changes import (
    find_latest_run,
    get_modified_files,
    get_run_directory_timestamp,
)
from stretto.run_directory.errors import (
    IncompleteScanError,
    InvalidRankError,
    InvalidRunDirectoryError,
    RunDirectoryError,
    RunDirectoryIsAFileError,
    RunDirectoryPermissionError,
)
from stretto.run_directory.fingerprint import Fingerprint
from stretto.run_directory.layout import (
    RUN_DIRECTORY_VARIABLES,
    create_node_run_directory,
    create_run_directory,
    get_node_run_directory,
    get_run_directory,
    set_run_directory,
)
from stretto.run_directory.scan import FileEntry, FileKind, scan

__all__ = [
    "RUN_DIRECTORY_VARIABLES",
    "FileEntry",
    "FileKind",
    "Fingerprint",
    "IncompleteScanError",
    "InvalidRankError",
    "InvalidRunDirectoryError",
    "RunDirectoryError",
    "RunDirectoryIsAFileError",
    "RunDirectoryPermissionError",
    "create_node_run_directory",
    "create_run_directory",
    "find_latest_run",
    "get_modified_files",
    "get_node_run_directory",
    "get_run_directory",
    "get_run_directory_timestamp",
    "scan",
    "set_run_directory",
]
