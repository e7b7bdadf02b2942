"""The local store: atomic, and nothing outside its root."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stretto.object_store import (
    BucketNotFoundError,
    InvalidKeyError,
    InvalidUrlError,
    LocalStore,
    NotFoundError,
    PermissionDeniedError,
    PutMode,
    ReplaceIf,
    StoreFullError,
    open_store,
)
from stretto.object_store.conformance.cases import UNCLEAN_KEYS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root, durable=False)


def snapshot(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_objects_are_plain_files(store: LocalStore, root: Path) -> None:
    store.put("a/b c/%41", b"data")
    assert (root / "a/b c/%41").read_bytes() == b"data"
    (root / "a/made by hand").write_bytes(b"hand")
    assert store.get("a/made by hand").read() == b"hand"


@pytest.mark.parametrize("key", UNCLEAN_KEYS.values(), ids=UNCLEAN_KEYS)
def test_no_key_reaches_outside(store: LocalStore, tmp_path: Path, key: str) -> None:
    before = snapshot(tmp_path)
    with pytest.raises(InvalidKeyError):
        store.put(key, b"evil")
    assert snapshot(tmp_path) == before


def test_links_that_lead_out_are_refused(store: LocalStore, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "relative").symlink_to("../outside")
    (root / "deep").mkdir()
    (root / "deep/up").symlink_to("../..")
    for key in ("folder/secret", "relative/secret", "deep/up/outside/secret"):
        for operation in (store.get, store.head, store.delete, store.checksum):
            with pytest.raises(PermissionDeniedError, match="out of the root"):
                operation(key)
        with pytest.raises(PermissionDeniedError):
            store.put(key, b"evil")
        with pytest.raises(PermissionDeniedError):
            store.put(key.replace("secret", "new"), b"evil", mode=PutMode.CREATE)
        with pytest.raises(PermissionDeniedError):
            store.copy(key, "stolen")
    for operation in (store.get, store.head, store.checksum):
        with pytest.raises(PermissionDeniedError):
            operation("file")
    with pytest.raises(PermissionDeniedError):
        store.list("folder")
    assert list(store.list()) == []
    assert snapshot(outside) == {"secret"}
    assert (outside / "secret").read_bytes() == b"secret"


def test_writing_to_a_link_replaces_the_link_not_its_target(
    store: LocalStore, root: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"keep")
    (root / "link").symlink_to(target)
    store.put("link", b"new")
    assert target.read_bytes() == b"keep"
    assert not (root / "link").is_symlink()
    (root / "other").symlink_to(target)
    store.delete("other")
    assert target.read_bytes() == b"keep"


def test_links_that_stay_inside_are_followed(store: LocalStore, root: Path) -> None:
    store.put("real/file", b"data")
    (root / "folder").symlink_to("real")
    (root / "file").symlink_to("real/file")
    assert store.get("folder/file").read() == b"data"
    assert store.get("file").read() == b"data"
    store.put("folder/new", b"new")
    assert (root / "real/new").read_bytes() == b"new"
    assert sorted(meta.key for meta in store.list()) == ["file", "real/file", "real/new"]


def test_loops_and_dangling_links_are_no_objects(store: LocalStore, root: Path) -> None:
    (root / "loop").symlink_to(".")
    (root / "dangling").symlink_to("nothing")
    assert list(store.list()) == []
    with pytest.raises(NotFoundError):
        store.get("dangling")


def test_the_root_may_be_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    store = LocalStore(tmp_path / "link", durable=False)
    store.put("key", b"x")
    assert (tmp_path / "real/key").read_bytes() == b"x"


def test_special_files_are_no_objects(store: LocalStore, root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert list(store.list()) == []
    with pytest.raises(NotFoundError):
        store.get("pipe")
    with pytest.raises(NotFoundError):
        store.head("pipe")


def test_names_that_are_no_utf8_are_listed_and_marked(store: LocalStore, root: Path) -> None:
    with open(os.path.join(os.fsencode(root), b"caf\xe9"), "wb") as file:  # noqa: PTH118, PTH123
        file.write(b"x")
    (root / "line\nbreak").write_bytes(b"x")
    store.put("good", b"x")
    found = {meta.key: meta.is_clean for meta in store.list()}
    assert found == {"caf\udce9": False, "line\nbreak": False, "good": True}


def test_an_object_and_a_folder_cannot_share_a_name(store: LocalStore, root: Path) -> None:
    store.put("a", b"file")
    with pytest.raises(InvalidKeyError, match="both"):
        store.put("a/b", b"x")
    store.put("c/d", b"x")
    for mode in (PutMode.OVERWRITE, PutMode.CREATE):
        with pytest.raises(InvalidKeyError, match="both"):
            store.put("c", b"x", mode=mode)
    assert snapshot(root) == {"a", "c", "c/d"}


def test_a_part_that_the_file_system_cannot_hold_is_an_invalid_key(store: LocalStore) -> None:
    with pytest.raises(InvalidKeyError, match="too long"):
        store.put("x" * 300, b"x")


def test_names_of_unfinished_writes_are_kept_for_them(store: LocalStore, root: Path) -> None:
    name = ".stretto-0123456789abcdef.tmp"
    with pytest.raises(InvalidKeyError):
        store.put(f"a/{name}", b"x")
    (root / name).write_bytes(b"half")
    assert list(store.list()) == []


def test_folders_go_with_their_last_object(store: LocalStore, root: Path) -> None:
    store.put("a/b/c", b"x")
    store.put("a/d", b"x")
    store.delete("a/b/c")
    assert snapshot(root) == {"a", "a/d"}
    store.delete("a/d")
    assert snapshot(root) == set()
    store.put("a", b"now a file")
    assert root.is_dir()


def test_a_failed_put_leaves_no_folder(store: LocalStore, root: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"x"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.put("new/folder/key", failing())
    with pytest.raises(FileNotFoundError):
        store.put("new/folder/key", root / "no such source")
    assert snapshot(root) == set()


def test_a_conditional_put_that_fails_leaves_no_trace(store: LocalStore, root: Path) -> None:
    version = store.put("key", b"x").version or ""
    store.put("key", b"y")
    for mode in (PutMode.CREATE, ReplaceIf(version)):
        with pytest.raises(Exception, match=r"taken|version"):
            store.put("key", b"z", mode=mode)
    assert snapshot(root) == {"key"}


def test_puts_and_deletes_of_neighbours_do_not_collide(store: LocalStore) -> None:
    """A folder that one thread removes is the one that another writes into."""

    def work(number: int) -> None:
        for turn in range(60):
            store.put(f"shared/folder/{number}", b"%d" % turn)
            store.delete(f"shared/folder/{number}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert list(store.list()) == []


def test_listing_tolerates_what_vanishes(store: LocalStore) -> None:
    for number in range(300):
        store.put(f"{number % 20}/{number}", b"x")
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for number in range(300):
                store.delete(f"{number % 20}/{number}")
                store.put(f"{number % 20}/{number}", b"x")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20):
            assert len({meta.key for meta in store.list()}) > 250
    finally:
        stop.set()
        thread.join()


WRITER = """
import sys
from stretto.object_store import LocalStore
store = LocalStore(sys.argv[1])
store.put("key", b"old" * 1000)
def endless():
    print("writing", flush=True)
    while True:
        yield b"new" * 100_000
store.put("key", endless())
"""


def test_a_writer_that_is_killed_leaves_the_old_object(root: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    store = LocalStore(root, durable=False)
    assert store.get("key").read() == b"old" * 1000
    assert [meta.key for meta in store.list()] == ["key"]


FULL = """
import resource, signal, sys
from stretto.object_store import LocalStore, StoreFullError
store = LocalStore(sys.argv[1])
store.put("key", b"old")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for source in (b"x" * 200_000, iter([b"x" * 50_000] * 4)):
    try:
        store.put("key", source)
    except StoreFullError as error:
        assert isinstance(error, OSError), error
        assert error.key == "key", error
    else:
        raise SystemExit("it was not full")
assert store.get("key").read() == b"old"
"""


def test_a_full_disk_is_an_error_of_its_own_and_changes_nothing(root: Path) -> None:
    subprocess.run([sys.executable, "-c", FULL, str(root)], check=True)
    assert snapshot(root) == {"key"}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EROFS, PermissionDeniedError),
        (errno.EACCES, PermissionDeniedError),
    ],
)
def test_what_the_system_refuses_has_its_class(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(expected):
        store.put("folder/key", b"x")
    monkeypatch.undo()
    assert snapshot(root) == set()


def test_writes_reach_the_disk_before_they_count(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    real = os.fsync

    def watch(descriptor: int) -> None:
        synced.append((root / "key").exists())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    LocalStore(root).put("key", b"x")
    assert synced == [False, True]  # the file before it appears, its folder after


def test_the_root_is_made_with_its_parents(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "a" / "b"))
    store.put("key", b"x")
    assert (tmp_path / "a/b/key").exists()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidUrlError, match="folder"):
            open_store(path)


def test_a_root_that_vanishes_is_not_made_again(store: LocalStore, root: Path) -> None:
    """It may be a disk that is not mounted any more."""
    root.rmdir()
    with pytest.raises(BucketNotFoundError):
        store.put("key", b"x")
    assert not root.exists()


def test_an_open_read_sees_one_version(store: LocalStore) -> None:
    store.put("key", b"a" * (3 << 20))
    with store.get("key") as found:
        stream = iter(found)
        first = next(stream)
        store.put("key", b"b" * (3 << 20))
        assert first + b"".join(stream) == b"a" * (3 << 20)


def test_metadata_is_refused_rather_than_lost(store: LocalStore, root: Path) -> None:
    with pytest.raises(ValueError, match="metadata"):
        store.put("key", b"x", metadata={"a": "b"})
    assert snapshot(root) == set()


def test_what_killed_writers_left_long_ago_is_taken_away(root: Path) -> None:
    LocalStore(root, durable=False).put("folder/key", b"x")
    old = root / "folder/.stretto-0123456789abcdef.tmp"
    new = root / "folder/.stretto-fedcba9876543210.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    LocalStore(root, durable=False).put("folder/other", b"x")
    assert not old.exists()
    assert new.exists()
