"""A store that repeats calls which may succeed the next time."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from stretto.object_store.errors import (
    AlreadyExistsError,
    BucketNotFoundError,
    NotFoundError,
    ObjectStoreError,
    PreconditionFailedError,
)
from stretto.object_store.get_result import GetResult
from stretto.object_store.retry import RetryPolicy, call_with_retry
from stretto.object_store.source import Replay, iter_chunks
from stretto.object_store.store import Store
from stretto.object_store.types import (
    ByteRange,
    Checksum,
    Mode,
    ObjectMeta,
    PutMode,
    PutResult,
    Source,
)
from stretto.object_store.wrappers.forward import ForwardingStore
from stretto.object_store.wrappers.resume import ResumingStream

ResultT = TypeVar("ResultT")


class RetryStore(ForwardingStore):
    """Repeats transient failures by a policy; everything else passes at once.

    A put from an iterator cannot be sent twice and is tried once. A put that creates, and whose
    first answer was lost after the store had done it, does not fail its own repetition. A read
    that breaks off in the middle goes on from where it stood.

    Args:
        inner: The store that does the work.
        policy: How often and how long.
        sleep: Waits between tries; None lets stamina wait.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        inner: Store,
        policy: RetryPolicy,
        *,
        sleep: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        self._policy = policy
        self._sleep = sleep
        self._clock = clock

    @property
    def policy(self) -> RetryPolicy:
        """How often and how long."""
        return self._policy

    def put(
        self,
        key: str,
        source: Source,
        *,
        mode: Mode = PutMode.OVERWRITE,
        metadata: Mapping[str, str] | None = None,
    ) -> PutResult:
        """See `Store.put`."""
        if type(source) is bytes and mode is PutMode.OVERWRITE:  # by far the most frequent
            return self._call(partial(self._inner.put, key, source, metadata=metadata))
        replay = Replay(source)
        if not replay.possible:
            return self._inner.put(key, source, mode=mode, metadata=metadata)
        tries = 0

        def put_once() -> PutResult:
            nonlocal tries
            tries += 1
            try:
                return self._inner.put(key, replay.again(), mode=mode, metadata=metadata)
            except (AlreadyExistsError, PreconditionFailedError):
                done = self._done_before(key, replay) if tries > 1 else None
                if done is None:
                    raise
                return done

        return self._call(put_once)

    def _done_before(self, key: str, replay: Replay) -> PutResult | None:
        """Whether an earlier try, whose answer was lost, is what stands in the way."""
        try:
            with self._inner.get(key) as found:
                same = _digest(found) == _digest(iter_chunks(replay.again()))
        except NotFoundError:
            return None
        meta = found.meta
        if not same:
            return None
        return PutResult(
            etag=meta.etag, version=meta.version, size=meta.size, checksum=meta.checksum
        )

    def get(self, key: str, *, byte_range: ByteRange | None = None) -> GetResult:
        """See `Store.get`."""
        first = self._call(lambda: self._inner.get(key, byte_range=byte_range))
        stream = ResumingStream(first, lambda part: self._inner.get(key, byte_range=part))
        chunks = stream.chunks(self._policy, self._pause)
        return GetResult(first.meta, chunks, byte_range=first.byte_range, close=stream.close)

    def head(self, key: str) -> ObjectMeta:
        """See `Store.head`."""
        return self._call(lambda: self._inner.head(key))

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        tries = 0

        def delete_once() -> None:
            nonlocal tries
            tries += 1
            try:
                self._inner.delete(key)
            except BucketNotFoundError:
                raise
            except NotFoundError:
                if tries == 1:
                    raise  # later it means that an earlier try, whose answer was lost, did it

        self._call(delete_once)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """See `Store.list`."""
        return self._list(prefix, self._inner.list(prefix))

    def _list(self, prefix: str, found: Iterator[ObjectMeta]) -> Iterator[ObjectMeta]:
        last: bytes | None = None
        failures = 0
        while True:
            try:
                for meta in found:
                    place = meta.key.encode(errors="surrogateescape")
                    if last is None or place > last:
                        yield meta
                        last, failures = place, 0
                return
            except ObjectStoreError as error:
                failures += 1
                # Only where keys come in order is it known where to go on.
                lost = last is not None and not self.capabilities.ordered
                if not error.retryable or failures >= self._policy.attempts or lost:
                    raise
                self._pause(failures, error)
                found = self._inner.list(prefix)

    def copy(self, source_key: str, destination_key: str) -> None:
        """See `Store.copy`."""
        self._call(lambda: self._inner.copy(source_key, destination_key))

    def checksum(self, key: str) -> Checksum | None:
        """See `Store.checksum`."""
        return self._call(lambda: self._inner.checksum(key))

    def check(self) -> None:
        """See `Store.check`."""
        self._call(self._inner.check)

    def _pause(self, failures: int, error: BaseException) -> None:
        (self._sleep or time.sleep)(self._policy.wait_after(failures, error))

    def _call(self, function: Callable[[], ResultT]) -> ResultT:
        return call_with_retry(function, self._policy, sleep=self._sleep, clock=self._clock)


def _digest(chunks: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.digest()
