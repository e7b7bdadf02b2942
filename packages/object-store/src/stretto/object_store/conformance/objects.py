"""What goes in comes out: conformance of single objects."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stretto.object_store.conformance.cases import CLEAN_KEYS, RANGES, UNCLEAN_KEYS
from stretto.object_store.errors import InvalidKeyError, NotFoundError
from stretto.object_store.store import Store
from stretto.object_store.types import PutMode

SIZES = (0, 1, 1024, (1 << 20) + 1)
BOUNDARY = 8 << 20
"""Where back ends begin to send parts."""
LARGE = 64 << 20


def some_bytes(size: int, seed: int = 0) -> bytes:
    """Bytes that differ everywhere and are the same each time.

    Args:
        size: How many.
        seed: Another seed, other bytes.
    """
    return random.Random(seed * 1_000_003 + size).randbytes(size)


class ObjectConformance:
    """Puts, reads, descriptions and removals. Needs a fixture ``store``: empty, of your making."""

    @pytest.mark.parametrize("size", SIZES)
    def test_bytes_come_back_as_they_were_put(self, store: Store, size: int) -> None:
        """Of any size, nothing included."""
        data = some_bytes(size)
        result = store.put("object", data)
        assert result.size == size
        with store.get("object") as found:
            assert (found.meta.key, found.meta.size, found.size) == ("object", size, size)
            assert found.read() == data
        assert store.head("object").size == size

    @pytest.mark.parametrize("size", [BOUNDARY, BOUNDARY + 1, 2 * BOUNDARY + 12345])
    def test_sizes_around_the_part_boundary_come_back(self, store: Store, size: int) -> None:
        """One request, or several parts."""
        data = some_bytes(size)
        assert store.put("parts", data).size == size
        assert hashlib.sha256(store.get("parts").read()).digest() == hashlib.sha256(data).digest()

    @pytest.mark.slow
    def test_a_large_stream_comes_back_in_chunks(self, store: Store) -> None:
        """64 MiB from an iterator, which has no length."""
        piece = some_bytes(1 << 20)
        expected, found = hashlib.sha256(), hashlib.sha256()
        for _ in range(LARGE >> 20):
            expected.update(piece)
        result = store.put("large", (piece for _ in range(LARGE >> 20)))
        assert result.size == LARGE == store.head("large").size
        chunks = 0
        for chunk in store.get("large"):
            found.update(chunk)
            chunks += 1
        assert found.digest() == expected.digest()
        assert chunks > 1

    def test_every_kind_of_source_is_taken(self, store: Store, tmp_path: Path) -> None:
        """Bytes-likes, paths, files from their position on, iterables and generators."""
        data = some_bytes(5000)
        path = tmp_path / "source"
        path.write_bytes(data)
        for source in (data, bytearray(data), memoryview(data), path, [data[:7], b"", data[7:]]):
            store.put("object", source)
            assert store.get("object").read() == data
        with path.open("rb") as file:
            file.seek(100)
            store.put("object", file)
            assert not file.closed
        assert store.get("object").read() == data[100:]
        store.put("object", io.BytesIO(data))
        assert store.get("object").read() == data
        store.put("object", (data[i : i + 1] for i in range(64)))
        assert store.get("object").read() == data[:64]
        store.put("object", iter(()))
        assert store.get("object").read() == b""

    def test_text_is_refused(self, store: Store) -> None:
        """A string could be a file's name or text; neither is guessed."""
        with pytest.raises(TypeError, match="Path"):
            store.put("object", "text")  # type: ignore[arg-type]
        with pytest.raises(NotFoundError):
            store.head("object")

    @pytest.mark.parametrize("size", [100, BOUNDARY + 100])
    def test_a_source_that_fails_leaves_nothing(self, store: Store, size: int) -> None:
        """Its own error comes out, and no part of it is visible."""

        class SourceFailed(Exception):
            pass

        def failing() -> Iterator[bytes]:
            yield some_bytes(size)
            raise SourceFailed

        with pytest.raises(SourceFailed):
            store.put("object", failing())
        with pytest.raises(NotFoundError):
            store.head("object")
        assert list(store.list()) == []

    def test_a_missing_source_is_not_a_missing_object(self, store: Store, tmp_path: Path) -> None:
        """The error is the file system's."""
        with pytest.raises(FileNotFoundError) as caught:
            store.put("object", tmp_path / "nothing")
        assert not isinstance(caught.value, NotFoundError)
        assert list(store.list()) == []

    def test_overwrite_replaces_all_of_it(self, store: Store) -> None:
        """Also with less."""
        first = store.put("object", some_bytes(2000))
        second = store.put("object", b"short", mode=PutMode.OVERWRITE)
        assert store.get("object").read() == b"short"
        assert store.head("object").size == 5
        assert first.etag != second.etag

    def test_the_time_of_the_last_write_is_told(self, store: Store) -> None:
        """Aware, and about now."""
        store.put("object", b"x")
        modified = store.head("object").last_modified
        assert modified.tzinfo is not None
        assert abs(datetime.now(UTC) - modified) < timedelta(minutes=5)

    def test_ranges_are_slices(self, store: Store) -> None:
        """Whatever reaches past the end, and empty ones."""
        data = b"0123456789"
        store.put("object", data)
        for start, end in RANGES:
            with store.get("object", byte_range=(start, end)) as found:
                assert found.read() == data[start:end], (start, end)
                assert found.meta.size == len(data)
                assert found.size == len(data[start:end])

    def test_ranges_of_an_empty_object_are_empty(self, store: Store) -> None:
        """There is no byte to send."""
        store.put("object", b"")
        assert store.get("object", byte_range=(0, 5)).read() == b""
        assert store.get("object", byte_range=(0, 0)).read() == b""

    def test_a_range_in_a_large_object(self, store: Store) -> None:
        """Across chunks."""
        data = some_bytes(BOUNDARY + 1000)
        store.put("object", data)
        begin, end = (3 << 20) - 7, (6 << 20) + 11
        assert store.get("object", byte_range=(begin, end)).read() == data[begin:end]

    @pytest.mark.parametrize("byte_range", [(-1, 5), (5, 4), (-3, -1)])
    def test_ranges_that_cannot_be_are_refused(
        self, store: Store, byte_range: tuple[int, int]
    ) -> None:
        """Negative, or the wrong way round."""
        store.put("object", b"0123456789")
        with pytest.raises(ValueError, match="byte_range"):
            store.get("object", byte_range=byte_range)

    def test_missing_objects_are_not_found(self, store: Store) -> None:
        """By each operation, also where a longer or shorter key exists."""
        store.put("folder/object", b"x")
        for key in ("nothing", "folder", "folder/obj", "folder/object/below"):
            for operation in (store.get, store.head, store.delete, store.checksum):
                with pytest.raises(NotFoundError) as caught:
                    operation(key)
                assert isinstance(caught.value, FileNotFoundError)
                assert not caught.value.retryable
            with pytest.raises(NotFoundError):
                store.get(key, byte_range=(0, 0))
            with pytest.raises(NotFoundError):
                store.copy(key, "copied")
        assert [meta.key for meta in store.list()] == ["folder/object"]

    def test_a_deleted_object_is_gone(self, store: Store) -> None:
        """And its neighbours are not."""
        store.put("a/one", b"1")
        store.put("a/two", b"2")
        store.delete("a/one")
        with pytest.raises(NotFoundError):
            store.get("a/one")
        with pytest.raises(NotFoundError):
            store.delete("a/one")
        assert [meta.key for meta in store.list()] == ["a/two"]

    def test_copies_are_independent(self, store: Store) -> None:
        """The destination is replaced, the source stays."""
        store.put("source", b"first")
        store.put("target", b"old and longer")
        store.copy("source", "target")
        store.put("source", b"second")
        assert store.get("target").read() == b"first"
        store.copy("source", "deep/er/target")
        assert store.get("deep/er/target").read() == b"second"

    def test_metadata_comes_back(self, store: Store) -> None:
        """Under lower-case names; where none is kept, it is refused."""
        metadata = {"Run-Name": "first try", "step_2": "17;x=y"}
        if not store.capabilities.metadata:
            with pytest.raises(ValueError, match="metadata"):
                store.put("object", b"x", metadata=metadata)
            return
        store.put("object", b"x", metadata=metadata)
        expected = {"run-name": "first try", "step_2": "17;x=y"}
        assert dict(store.head("object").metadata) == expected
        assert dict(store.get("object").meta.metadata) == expected
        large = some_bytes(BOUNDARY + 1)
        store.put("large", large, metadata=metadata)
        assert dict(store.head("large").metadata) == expected
        store.put("object", b"x")
        assert dict(store.head("object").metadata) == {}

    def test_checksums_are_right_where_there_are_any(self, store: Store) -> None:
        """Compared with hashlib's."""
        data = some_bytes(4321)
        store.put("object", data)
        found = store.checksum("object")
        assert (found is not None) == bool(store.capabilities.checksum_algorithms)
        if found is not None:
            assert found.algorithm in store.capabilities.checksum_algorithms
            assert found.hexdigest == hashlib.new(found.algorithm, data).hexdigest()

    @pytest.mark.parametrize("key", CLEAN_KEYS.values(), ids=CLEAN_KEYS)
    def test_odd_keys_are_kept_literally(self, store: Store, key: str) -> None:
        """Put, listed, read and deleted by exactly the same name."""
        data = key.encode()
        can = store.capabilities
        if len(data) > can.max_key_bytes or any(char in key for char in can.refused_characters):
            with pytest.raises(InvalidKeyError):
                store.put(key, data)
            return
        store.put(key, data)
        assert [meta.key for meta in store.list()] == [key]
        assert store.head(key).key == key
        assert store.get(key).read() == data
        if "/" in key:
            folder = key.rpartition("/")[0]
            assert [meta.key for meta in store.list(folder)] == [key]
        store.copy(key, "copied")
        store.delete(key)
        with pytest.raises(NotFoundError):
            store.head(key)

    def test_unicode_normal_forms_are_different_keys(self, store: Store) -> None:
        """No store may fold them."""
        store.put("\u00e9", b"composed")
        store.put("e\u0301", b"decomposed")
        assert store.get("\u00e9").read() == b"composed"
        assert store.get("e\u0301").read() == b"decomposed"
        assert len(list(store.list())) == 2

    @pytest.mark.parametrize("key", UNCLEAN_KEYS.values(), ids=UNCLEAN_KEYS)
    def test_unclean_keys_are_refused_by_every_operation(self, store: Store, key: str) -> None:
        """Before anything is sent."""
        store.put("good", b"x")
        operations = (
            lambda: store.put(key, b"x"),
            lambda: store.get(key),
            lambda: store.head(key),
            lambda: store.delete(key),
            lambda: store.checksum(key),
            lambda: store.copy(key, "target"),
            lambda: store.copy("good", key),
        )
        for operation in operations:
            with pytest.raises(InvalidKeyError):
                operation()
        assert [meta.key for meta in store.list()] == ["good"]

    def test_uris_are_literal(self, store: Store) -> None:
        """The key is the end of the URI, nothing is encoded."""
        key = "a b/%41?#ü"
        assert store.uri(key) == f"{store.uri('')}/{key}"
        assert "://" in store.uri("")

    def test_a_read_can_be_left_half_way(self, store: Store) -> None:
        """Without harm to what follows."""
        store.put("object", some_bytes(BOUNDARY))
        for _ in range(3):
            with store.get("object") as found:
                next(iter(found))
        assert store.get("object", byte_range=(0, 3)).read() == some_bytes(BOUNDARY)[:3]

    @pytest.mark.parametrize("size", [100, BOUNDARY])
    def test_a_closed_read_gives_nothing_more(self, store: Store, size: int) -> None:
        """It says so; a half object is never taken for a whole one."""
        store.put("object", some_bytes(size))
        for begin in (False, True):
            found = store.get("object")
            if begin:
                next(iter(found))
            found.close()
            found.close()
            with pytest.raises(ValueError, match="closed"):
                next(iter(found))

    def test_probe_leaves_nothing_behind(self, store: Store) -> None:
        """It writes, reads and deletes."""
        store.probe()
        assert list(store.list()) == []
