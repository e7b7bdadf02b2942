"""A store that repeats calls which may succeed the next time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from stretto.object_store.get_result import GetResult
from stretto.object_store.retry import RetryPolicy, call_with_retry
from stretto.object_store.source import Replay
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
        replay = Replay(source)
        if not replay.possible:
            return self._inner.put(key, source, mode=mode, metadata=metadata)
        return self._call(
            lambda: self._inner.put(key, replay.again(), mode=mode, metadata=metadata)
        )

    def get(self, key: str, *, byte_range: ByteRange | None = None) -> GetResult:
        """See `Store.get`."""
        return self._call(lambda: self._inner.get(key, byte_range=byte_range))

    def head(self, key: str) -> ObjectMeta:
        """See `Store.head`."""
        return self._call(lambda: self._inner.head(key))

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self._call(lambda: self._inner.delete(key))

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """See `Store.list`."""
        return self._inner.list(prefix)

    def copy(self, source_key: str, destination_key: str) -> None:
        """See `Store.copy`."""
        self._call(lambda: self._inner.copy(source_key, destination_key))

    def checksum(self, key: str) -> Checksum | None:
        """See `Store.checksum`."""
        return self._call(lambda: self._inner.checksum(key))

    def check(self) -> None:
        """See `Store.check`."""
        self._call(self._inner.check)

    def _call(self, function: Callable[[], ResultT]) -> ResultT:
        return call_with_retry(function, self._policy, sleep=self._sleep, clock=self._clock)
