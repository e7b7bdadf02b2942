"""Compute, from a local file, the digest that a store vouches for."""

from __future__ import annotations

import hashlib
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from stretto.object_store import Checksum

_CHUNK = 1 << 20
_PART_SIZES = tuple(size << 20 for size in (8, 5, 16, 10, 15, 32, 50, 64, 100, 128, 256, 512, 1024))
_MIB = 1 << 20
_MAX_PARTS = 10_000


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class _Crc32:
    """CRC-32 in the manner of `hashlib`."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


_MAKERS: dict[str, Callable[[], _Digest]] = {
    "md5": _md5,
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
    "crc32": _Crc32,
}


def can_compute(algorithm: str) -> bool:
    """Whether a digest of this kind can be computed here.

    Args:
        algorithm: As in `stretto.object_store.Checksum`.
    """
    return algorithm in _MAKERS or algorithm == "md5-parts" or _crc32c_maker(algorithm) is not None


def file_matches(path: Path, checksum: Checksum) -> bool:
    """Whether a local file has a digest.

    Args:
        path: The file.
        checksum: What the store says; `can_compute` its algorithm.
    """
    if checksum.algorithm == "md5-parts":
        return _matches_parts(path, checksum.hexdigest)
    return _digest(_chunks(path), checksum.algorithm) == checksum.hexdigest.lower()


def bytes_match(data: bytes, checksum: Checksum) -> bool:
    """Whether some bytes have a digest.

    Args:
        data: All of them.
        checksum: What the store says; not one of parts.
    """
    return _digest([data], checksum.algorithm) == checksum.hexdigest.lower()


def _digest(chunks: Iterable[bytes], algorithm: str) -> str:
    digest = (_MAKERS.get(algorithm) or _crc32c_maker(algorithm) or _Crc32)()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _crc32c_maker(algorithm: str) -> Callable[[], _Digest] | None:
    if algorithm != "crc32c":
        return None
    try:
        import google_crc32c  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    made: Any = google_crc32c

    class Crc32c:
        def __init__(self) -> None:
            self._value = made.Checksum()

        def update(self, data: bytes, /) -> None:
            self._value.update(data)

        def hexdigest(self) -> str:
            return str(self._value.digest().hex())

    return Crc32c


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while data := file.read(_CHUNK):
            yield data


def _matches_parts(path: Path, said: str) -> bool:
    """Compare with the MD5 of the MD5s of parts, whose size has to be guessed."""
    count = int(said.rpartition("-")[2])
    size = path.stat().st_size
    least = math.ceil(size / _MAX_PARTS)
    guesses = (*_PART_SIZES, (least // _MIB + 1) * _MIB)
    return any(
        _parts_digest(path, part_size) == said.lower()
        for part_size in dict.fromkeys(guesses)
        if math.ceil(size / part_size) == count
    )


def _parts_digest(path: Path, part_size: int) -> str:
    whole = _md5()
    count = 0
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for start in range(0, size, part_size):
            part = _md5()
            left = min(part_size, size - start)
            while left > 0 and (data := file.read(min(_CHUNK, left))):
                part.update(data)
                left -= len(data)
            whole.update(part.digest())
            count += 1
    return f"{whole.hexdigest()}-{count}"
