"""Mirror a run directory to any object store while a run writes to it.

`Uploader` serves any program, `RunDirectoryUploader` is a callback for Stretto's trainer (and for
any loop that runs `stretto.core_events`), ``rundir-uploader`` is the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rundir_uploader.callback import RunDirectoryUploader
    from rundir_uploader.errors import (
        DirectoryLockedError,
        IncompleteUploadError,
        UploaderError,
        UploaderSettingsError,
        WorkerError,
    )
    from rundir_uploader.pacing import Pacing
    from rundir_uploader.status import UploadStatus
    from rundir_uploader.uploader import Uploader

_HOMES = {
    "DirectoryLockedError": "rundir_uploader.errors",
    "IncompleteUploadError": "rundir_uploader.errors",
    "Pacing": "rundir_uploader.pacing",
    "RunDirectoryUploader": "rundir_uploader.callback",
    "UploadStatus": "rundir_uploader.status",
    "Uploader": "rundir_uploader.uploader",
    "UploaderError": "rundir_uploader.errors",
    "UploaderSettingsError": "rundir_uploader.errors",
    "WorkerError": "rundir_uploader.errors",
}

__all__ = [
    "DirectoryLockedError",
    "IncompleteUploadError",
    "Pacing",
    "RunDirectoryUploader",
    "UploadStatus",
    "Uploader",
    "UploaderError",
    "UploaderSettingsError",
    "WorkerError",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
