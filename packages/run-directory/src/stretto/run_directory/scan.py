"""Walk a directory and fingerprint everything in it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from enum import Enum
from operator import attrgetter

from stretto.run_directory.errors import IncompleteScanError
from stretto.run_directory.fingerprint import Fingerprint

_by_name = attrgetter("name")


class FileKind(Enum):
    """What a path is, links not followed."""

    FILE = "file"
    SYMLINK = "symlink"
    DIRECTORY = "directory"
    SPECIAL = "special"
    """A socket, a FIFO or a device."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One path that a scan found.

    Attributes:
        path: Path relative to the scanned directory, parts joined by ``/``. Bytes that are not
            UTF-8 are kept by ``surrogateescape``; ``os.fsencode`` brings them back.
        kind: What the path is.
        fingerprint: Its fingerprint, of the link itself where it is one.
        target: Where a symbolic link points, exactly as it is written in the link; None for
            everything else.
        mode: The whole ``st_mode``: type and permission bits.
    """

    path: str
    kind: FileKind
    fingerprint: Fingerprint
    target: str | None
    mode: int


def scan(
    directory: str | os.PathLike[str],
    *,
    ignore_hidden: bool = False,
    exclude: Callable[[str], bool] | None = None,
    on_error: Callable[[OSError], None] | None = None,
) -> Iterator[FileEntry]:
    """Find everything below a directory, with one ``scandir`` a folder and one ``stat`` a path.

    Entries come sorted by name within each folder, a folder directly before what it holds.
    Symbolic links are reported and never followed, so loops cannot catch the scan. A path that
    vanishes while the scan runs is left out.

    Args:
        directory: Where to start; the directory itself is not reported.
        ignore_hidden: Leave out every path of which a part (below ``directory``) begins with a
            dot.
        exclude: Called with each relative path; True leaves the path out, and what is below it.
        on_error: Called with the error of each path that exists and cannot be read (such as a
            folder without permission, which is still reported as a folder); the scan goes on.
            Default: the scan goes on too, and raises when all the rest has been yielded.

    Yields:
        One entry for each file, symbolic link, special file and folder.

    Raises:
        FileNotFoundError: ``directory`` is not there.
        NotADirectoryError: ``directory`` is not a directory.
        IncompleteScanError: Something could not be read and there is no ``on_error``.
    """
    root = os.fspath(directory)
    errors: list[OSError] = []
    report = errors.append if on_error is None else on_error
    stack = [_Folder(root, "", depth=0)]
    try:
        while stack:
            folder = stack[-1]
            items, prefix = folder.items, folder.prefix
            while items:
                item = items.pop()
                name = item.name
                if ignore_hidden and name[0] == ".":
                    continue
                path = prefix + name
                if exclude is not None and exclude(path):
                    continue
                entry = _entry_or_none(item, path, folder, report)
                if entry is None:
                    continue
                yield entry
                if entry.kind is _DIRECTORY:
                    stack += _open(f"{root}{os.sep}{path}", path + "/", len(stack), report)
                    break
            else:
                stack.pop().close()
    finally:
        for folder in stack:
            folder.close()
    if errors:
        raise IncompleteScanError(root, errors)


class _Folder:
    """An open folder and what of it is still to be looked at.

    Everything in it is looked up from the open folder: that spares the kernel the way there for
    each name, and nobody can swap the folder for a link meanwhile.
    """

    __slots__ = ("descriptor", "directory", "items", "prefix")

    def __init__(self, directory: str, prefix: str, *, depth: int) -> None:
        self.directory = directory
        self.prefix = prefix
        flags = _OPEN_FLAGS | os.O_NOFOLLOW if depth else _OPEN_FLAGS
        self.descriptor: int | None = os.open(directory, flags)
        self.items: list[os.DirEntry[str]] = []
        try:
            if depth > _MOST_OPEN_FOLDERS:
                self.close()
            with self._listing() as listing:
                # Last name first, so that `pop` takes them in order.
                self.items = sorted(listing, key=_by_name, reverse=True)
        except BaseException:
            self.close()
            raise

    def _listing(self) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        # A descriptor, where there is one; a deep tree must not use them up.
        return os.scandir(self.directory if self.descriptor is None else self.descriptor)

    def close(self) -> None:
        """Let go of the folder."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _open(
    directory: str, prefix: str, depth: int, report: Callable[[OSError], None]
) -> tuple[_Folder, ...]:
    """Open a folder that may have vanished, or been replaced, since it was seen."""
    try:
        return (_Folder(directory, prefix, depth=depth),)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        if error.errno != errno.ELOOP:  # that is what O_NOFOLLOW says of a link
            error.filename = directory
            report(error)
        return ()


def _entry_or_none(
    item: os.DirEntry[str], path: str, folder: _Folder, report: Callable[[OSError], None]
) -> FileEntry | None:
    """Describe one path; None where it vanished or cannot be looked at."""
    try:
        status = item.stat(follow_symlinks=False)
        mode = status.st_mode
        kind = _KINDS.get(mode & _TYPE_BITS, _SPECIAL)
        target: str | None = None
        if kind is _SYMLINK:
            target = os.readlink(item.path, dir_fd=folder.descriptor)
    except FileNotFoundError:
        return None
    except OSError as error:
        error.filename = f"{folder.directory}{os.sep}{item.name}"
        report(error)
        return None
    fingerprint = _new(Fingerprint)
    _set_size(fingerprint, status.st_size)
    _set_mtime_ns(fingerprint, status.st_mtime_ns)
    _set_ctime_ns(fingerprint, status.st_ctime_ns)
    _set_inode(fingerprint, status.st_ino)
    entry = _new(FileEntry)
    _set_path(entry, path)
    _set_kind(entry, kind)
    _set_fingerprint(entry, fingerprint)
    _set_target(entry, target)
    _set_mode(entry, mode)
    return entry


# A scan makes an entry a path, so what an entry costs decides what a scan costs. Looking up a
# member of an enum takes as long as half of the rest; a frozen dataclass's own `__init__` twice as
# long as setting its slots, for it looks each of them up by name.
_DIRECTORY, _SYMLINK, _SPECIAL = FileKind.DIRECTORY, FileKind.SYMLINK, FileKind.SPECIAL
_TYPE_BITS = 0o170000
_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: _DIRECTORY, stat.S_IFLNK: _SYMLINK}
_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_OPEN_FOLDERS = 64
_new = object.__new__
_set_path, _set_kind, _set_fingerprint, _set_target, _set_mode = (
    vars(FileEntry)[field.name].__set__ for field in fields(FileEntry)
)
_set_size, _set_mtime_ns, _set_ctime_ns, _set_inode = (
    vars(Fingerprint)[field.name].__set__ for field in fields(Fingerprint)
)
