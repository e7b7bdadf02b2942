"""Prefix and retry wrappers over a store that fails on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from stretto.object_store import (
    AlreadyExistsError,
    CorruptedError,
    GetResult,
    InvalidKeyError,
    MemoryStore,
    NotFoundError,
    ObjectMeta,
    PrefixStore,
    PutMode,
    PutResult,
    ReplaceIf,
    RetryPolicy,
    RetryStore,
    TransientError,
    validate_key,
)
from stretto.object_store.conformance.cases import UNCLEAN_KEYS

POLICY = RetryPolicy(attempts=3, wait_initial=0, wait_max=0, jitter=0)


class Flaky(MemoryStore):
    """Fails the next calls of an operation, before or after it took place."""

    def __init__(self) -> None:
        super().__init__("flaky")
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}
        self.calls: list[str] = []
        self.break_after: list[int] = []

    def _fail(self, plan: dict[str, int], operation: str) -> None:
        if plan.get(operation, 0) > 0:
            plan[operation] -= 1
            raise TransientError(f"{operation} failed")

    def _do(self, operation: str, function):
        self.calls.append(operation)
        self._fail(self.before, operation)
        result = function()
        self._fail(self.after, operation)
        return result

    def put(self, key, source, *, mode=PutMode.OVERWRITE, metadata=None) -> PutResult:
        return self._do(
            "put", lambda: MemoryStore.put(self, key, source, mode=mode, metadata=metadata)
        )

    def get(self, key, *, byte_range=None) -> GetResult:
        result = self._do("get", lambda: MemoryStore.get(self, key, byte_range=byte_range))
        if not self.break_after:
            return result
        limit = self.break_after.pop(0)
        data = result.read()

        def broken() -> Iterator[bytes]:
            yield data[:limit]
            raise TransientError("broke off")

        return GetResult(result.meta, broken(), byte_range=result.byte_range)

    def head(self, key) -> ObjectMeta:
        return self._do("head", lambda: MemoryStore.head(self, key))

    def delete(self, key) -> None:
        self._do("delete", lambda: MemoryStore.delete(self, key))

    def copy(self, source_key, destination_key) -> None:
        self._do("copy", lambda: MemoryStore.copy(self, source_key, destination_key))


@pytest.fixture
def flaky() -> Flaky:
    return Flaky()


@pytest.fixture
def store(flaky: Flaky) -> RetryStore:
    return RetryStore(flaky, POLICY, sleep=lambda _: None)


@pytest.mark.parametrize("operation", ["put", "get", "head", "delete", "copy"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_every_operation_survives_two_failures(
    flaky: Flaky, store: RetryStore, operation: str, when: str
) -> None:
    MemoryStore.put(flaky, "key", b"x")
    getattr(flaky, when)[operation] = 2
    calls: Mapping[str, object] = {
        "put": lambda: store.put("key", b"x"),
        "get": lambda: store.get("key").read(),
        "head": lambda: store.head("key"),
        "delete": lambda: store.delete("key"),
        "copy": lambda: store.copy("key", "copied"),
    }
    calls[operation]()  # type: ignore[operator]
    # The second delete finds that the first has done it.
    expected = 2 if (operation, when) == ("delete", "after") else 3
    assert flaky.calls.count(operation) == expected


def test_a_third_failure_comes_out(flaky: Flaky, store: RetryStore) -> None:
    flaky.before["put"] = 3
    with pytest.raises(TransientError):
        store.put("key", b"x")
    assert list(flaky.list()) == []


def test_a_lost_answer_fails_no_create_and_no_replace(flaky: Flaky, store: RetryStore) -> None:
    flaky.after["put"] = 1
    created = store.put("key", b"one", mode=PutMode.CREATE)
    assert created.version == MemoryStore.head(flaky, "key").version
    flaky.after["put"] = 1
    replaced = store.put("key", b"two", mode=ReplaceIf(created.version or ""))
    assert replaced.version == MemoryStore.head(flaky, "key").version
    assert MemoryStore.get(flaky, "key").read() == b"two"


def test_a_create_that_lost_to_other_bytes_fails(flaky: Flaky, store: RetryStore) -> None:
    MemoryStore.put(flaky, "key", b"theirs")
    flaky.before["put"] = 1
    with pytest.raises(AlreadyExistsError):
        store.put("key", b"mine", mode=PutMode.CREATE)


def test_a_create_at_first_try_does_not_look_at_bytes(flaky: Flaky, store: RetryStore) -> None:
    MemoryStore.put(flaky, "key", b"same")
    with pytest.raises(AlreadyExistsError):
        store.put("key", b"same", mode=PutMode.CREATE)


def test_a_missing_object_is_missing_at_first_try(flaky: Flaky, store: RetryStore) -> None:
    with pytest.raises(NotFoundError):
        store.delete("nothing")
    assert flaky.calls == ["delete"]


def test_a_file_is_wound_back_for_another_try(flaky: Flaky, store: RetryStore, tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    flaky.after["put"] = 2
    with path.open("rb") as file:
        file.seek(4)
        store.put("key", file)
    assert MemoryStore.get(flaky, "key").read() == b"456789"


def test_an_iterator_is_tried_once(flaky: Flaky, store: RetryStore) -> None:
    flaky.before["put"] = 1
    with pytest.raises(TransientError):
        store.put("key", iter([b"x"]))
    assert flaky.calls == ["put"]


def test_a_read_goes_on_from_where_it_broke_off(flaky: Flaky, store: RetryStore) -> None:
    data = bytes(range(100))
    MemoryStore.put(flaky, "key", data)
    flaky.break_after = [10, 20, 0, 30, 5, 5, 5]
    assert store.get("key").read() == data
    flaky.break_after = [3, 0]
    assert store.get("key", byte_range=(50, 60)).read() == data[50:60]


def test_a_read_that_gets_nowhere_ends(flaky: Flaky, store: RetryStore) -> None:
    MemoryStore.put(flaky, "key", bytes(100))
    flaky.break_after = [10, 0, 0, 0, 0, 0, 0]
    with pytest.raises(TransientError, match="broke off"):
        store.get("key").read()


def test_a_read_is_never_stitched_from_two_versions(flaky: Flaky, store: RetryStore) -> None:
    MemoryStore.put(flaky, "key", b"a" * 100)
    flaky.break_after = [10]
    stream = iter(store.get("key"))
    assert next(stream) == b"a" * 10
    MemoryStore.put(flaky, "key", b"b" * 100)
    with pytest.raises(CorruptedError, match="replaced"):
        next(stream)


@pytest.mark.parametrize("key", UNCLEAN_KEYS.values(), ids=UNCLEAN_KEYS)
def test_no_key_gets_out_of_a_prefix(key: str) -> None:
    whole = MemoryStore()
    whole.put("other", b"x")
    store = PrefixStore(whole, "prefix")
    for operation in (store.get, store.head, store.delete):
        with pytest.raises(InvalidKeyError):
            operation(key)
    with pytest.raises(InvalidKeyError):
        store.put(key, b"x")
    assert [meta.key for meta in whole.list()] == ["other"]


def test_a_prefix_is_part_of_every_stored_key() -> None:
    whole = MemoryStore("name")
    store = PrefixStore(whole, "a/b")
    store.put("c", b"x")
    assert [meta.key for meta in whole.list()] == ["a/b/c"]
    assert store.uri("c") == "memory://name/a/b/c"
    assert store.uri("") == "memory://name/a/b"
    assert [meta.key for meta in store.list()] == ["c"]


@pytest.mark.parametrize("prefix", ["", "/a", "a/", "a//b", ".."])
def test_a_prefix_is_a_clean_path(prefix: str) -> None:
    with pytest.raises(InvalidKeyError):
        PrefixStore(MemoryStore(), prefix)
    assert validate_key("a/b") == "a/b"
