"""Files that are there whole or not at all, and the pointer to the newest of them."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from stretto.trainer.checkpoint.errors import CheckpointError

_log = logging.getLogger(__name__)

POINTER_FILE_SUFFIX = ".symlink"
"""What a pointer's name gets where it must be a text file; object stores use the same name."""


def commit_file(path: Path, write: Callable[[Path], None]) -> int:
    """Put a file at a path, in one step, once it is safe on disk.

    Whatever was there stays whole until then; a process that dies leaves at most a ``*.tmp`` file.

    Args:
        path: Where; its folder is made if need be.
        write: Writes the whole file at the path it is given.

    Returns:
        The file's size in bytes.

    Raises:
        CheckpointError: The disk refused it.
    """
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            size = _sync(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        if isinstance(error, CheckpointError):
            raise
        # torch's writer raises a RuntimeError where the disk is full.
        raise CheckpointError(
            f"The checkpoint {path} could not be written: {error}. Check that there is room and "
            f"that the folder may be written to. What was there before is untouched."
        ) from error
    return size


def move_pointer(pointer: Path, target: Path) -> None:
    """Make a pointer name another file, in one step.

    A symbolic link where the file system has them, else a text file beside it, named like it with
    ``.symlink`` at the end. Either holds the target's path relative to the pointer's folder.

    Args:
        pointer: The pointer.
        target: A file that is there.

    Raises:
        CheckpointError: The disk refused both.
    """
    pointer.parent.mkdir(parents=True, exist_ok=True)
    relative = os.path.relpath(target, pointer.parent)
    text_file = pointer.with_name(pointer.name + POINTER_FILE_SUFFIX)
    temporary = pointer.with_name(f".{pointer.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(relative)
        temporary.replace(pointer)
    except (OSError, NotImplementedError) as error:
        temporary.unlink(missing_ok=True)
        _log.warning(
            "The pointer %s cannot be a symbolic link here (%s); it is the text file %s instead",
            pointer,
            error,
            text_file.name,
        )
        text = PurePosixPath(Path(relative)).as_posix()
        commit_file(text_file, lambda path: _write_text(path, text))
        pointer.unlink(missing_ok=True)
    else:
        text_file.unlink(missing_ok=True)
    _sync_folder(pointer.parent)


def remove_leftovers(folder: Path, depth: int = 1) -> None:
    """Delete the unfinished files that a process of this machine left behind when it died.

    Args:
        folder: Where to look; it need not exist.
        depth: How many levels of folders to look at.
    """
    host = socket.gethostname()
    for path in _temporaries(folder, depth):
        origin = path.name.removesuffix(".tmp").rpartition(f".{host}-")[2]
        if origin.isdigit() and not _is_alive(int(origin)):
            _log.info("Removing %s, which process %s left unfinished", path, origin)
            path.unlink(missing_ok=True)


def _temporaries(folder: Path, depth: int) -> Iterator[Path]:
    if folder.is_dir():
        for level in range(depth):
            yield from folder.glob("*/" * level + ".*.tmp")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _sync(path: Path) -> int:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
