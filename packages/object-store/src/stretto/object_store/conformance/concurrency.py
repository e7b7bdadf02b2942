"""Many writers at once, conditions, processes: conformance beyond one caller."""

from __future__ import annotations

import hashlib
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from stretto.object_store.conformance.objects import BOUNDARY, some_bytes
from stretto.object_store.errors import (
    AlreadyExistsError,
    NotFoundError,
    ObjectStoreError,
    PreconditionFailedError,
)
from stretto.object_store.store import Store
from stretto.object_store.types import PutMode, ReplaceIf

RACERS = 50


class ConcurrencyConformance:
    """Conditions, threads and pickles. Needs a fixture ``store``: empty, of your making."""

    overwrites_atomically: ClassVar[bool] = True
    """Set to False for a *server* that shows half-written objects; no client can mend that."""

    def test_create_refuses_a_taken_key(self, store: Store) -> None:
        """And leaves what is there."""
        if not store.capabilities.create:
            with pytest.raises(ValueError, match=r"create|overwrite"):
                store.put("key", b"x", mode=PutMode.CREATE)
            return
        store.put("key", b"first", mode=PutMode.CREATE)
        with pytest.raises(AlreadyExistsError) as caught:
            store.put("key", b"second", mode=PutMode.CREATE)
        assert isinstance(caught.value, FileExistsError)
        assert store.get("key").read() == b"first"
        store.delete("key")
        store.put("key", b"third", mode=PutMode.CREATE)
        assert store.get("key").read() == b"third"

    def test_one_of_many_racing_creates_wins(self, store: Store) -> None:
        """50 threads, one key, one winner, whose bytes are stored."""
        if not store.capabilities.create:
            pytest.skip("the store promises no atomic create")
        barrier = threading.Barrier(RACERS)

        def race(number: int) -> int | None:
            barrier.wait(60)
            try:
                store.put("race", b"%05d" % number, mode=PutMode.CREATE)
            except AlreadyExistsError:
                return None
            return number

        with ThreadPoolExecutor(RACERS) as pool:
            winners = [n for n in pool.map(race, range(RACERS)) if n is not None]
        assert len(winners) == 1
        assert store.get("race").read() == b"%05d" % winners[0]

    def test_replace_needs_the_known_version(self, store: Store) -> None:
        """A stale version and a missing object are refused, and nothing changes."""
        if not store.capabilities.replace_if:
            with pytest.raises(ValueError, match=r"version|overwrite"):
                store.put("key", b"x", mode=ReplaceIf("any"))
            return
        first = store.put("key", b"first").version
        assert first is not None
        assert first == store.head("key").version
        second = store.put("key", b"second", mode=ReplaceIf(first)).version
        assert second not in (None, first)
        with pytest.raises(PreconditionFailedError):
            store.put("key", b"third", mode=ReplaceIf(first))
        assert store.get("key").read() == b"second"
        with pytest.raises(PreconditionFailedError):
            store.put("missing", b"x", mode=ReplaceIf(first))
        with pytest.raises(NotFoundError):
            store.head("missing")

    def test_replaces_of_one_version_have_one_winner(self, store: Store) -> None:
        """Compare-and-swap from 8 threads loses no update."""
        if not store.capabilities.replace_if:
            pytest.skip("the store promises no conditional replace")
        store.put("counter", b"0")

        def add_one(_: int) -> None:
            while True:
                with store.get("counter") as found:
                    value, version = int(found.read()), found.meta.version
                assert version is not None
                try:
                    store.put("counter", b"%d" % (value + 1), mode=ReplaceIf(version))
                except PreconditionFailedError:
                    continue
                return

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(add_one, range(16)))
        assert store.get("counter").read() == b"16"

    def test_readers_never_see_a_mixture(self, store: Store) -> None:
        """While one object is overwritten, each read is one of its versions."""
        if not self.overwrites_atomically:
            pytest.skip("the server shows objects while they are being overwritten")
        versions = {bytes([n]) * 100_000 for n in range(4)}
        store.put("object", next(iter(versions)))
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                for data in versions:
                    store.put("object", data)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(30):
                assert store.get("object").read() in versions
        finally:
            stop.set()
            writer.join()

    def test_threads_do_not_disturb_each_other(self, store: Store) -> None:
        """8 threads put, read and delete 80 objects, one of them in parts."""

        def work(number: int) -> None:
            data = some_bytes(BOUNDARY + 1 if number == 7 else 3000 + number, seed=number)
            key = f"threads/{number}"
            store.put(key, data)
            assert store.get(key).read() == data
            assert store.get(key, byte_range=(10, 20)).read() == data[10:20]
            if number % 2:
                store.delete(key)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(80)))
        assert len(list(store.list("threads"))) == 40

    def test_a_pickled_store_reaches_the_same_objects(self, store: Store) -> None:
        """Where crossing a process boundary is promised; refused where it is not."""
        store.put("object", b"there")
        if not store.capabilities.picklable:
            with pytest.raises((TypeError, pickle.PicklingError)):
                pickle.dumps(store)
            return
        copied: Store = pickle.loads(pickle.dumps(store))
        assert copied.get("object").read() == b"there"
        assert copied.uri("object") == store.uri("object")
        assert copied.capabilities == store.capabilities

    def test_errors_can_cross_processes(self, store: Store) -> None:
        """With their class, store and key."""
        with pytest.raises(NotFoundError) as caught:
            store.get("nothing")
        again: ObjectStoreError = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is type(caught.value)
        assert (again.store, again.key) == (caught.value.store, caught.value.key)
        assert str(again) == str(caught.value)

    def test_what_was_put_is_read_by_the_next_call(self, store: Store) -> None:
        """A put is visible to get, head and list as soon as it returns."""
        for number in range(20):
            data = some_bytes(100, seed=number)
            store.put("object", data)
            assert hashlib.md5(store.get("object").read(), usedforsecurity=False).digest() == (
                hashlib.md5(data, usedforsecurity=False).digest()
            )
            assert [meta.size for meta in store.list()] == [100]
