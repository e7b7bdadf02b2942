"""Uploads and downloads that notice damage."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.object_store import (
    AlreadyExistsError,
    BucketNotFoundError,
    Checksum,
    CorruptedError,
    GetResult,
    MemoryStore,
    ObjectMeta,
    PermissionDeniedError,
    PutMode,
    PutResult,
    copy_between,
    download_file,
    exists,
    upload_file,
    walk,
)
from stretto.object_store.transfer import SMALL_FILE


class Liar(MemoryStore):
    """A store that does not keep or tell what it should."""

    def __init__(self, *, keeps=None, claims=None, sends=()) -> None:
        super().__init__("liar")
        self.keeps = keeps or (lambda data: data)
        self.claims = claims
        self.sends = list(sends)

    def put(self, key, source, *, mode=PutMode.OVERWRITE, metadata=None) -> PutResult:
        size = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
        super().put(key, self.keeps(data), mode=mode, metadata=metadata)
        return PutResult(etag=None, version=None, size=size, checksum=self.claims)

    def get(self, key, *, byte_range=None) -> GetResult:
        result = super().get(key, byte_range=byte_range)
        if not self.sends:
            return result
        data = self.sends.pop(0)
        return GetResult(result.meta, iter([data]))


def md5(data: bytes) -> Checksum:
    return Checksum("md5", hashlib.md5(data).hexdigest())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"0123456789")
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(b"x" * (SMALL_FILE + 1))
    return path


@pytest.mark.parametrize("name", ["path", "large"])
def test_a_short_object_is_noticed(name: str, request: pytest.FixtureRequest) -> None:
    store = Liar(keeps=lambda data: data[:-1])
    with pytest.raises(CorruptedError, match="bytes") as caught:
        upload_file(store, "key", request.getfixturevalue(name))
    assert caught.value.key == "key"


def test_damaged_bytes_are_noticed_by_their_digest(path: Path) -> None:
    store = Liar(keeps=lambda data: b"X" + data[1:], claims=md5(b"X123456789"))
    with pytest.raises(CorruptedError, match="other bytes"):
        upload_file(store, "key", path)


def test_a_tag_that_is_no_digest_is_no_false_alarm(path: Path, caplog) -> None:
    """With KMS encryption an ETag looks like an MD5 and is none."""
    store = Liar(claims=Checksum("md5", "0" * 32))
    with caplog.at_level(logging.INFO):
        assert upload_file(store, "key", path).size == 10
    assert "etag_is_md5" in caplog.text


def test_a_right_digest_needs_no_second_look(path: Path) -> None:
    class Blind(Liar):
        def head(self, key) -> ObjectMeta:
            raise AssertionError("asked again")

        get = head  # type: ignore[assignment]

    assert upload_file(Blind(claims=md5(b"0123456789")), "key", path).size == 10


def test_progress_of_a_large_file_grows_to_its_size(large: Path) -> None:
    class Reader(MemoryStore):
        pass

    seen: list[tuple[int, int]] = []
    upload_file(Reader(), "key", large, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert len(seen) > 3
    assert seen[-1] == (SMALL_FILE + 1, SMALL_FILE + 1)


def test_an_upload_can_create_only(path: Path) -> None:
    store = MemoryStore()
    upload_file(store, "key", path, mode=PutMode.CREATE, metadata={"a": "b"})
    with pytest.raises(AlreadyExistsError):
        upload_file(store, "key", path, mode=PutMode.CREATE)
    assert store.head("key").metadata == {"a": "b"}


def test_damage_on_the_way_down_is_read_again(tmp_path: Path) -> None:
    store = Liar(sends=[b"X123456789"])
    store.put("key", b"0123456789")
    download_file(store, "key", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"0123456789"


def test_two_different_damages_are_an_error_and_leave_nothing(tmp_path: Path) -> None:
    store = Liar(sends=[b"X123456789", b"Y123456789"])
    store.put("key", b"0123456789")
    with pytest.raises(CorruptedError, match="twice"):
        download_file(store, "key", tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


def test_a_download_whose_tag_is_no_digest_is_kept(tmp_path: Path) -> None:
    class Tagged(MemoryStore):
        def get(self, key, *, byte_range=None) -> GetResult:
            result = super().get(key, byte_range=byte_range)
            result.meta = replace(result.meta, checksum=Checksum("md5", "0" * 32))
            return result

    store = Tagged()
    store.put("key", b"data")
    download_file(store, "key", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"data"


def test_a_short_stream_is_an_error_never_a_short_file(tmp_path: Path) -> None:
    store = Liar(sends=[b"01234", b"01234"])
    store.put("key", b"0123456789")
    with pytest.raises(ConnectionError, match="5 of 10"):
        download_file(store, "key", tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


def test_overwriting_replaces_a_link_not_its_target(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put("key", b"new")
    (tmp_path / "real").write_bytes(b"keep")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(AlreadyExistsError):
        download_file(store, "key", tmp_path / "link")
    download_file(store, "key", tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").read_bytes() == b"new"
    assert (tmp_path / "real").read_bytes() == b"keep"


def test_a_dangling_link_counts_as_taken(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put("key", b"new")
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(AlreadyExistsError):
        download_file(store, "key", tmp_path / "link")


@pytest.mark.parametrize("error", [PermissionDeniedError, BucketNotFoundError])
def test_only_a_missing_object_does_not_exist(error: type[Exception]) -> None:
    class Refusing(MemoryStore):
        def head(self, key) -> ObjectMeta:
            raise error("no")

    with pytest.raises(error):
        exists(Refusing(), "key")


def test_copies_keep_metadata_where_both_sides_do() -> None:
    one, other = MemoryStore(), MemoryStore()
    one.put("key", b"x", metadata={"a": "b"})
    copy_between(one, "key", other, "copied")
    assert other.head("copied").metadata == {"a": "b"}


def test_walks_pass_over_names_that_are_no_keys() -> None:
    class Foreign(MemoryStore):
        def list(self, prefix=""):
            good = MemoryStore.list(self, prefix)
            bad = ObjectMeta(key="a//b", size=0, last_modified=next(good).last_modified)
            return iter([bad, *MemoryStore.list(self, prefix)])

    store = Foreign()
    store.put("good", b"x")
    assert [meta.is_clean for meta in store.list()] == [False, True]
    assert [meta.key for meta in walk(store)] == ["good"]


@pytest.mark.parametrize("piece", [1, 7, 4096, 100_000])
def test_short_reads_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Some file systems give fewer bytes than were asked for, long before the end."""
    import os

    data = bytes(range(256)) * (2 if piece < 10 else 1000)
    (tmp_path / "file").write_bytes(data)
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, min(size, piece)))
    store = MemoryStore()
    assert upload_file(store, "key", tmp_path / "file").size == len(data)
    assert store.get("key").read() == data


@pytest.mark.parametrize("size", [SMALL_FILE - 1, SMALL_FILE, SMALL_FILE + 1])
def test_files_about_as_large_as_small_ones_go_up_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    store = MemoryStore()
    assert upload_file(store, "key", path).size == size == store.head("key").size
