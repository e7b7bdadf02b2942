"""Go on with a read that broke off."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stretto.object_store.errors import CorruptedError, ObjectStoreError
from stretto.object_store.get_result import GetResult
from stretto.object_store.retry import RetryPolicy
from stretto.object_store.types import ByteRange


class ResumingStream:
    """The bytes of a read, from as many connections as it takes.

    Args:
        first: The read as it began.
        reopen: Opens the object again at a range.
    """

    def __init__(self, first: GetResult, reopen: Callable[[ByteRange], GetResult]) -> None:
        self._current = first
        self._reopen = reopen
        self._meta = first.meta
        self._start, self._end = first.byte_range

    def close(self) -> None:
        """Let the connection go."""
        self._current.close()

    def chunks(
        self, policy: RetryPolicy, pause: Callable[[int, BaseException], None]
    ) -> Iterator[bytes]:
        """All bytes; a failure counts only while nothing new arrives.

        Args:
            policy: How many failures in a row end it.
            pause: Waits, by the number of failures and the last one.

        Raises:
            CorruptedError: The object was replaced while it was read.
        """
        position, failures = self._start, 0
        reopen = False
        while True:
            try:
                if reopen:
                    self._open_at(position)
                for chunk in self._current:
                    position += len(chunk)
                    failures = 0
                    yield chunk
                return
            except ObjectStoreError as error:
                failures += 1
                if not error.retryable or failures >= policy.attempts:
                    raise
                self._current.close()
                pause(failures, error)
                reopen = True

    def _open_at(self, position: int) -> None:
        self._current = self._reopen((position, self._end))
        found = self._current.meta
        if (found.etag, found.size) != (self._meta.etag, self._meta.size):
            self._current.close()
            raise CorruptedError(
                "the object was replaced while it was read; read it again", key=self._meta.key
            )
