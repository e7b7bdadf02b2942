"""Files that point to other files, and what must be in the store before they are.

Three kinds: symbolic links to mirrored files; ``.metadata``, the index of a sharded checkpoint,
which points to all files beside it; and text files called ``*.symlink``, which stand for a link
where a file system has none.
"""

from __future__ import annotations

import os
import posixpath
import stat
from dataclasses import dataclass
from pathlib import Path

from rundir_uploader.keys import POINTER_SUFFIX
from rundir_uploader.selection import Selection

INDEX_NAME = ".metadata"
_MAX_POINTER_FILE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTarget:
    """Where a symbolic link leads.

    Attributes:
        path: Relative path of the mirrored file it leads to; None where there is none.
        problem: Why there is none; empty where there is one.
        dangling: Whether it leads to nothing at all.
    """

    path: str | None
    problem: str = ""
    dangling: bool = False


def follow_link(root: str, path: str, selection: Selection) -> LinkTarget:
    """Find out where a symbolic link leads, without opening anything.

    Args:
        root: The mirrored directory, its own links resolved.
        path: Relative path of the link.
        selection: What is mirrored.
    """
    real = os.path.realpath(f"{root}/{path}")
    if not real.startswith(root.rstrip("/") + "/"):
        dangling = not os.path.lexists(real)
        return LinkTarget(path=None, problem="leads out of the directory", dangling=dangling)
    try:
        status = os.lstat(real)
    except OSError:
        return LinkTarget(path=None, problem="leads to nothing", dangling=True)
    if stat.S_ISLNK(status.st_mode):
        return LinkTarget(path=None, problem="leads to itself", dangling=True)
    target = real[len(root.rstrip("/")) + 1 :]
    if not stat.S_ISREG(status.st_mode):
        return LinkTarget(path=None, problem="leads to a folder or a special file")
    if not selection.covers(target):
        return LinkTarget(path=None, problem="leads to a file that is not mirrored")
    return LinkTarget(path=target)


def is_index(path: str) -> bool:
    """Whether a file is the index of the files beside it.

    Args:
        path: Relative path.
    """
    return path == INDEX_NAME or path.endswith("/" + INDEX_NAME)


def is_pointer_file(path: str) -> bool:
    """Whether a regular file is one that points to others.

    Args:
        path: Relative path.
    """
    return path.endswith(POINTER_SUFFIX) or is_index(path)


def files_beside(root: str, path: str, selection: Selection) -> list[str]:
    """Return the relative paths of the mirrored files that lie beside an index.

    Args:
        root: The mirrored directory.
        path: Relative path of the index.
        selection: What is mirrored.
    """
    folder, slash, _ = path.rpartition("/")
    try:
        with os.scandir(f"{root}/{folder}") as items:
            names = [item.name for item in items if item.is_file(follow_symlinks=False)]
    except OSError:
        return []
    found = (f"{folder}{slash}{name}" for name in sorted(names))
    return [name for name in found if name != path and selection.covers(name)]


def pointer_file_targets(root: str, path: str) -> list[str]:
    """Return the relative paths that a ``*.symlink`` text file may mean.

    What it says may be relative to its own folder or to the directory; names that do not exist
    do no harm.

    Args:
        root: The mirrored directory.
        path: Relative path of the file.
    """
    file = Path(root, path)
    try:
        if file.lstat().st_size > _MAX_POINTER_FILE:
            return []
        said = file.read_text().strip()
    except (OSError, ValueError):
        return []
    if not said or "\n" in said:
        return []
    beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), said))
    return [name for name in (beside, posixpath.normpath(said)) if not name.startswith(("/", ".."))]
