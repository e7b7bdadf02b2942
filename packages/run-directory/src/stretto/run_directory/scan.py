"""Walk a directory and fingerprint everything in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    stack = [_listing(root)]
    prefixes = [""]
    while stack:
        listing = stack[-1]
        if not listing:
            stack.pop()
            prefixes.pop()
            continue
        item = listing.pop()
        name = item.name
        if ignore_hidden and name[0] == ".":
            continue
        path = prefixes[-1] + name
        if exclude is not None and exclude(path):
            continue
        entry = _entry(item, path, report)
        if entry is None:
            continue
        yield entry
        if entry.kind is FileKind.DIRECTORY:
            try:
                stack.append(_listing(item.path))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                report(error)
                continue
            prefixes.append(path + "/")
    if errors:
        raise IncompleteScanError(root, errors)


def _listing(directory: str) -> list[os.DirEntry[str]]:
    """List a folder, last name first, so that ``pop`` takes them in order."""
    with os.scandir(directory) as items:
        return sorted(items, key=_by_name, reverse=True)


def _entry(
    item: os.DirEntry[str], path: str, report: Callable[[OSError], None]
) -> FileEntry | None:
    """Describe one path; None where it vanished or cannot be looked at."""
    try:
        status = item.stat(follow_symlinks=False)
        mode = status.st_mode
        target: str | None = None
        if stat.S_ISREG(mode):
            kind = FileKind.FILE
        elif stat.S_ISDIR(mode):
            kind = FileKind.DIRECTORY
        elif stat.S_ISLNK(mode):
            kind = FileKind.SYMLINK
            target = os.readlink(item.path)
        else:
            kind = FileKind.SPECIAL
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        report(error)
        return None
    return FileEntry(path, kind, Fingerprint.of(status), target, mode)
