"""From what a user gives as ``load_path`` to a file on this machine."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator
from pathlib import Path, PurePosixPath

from stretto.trainer.checkpoint.commit import POINTER_FILE_SUFFIX
from stretto.trainer.checkpoint.errors import CheckpointError, CheckpointNotFoundError


@contextlib.contextmanager
def local_file(source: str) -> Generator[Path]:
    """Yield the file that a path, a pointer or a URL means; a download goes with the context.

    Args:
        source: A path or a URL, of a checkpoint or of a pointer to one.

    Raises:
        CheckpointNotFoundError: It is not there.
        CheckpointError: It is a folder, or the store refused it.
    """
    if "://" not in source:
        yield find_file(Path(source).expanduser())
        return
    with tempfile.TemporaryDirectory(prefix="stretto-load-") as folder:
        yield _download(source, Path(folder))


def find_file(path: Path) -> Path:
    """Return the file that a path means: itself, or what it points to.

    Args:
        path: Of a checkpoint, a symbolic link to one, or a pointer that is a text file
            (``<path>.symlink``).

    Raises:
        CheckpointNotFoundError: It is not there, or points to nothing.
        CheckpointError: It is a folder.
    """
    if path.is_dir():
        raise CheckpointError(
            f"load_path is {path}, a folder. Give a file in it: {_neighbours(path)}."
        )
    if path.is_file():
        text_file = path if path.name.endswith(POINTER_FILE_SUFFIX) else None
    else:
        text_file = path.with_name(path.name + POINTER_FILE_SUFFIX)
        if path.is_symlink():
            raise CheckpointNotFoundError(
                f"load_path is {path}, which points to {path.readlink()}, and that is not "
                f"there. Give another file: {_neighbours(path.parent)}."
            )
        if not text_file.is_file():
            raise CheckpointNotFoundError(
                f"There is no checkpoint at {path.absolute()}. Check load_path. In that folder: "
                f"{_neighbours(path.parent)}."
            )
    if text_file is None:
        return path
    target = _pointed_to(text_file)
    if not target.is_file():
        raise CheckpointNotFoundError(
            f"The pointer {text_file} names {target}, which is not there. Give another file: "
            f"{_neighbours(text_file.parent)}."
        )
    return target


def possible_targets(text: str) -> list[str]:
    """Return where a pointer's target may lie, relative to the pointer's folder, likeliest first.

    A pointer on a disk says just that. One in an object store holds a key, counted from the store's
    root, of which an unknown number of leading parts are folders that the pointer lies in too.

    Args:
        text: What the pointer says.
    """
    parts = PurePosixPath(text.strip()).parts
    return ["/".join(parts[first:]) for first in range(len(parts))]


def _pointed_to(text_file: Path) -> Path:
    targets = possible_targets(text_file.read_text(encoding="utf-8"))
    candidates = [text_file.parent / target for target in targets]
    return next((path for path in candidates if path.is_file()), text_file.parent / targets[0])


def _download(url: str, folder: Path) -> Path:
    # Object stores and what they need are imported only where a URL is given.
    from stretto.object_store import (
        NotFoundError,
        ObjectStoreError,
        download_file,
        exists,
        open_store,
    )

    parent, _, name = url.rpartition("/")
    if not name:
        raise CheckpointError(f"load_path is {url!r}, a folder. Give the URL of a file in it.")
    target = folder / name.removesuffix(POINTER_FILE_SUFFIX)
    try:
        with open_store(parent) as store:
            try:
                download_file(store, name, folder / name)
            except NotFoundError:
                name += POINTER_FILE_SUFFIX
                download_file(store, name, folder / name)
            if name.endswith(POINTER_FILE_SUFFIX):
                targets = possible_targets((folder / name).read_text(encoding="utf-8"))
                key = next((key for key in targets if exists(store, key)), targets[0])
                download_file(store, key, target, overwrite=True)
    except NotFoundError as error:
        raise CheckpointNotFoundError(
            f"There is no checkpoint at {url}: {error} Check load_path."
        ) from error
    except ObjectStoreError as error:
        raise CheckpointError(f"The checkpoint {url} could not be fetched: {error}") from error
    return target


def _neighbours(folder: Path) -> str:
    """Name the checkpoints of a folder, for a message."""
    if not folder.is_dir():
        return f"nothing, the folder {folder} does not exist"
    names = sorted(path.name for path in folder.glob("*.pt*") if not path.name.startswith("."))
    if not names:
        return "nothing that ends in .pt"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
