"""Where a run keeps its files.

The place is settled once, at the first question or by :func:`set_run_directory`: from then on it is
absolute and stands in two environment variables, so that ``os.chdir``, threads and every process
started later see the same folder.
"""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

from stretto.run_directory.errors import (
    InvalidRunDirectoryError,
    RunDirectoryError,
    RunDirectoryIsAFileError,
    RunDirectoryPermissionError,
)
from stretto.run_directory.origin import default_run_name
from stretto.run_directory.rank import get_global_rank

RUN_DIRECTORY_VARIABLES = ("STRETTO_RUN_DIRECTORY", "COMPOSER_RUN_DIRECTORY")
"""The environment variables that name the run directory, the first that is set wins."""

_DEFAULT_PARENT = "runs"

_settling = threading.Lock()


def get_node_run_directory() -> str:
    """Return the run directory of this node, which its ranks share; nothing is created.

    The first call settles it: ``STRETTO_RUN_DIRECTORY``, else ``COMPOSER_RUN_DIRECTORY``, else
    ``./runs/<UTC timestamp>``.

    Returns:
        An absolute path.

    Raises:
        InvalidRunDirectoryError: The variable is set and empty, or names no folder of a disk.
        RunDirectoryIsAFileError: A file stands at the path or at one of its parents.
    """
    first, second = (os.environ.get(name) for name in RUN_DIRECTORY_VARIABLES)
    if first is not None and first == second and Path(first).is_absolute():
        _refuse_file(first)
        return first
    return set_run_directory()


def get_run_directory() -> str:
    """Return the run directory of this rank, ``rank_<global rank>`` in that of the node.

    Nothing is created; see :func:`create_run_directory`.

    Returns:
        An absolute path.

    Raises:
        RunDirectoryError: As :func:`get_node_run_directory`.
        InvalidRankError: A rank variable is not a number.
    """
    return str(Path(get_node_run_directory(), f"rank_{get_global_rank()}"))


def set_run_directory(path: str | os.PathLike[str] | None = None) -> str:
    """Settle the run directory for this process and all that it starts from now on.

    Nothing is created. Calling it again without a path changes nothing.

    Args:
        path: The folder; a relative one is resolved against the working directory, once. Default:
            the environment, else ``./runs/<UTC timestamp>``.

    Returns:
        The absolute path, which now stands in ``STRETTO_RUN_DIRECTORY`` and
        ``COMPOSER_RUN_DIRECTORY``.

    Raises:
        InvalidRunDirectoryError: The path is empty, a URL, or the root of the file system.
        RunDirectoryIsAFileError: A file stands at the path or at one of its parents.
    """
    # A child forked while another thread settles would find the lock held for ever.
    held = _settling.acquire(timeout=1.0)
    try:
        value, source = _requested(path)
        settled = _absolute(value, source)
        _refuse_file(settled)
        for name in RUN_DIRECTORY_VARIABLES:
            os.environ[name] = settled
        return settled
    finally:
        if held:
            _settling.release()


def create_node_run_directory() -> str:
    """Create the run directory of the node, which its ranks share.

    Returns:
        Its absolute path.

    Raises:
        RunDirectoryIsAFileError: A file stands where a folder must be.
        RunDirectoryPermissionError: It may not be created, or not written to.
        RunDirectoryError: The disk refused it for another reason.
    """
    return _create(get_node_run_directory())


def create_run_directory() -> str:
    """Create the run directory of the node and, in it, that of this rank.

    Returns:
        The absolute path of this rank's folder.

    Raises:
        RunDirectoryError: As :func:`create_node_run_directory`.
    """
    _create(get_node_run_directory())
    return _create(get_run_directory())


def _create(directory: str) -> str:
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        _refuse_file(directory)
        raise
    except PermissionError as error:
        raise RunDirectoryPermissionError(
            error.errno,
            f"The run directory {directory!r} cannot be created: permission denied. {_HINT}",
        ) from error
    except OSError as error:
        raise RunDirectoryError(
            error.errno,
            f"The run directory {directory!r} cannot be created: {error.strerror}. {_HINT}",
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise RunDirectoryPermissionError(
            f"The run directory {directory!r} is there but cannot be written to: it is read-only, "
            f"or belongs to somebody else. {_HINT}"
        )
    return directory


_HINT = (
    "Choose another with run_directory=…, the launcher's --run_directory, or the environment "
    "variable STRETTO_RUN_DIRECTORY."
)


def _requested(path: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Return the first place that somebody named, and who named it."""
    if path is not None:
        return os.fsdecode(path), "The run directory"
    for name in RUN_DIRECTORY_VARIABLES:
        value = os.environ.get(name)
        if value is not None:
            return value, f"The run directory in the environment variable {name}"
    return str(Path(_DEFAULT_PARENT, default_run_name())), "The default run directory"


def _absolute(value: str, source: str) -> str:
    """Make a path absolute, or say why it cannot name a run directory."""
    if not value.strip():
        raise InvalidRunDirectoryError(f"{source} is {value!r}. Name a folder, or unset it.")
    if "\0" in value:
        raise InvalidRunDirectoryError(f"{source} is {value!r}, which holds a NUL character.")
    if "://" in value:
        raise InvalidRunDirectoryError(
            f"{source} is {value!r}, a URL. It must be a folder on a disk; to have it in an object "
            f"store, mirror it there with rundir-uploader."
        )
    try:
        absolute = Path(value).expanduser().absolute()
    except (OSError, RuntimeError) as error:
        raise InvalidRunDirectoryError(
            f"{source} is {value!r}, and cannot be made absolute: {error}. Give an absolute path."
        ) from error
    if ".." in absolute.parts:
        # Only the disk knows what `..` behind a link means.
        absolute = Path(os.path.realpath(absolute))
    if absolute.parent == absolute:
        raise InvalidRunDirectoryError(
            f"{source} is {value!r}, the root of the file system: a run would own the whole "
            f"machine. Name a folder below it."
        )
    return str(absolute)


def _refuse_file(directory: str) -> None:
    """Raise if something that is not a folder stands at the path or at its nearest parent."""
    path = Path(directory)
    for candidate in (path, *path.parents):
        try:
            if stat.S_ISDIR(candidate.stat().st_mode):
                return
        except PermissionError as error:
            raise RunDirectoryPermissionError(
                error.errno,
                f"The run directory {directory!r} cannot be reached: permission denied. {_HINT}",
            ) from error
        except OSError:
            pass  # not there, or a link to nowhere or to itself
        if os.path.lexists(candidate):
            if candidate.is_dir():
                return  # another rank has made it in between
            what = "a dangling link" if candidate.is_symlink() else "a file"
            raise RunDirectoryIsAFileError(
                f"The run directory {directory!r} cannot be used: {str(candidate)!r} is {what}, "
                f"not a folder. Move it away. {_HINT}"
            )
