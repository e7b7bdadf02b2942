"""Cut any source into what a service takes in one request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MIB = 1 << 20
SINGLE_PUT = 8 * MIB
"""Up to this many bytes go up in one request."""
MAX_PARTS = 10_000
COPY_LIMIT = 5 << 30
"""Services copy at most this many bytes in one request."""
UNKNOWN_SIZE_PART = 16 * MIB
IN_FLIGHT = 32 * MIB
"""Bytes that parallel parts may hold in memory together."""

SMALL_BODY = MIB
"""Up to this many bytes the time to send them does not matter beside a read time-out."""
READ_AT_ONCE = MIB
"""Objects up to this many bytes are read within `Store.get` itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlan:
    """How a large object goes up.

    Attributes:
        part_size: Bytes of every part but the last.
        concurrency: Parts under way at once.
    """

    part_size: int
    concurrency: int


def plan_parts(size: int | None) -> PartPlan:
    """Choose parts so that there are at most 10,000 and memory stays flat.

    Args:
        size: Bytes in all; None where nobody knows.
    """
    part_size = UNKNOWN_SIZE_PART if size is None else SINGLE_PUT
    if size is not None and size > part_size * MAX_PARTS:
        part_size = -(-size // MAX_PARTS // MIB) * MIB + MIB
    return PartPlan(part_size=part_size, concurrency=max(2, IN_FLIGHT // part_size))


def take(chunks: Iterator[bytes], limit: int) -> tuple[bytes, bool]:
    """The first bytes of a stream.

    Args:
        chunks: The stream; it may go on afterwards.
        limit: Stop as soon as there are more bytes than this.

    Returns:
        What was taken, and whether that was all.
    """
    taken: list[bytes] = []
    size = 0
    for chunk in chunks:
        taken.append(chunk)
        size += len(chunk)
        if size > limit:
            return b"".join(taken), False
    return taken[0] if len(taken) == 1 else b"".join(taken), True


class Parts:
    """Pieces of equal size (the last may be shorter), counted as they go.

    Args:
        chunks: Any pieces.
        part_size: Bytes of a part.
    """

    def __init__(self, chunks: Iterable[bytes], part_size: int) -> None:
        self._chunks = chunks
        self._part_size = part_size
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        held: list[bytes] = []
        held_size = 0
        for chunk in self._chunks:
            view = memoryview(chunk)
            while held_size + len(view) >= self._part_size:
                cut = self._part_size - held_size
                part = bytes(view[:cut]) if not held else b"".join([*held, view[:cut]])
                view, held, held_size = view[cut:], [], 0
                self.size += len(part)
                yield part
            if view:
                held.append(bytes(view) if len(view) != len(chunk) else chunk)
                held_size += len(view)
        if held:
            self.size += held_size
            yield b"".join(held)
