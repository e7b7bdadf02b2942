"""What an uploader is to do, as data that can cross into another process."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from rundir_uploader.errors import UploaderSettingsError
from rundir_uploader.pacing import Pacing
from rundir_uploader.selection import Selection

DEFAULT_CAP = 16 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """What to mirror, and how hard to try.

    Attributes:
        directory: The mirrored directory, absolute.
        prefix: Before every key in the store; whole parts, or empty.
        selection: What is mirrored.
        num_concurrent_uploads: How many transfers run at once, at least 1.
        pacing: When files that have not come to rest are sent.
        scan_interval: Seconds between scans that nobody asked for; longer where a scan takes long.
        no_progress_timeout: Seconds without one success after which a flush or close gives up.
    """

    directory: Path
    prefix: str = ""
    selection: Selection = field(default_factory=Selection)
    num_concurrent_uploads: int = 4
    pacing: Pacing = field(default_factory=Pacing)
    scan_interval: float = 30.0
    no_progress_timeout: float = 600.0

    def __post_init__(self) -> None:
        check_positive("num_concurrent_uploads", self.num_concurrent_uploads)
        for name in ("scan_interval", "no_progress_timeout"):
            check_seconds(name, getattr(self, name))

    @property
    def root(self) -> str:
        """The directory with its links resolved."""
        return os.path.realpath(self.directory)


def check_positive(name: str, value: object) -> None:
    """Refuse anything but a whole number from 1 up.

    Args:
        name: Of the argument.
        value: What was given.

    Raises:
        UploaderSettingsError: It is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UploaderSettingsError(f"{name}={value!r} must be a whole number from 1 up")


def check_seconds(name: str, value: object, *, may_be_zero: bool = False) -> None:
    """Refuse anything but a number of seconds.

    Args:
        name: Of the argument.
        value: What was given.
        may_be_zero: Whether no time at all is one, too.

    Raises:
        UploaderSettingsError: It is something else.
    """
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else -1
    if number > 0 or (may_be_zero and number == 0):
        return
    least = "of at least 0" if may_be_zero else "above 0"
    raise UploaderSettingsError(f"{name}={value!r} must be a number of seconds {least}")


def check_prefix(prefix: object, name: str = "prefix") -> str:
    """Return a prefix without slashes at its end.

    Args:
        prefix: What was given.
        name: Of the argument.

    Raises:
        UploaderSettingsError: It is not a clean path.
    """
    from stretto.object_store import InvalidKeyError, validate_key

    if not isinstance(prefix, str):
        raise UploaderSettingsError(f"{name}={prefix!r} must be a string")
    text = prefix.rstrip("/")
    if not text:
        return ""
    try:
        return validate_key(text)
    except InvalidKeyError as error:
        raise UploaderSettingsError(f"{name}={prefix!r} cannot be used: {error.message}") from None


def check_directory(directory: str | os.PathLike[str]) -> Path:
    """Return an existing directory, absolute.

    Args:
        directory: What was given.

    Raises:
        NotADirectoryError: There is something else.
        FileNotFoundError: There is nothing.
    """
    path = Path(directory).absolute()
    if path.is_dir():
        return path
    if path.exists():
        raise NotADirectoryError(20, "is a file; name the directory to mirror", str(path))
    raise FileNotFoundError(2, "does not exist; create the directory first", str(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Whether, and where, copies are taken before the training loop goes on.

    Attributes:
        blocking: Whether they are.
        folder: Where; None for a private folder in the mirrored directory.
        cap: Bytes that copies may take up; files beyond that are read from where they lie.
    """

    blocking: bool = False
    folder: str | None = None
    cap: int = DEFAULT_CAP

    @classmethod
    def of(cls, mode: str, folder: str | os.PathLike[str] | None) -> Staging:
        """Take what a caller gave.

        Args:
            mode: ``"background"`` or ``"blocking"``.
            folder: Where to keep copies, or None.

        Raises:
            UploaderSettingsError: The mode is another, or the folder is a file.
        """
        if mode not in ("background", "blocking"):
            raise UploaderSettingsError(
                f"staging={mode!r} is not known; give 'background' or 'blocking'"
            )
        if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
            raise UploaderSettingsError(
                f"upload_staging_folder={os.fspath(folder)!r} is a file; name a folder"
            )
        path = None if folder is None else str(Path(folder).absolute())
        return cls(blocking=mode == "blocking", folder=path)
