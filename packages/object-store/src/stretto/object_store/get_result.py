"""What `Store.get` gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from stretto.object_store.errors import TransientError
from stretto.object_store.types import ByteRange, ObjectMeta


class GetResult:
    """The bytes of an object (or a range of it) as a stream, with its metadata.

    Iterate for chunks, or `read` all that is left. A stream that ends early is an error, never a
    short answer. Close it, or use it as a context manager, when you stop half-way.

    Args:
        meta: The object's metadata; ``meta.size`` is the whole object's size.
        chunks: The bytes of the range.
        byte_range: The range that the chunks cover, clipped to the object; None for all of it.
        close: Called once when the stream ends or is closed.
        store: URI of the store, for errors.
    """

    def __init__(
        self,
        meta: ObjectMeta,
        chunks: Iterator[bytes],
        *,
        byte_range: ByteRange | None = None,
        close: Callable[[], None] | None = None,
        store: str | None = None,
    ) -> None:
        self.meta = meta
        self.byte_range = byte_range or (0, meta.size)
        self._store = store
        self._close = close
        self._closed = False
        self._chunks = self._counted(chunks)

    @property
    def size(self) -> int:
        """Bytes that the whole stream will give."""
        return self.byte_range[1] - self.byte_range[0]

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def read(self) -> bytes:
        """All bytes that are left, in memory."""
        with self:
            return b"".join(self._chunks)

    def close(self) -> None:
        """Let the connection go; further reading raises ValueError. Safe to call again."""
        self._closed = True
        close, self._close = self._close, None
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        done = 0
        if self._closed:
            raise ValueError("the read is closed; get the object again")
        for chunk in chunks:
            done += len(chunk)
            if chunk:
                yield chunk
            if self._closed:
                raise ValueError("the read is closed; get the object again")
        if done != self.size:
            raise TransientError(
                f"the store sent {done} of {self.size} bytes; read it again",
                store=self._store,
                key=self.meta.key,
            )
        self.close()


def clip_range(byte_range: ByteRange | None, size: int) -> ByteRange:
    """The part of a range that lies in an object, as ``data[start:end]`` would take it.

    Args:
        byte_range: A checked range (see `check_range`), or None for all.
        size: Bytes of the object.
    """
    if byte_range is None:
        return (0, size)
    start = min(byte_range[0], size)
    return (start, max(start, min(byte_range[1], size)))


def check_range(byte_range: ByteRange | None) -> ByteRange | None:
    """Refuse ranges that cannot be.

    Args:
        byte_range: First byte and the byte after the last one; may reach past the end.

    Raises:
        ValueError: The start is negative or lies behind the end.
    """
    if byte_range is not None:
        start, end = byte_range
        if start < 0 or end < start:
            raise ValueError(f"byte_range {byte_range!r} must be (start, end), 0 <= start <= end")
    return byte_range
