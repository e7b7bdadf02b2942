"""Read any source that a put accepts as a stream of chunks, and read it again for a retry."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from stretto.object_store.get_result import GetResult
from stretto.object_store.types import Source

CHUNK_SIZE = 1 << 20


def check_source(source: object) -> None:
    """Refuse what only looks like a source.

    Args:
        source: What the caller gave to a put.

    Raises:
        TypeError: It is a string, or nothing that gives bytes.
    """
    if isinstance(source, str):
        raise TypeError("put() got a str; give bytes, or pathlib.Path(...) for a file's name")
    if not isinstance(source, (bytes, bytearray, memoryview, os.PathLike, Iterable)) and not (
        hasattr(source, "read")
    ):
        raise TypeError(
            f"put() got {type(source).__name__}; give bytes, a path, a file or chunks of bytes"
        )


def iter_chunks(source: Source, chunk_size: int = CHUNK_SIZE) -> Iterator[bytes]:
    """The bytes of a source, at most one chunk of them in memory.

    Args:
        source: As for `Store.put`. A file is read from its position on and not closed.
        chunk_size: Bytes at a time (an iterable gives its own chunks).
    """
    check_source(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        if len(source):
            yield bytes(source)
    elif isinstance(source, os.PathLike):
        with Path(source).open("rb") as file:
            yield from _read_chunks(file, chunk_size)
    elif hasattr(source, "read") and not isinstance(source, GetResult):
        yield from _read_chunks(cast("BinaryIO", source), chunk_size)
    else:
        for chunk in cast("Iterable[bytes]", source):
            if not isinstance(chunk, (bytes, bytearray, memoryview)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"put() got a chunk of {type(chunk).__name__}; chunks are bytes")
            if len(chunk):
                yield bytes(chunk)


def known_size(source: Source) -> int | None:
    """Bytes that the source will give, where that can be told without reading it.

    Args:
        source: As for `Store.put`.
    """
    if isinstance(source, (bytes, bytearray)):
        return len(source)
    if isinstance(source, memoryview):
        return source.nbytes
    if isinstance(source, os.PathLike):
        return Path(source).stat().st_size
    if _is_seekable(source):
        file = cast("BinaryIO", source)
        position = file.tell()
        end = file.seek(0, io.SEEK_END)
        file.seek(position)
        return max(0, end - position)
    return None


class Replay:
    """Lets a retry send the same bytes again.

    Args:
        source: As for `Store.put`.
    """

    def __init__(self, source: Source) -> None:
        check_source(source)
        self._source = source
        self._position: int | None = None
        self.possible = True
        if isinstance(source, (bytes, bytearray, memoryview, os.PathLike, list, tuple)):
            return
        if _is_seekable(source):
            self._position = cast("BinaryIO", source).tell()
        else:
            self.possible = False

    def again(self) -> Source:
        """The source, wound back to where it stood at first."""
        if self._position is not None:
            cast("BinaryIO", self._source).seek(self._position)
        return self._source


def _read_chunks(file: BinaryIO, chunk_size: int) -> Iterator[bytes]:
    while chunk := file.read(chunk_size):
        yield chunk


def _is_seekable(source: object) -> bool:
    seekable = getattr(source, "seekable", None)
    return bool(callable(seekable) and seekable())
