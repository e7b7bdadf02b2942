"""What is read is one moment's content, or it is not read at all."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rundir_uploader.checked_reader import CheckedReader
from rundir_uploader.reader import (
    ChangedWhileReadError,
    GoneError,
    NotARegularFileError,
    SourceError,
    edges_at,
    open_inside,
    read_whole,
    same_content,
    settled,
)
from stretto.run_directory import Fingerprint

SIZE = 3 << 20


@pytest.fixture
def file(run: Path) -> Path:
    path = run / "file"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture
def opened(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def settle(descriptor: int, **keywords) -> Fingerprint:
    return settled(descriptor, Fingerprint.of(os.fstat(descriptor)), **keywords)


def read_all(descriptor: int, between: Callable[[], None]) -> bytes:
    """Read in pieces, and do something just before the last piece."""
    before = settle(descriptor)
    reader = CheckedReader(descriptor, before)
    data = b""
    while len(data) < SIZE - 1000:
        data += reader.read(min(1 << 20, SIZE - 1000 - len(data)))
    between()
    rest = reader.read(1 << 20)
    while rest:
        data += rest
        rest = reader.read(1 << 20)
    assert reader.hexdigest() == hashlib.sha256(data).hexdigest()
    return data


def test_a_file_at_rest_is_read_as_it_is(file: Path, opened: int) -> None:
    content = file.read_bytes()
    assert read_all(opened, lambda: None) == content
    assert read_whole(opened, settle(opened)) == content


def test_a_growing_file_gives_its_last_whole_prefix(file: Path, opened: int) -> None:
    content = file.read_bytes()

    def grow() -> None:
        with file.open("ab") as out:
            out.write(b"more" * 1000)

    assert read_all(opened, grow) == content


@pytest.mark.parametrize("how", ["overwrite", "truncate", "grow and overwrite", "times set back"])
def test_the_last_bytes_of_a_torn_reading_are_never_given(
    file: Path, opened: int, how: str
) -> None:
    """A17: a file that shrinks or changes while it is read is not taken for whole."""
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)

    def change() -> None:
        with file.open("r+b") as out:
            if how == "truncate":
                out.truncate(SIZE - 500)
                return
            out.write(b"\0" * 100)
            if how == "grow and overwrite":
                out.seek(0, os.SEEK_END)
                out.write(b"more")
        if how == "times set back":
            os.utime(file, ns=times)

    with pytest.raises(ChangedWhileReadError):
        read_all(opened, change)


def test_a_replaced_file_is_still_the_old_one_as_a_whole(file: Path, opened: int) -> None:
    content = file.read_bytes()
    other = file.with_name("other")
    other.write_bytes(b"new")
    assert read_all(opened, lambda: other.replace(file)) == content


def test_going_back_to_the_start_begins_a_new_reading(file: Path, opened: int) -> None:
    reader = CheckedReader(opened, settle(opened))
    assert reader.seek(0, os.SEEK_END) == SIZE
    assert reader.seek(0) == 0
    reader.read(1000)
    reader.seek(0)
    assert reader.readall() == file.read_bytes()
    assert reader.hexdigest() == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_small_file_that_changes_under_the_reader_is_refused_or_whole(run: Path) -> None:
    """Whatever is accepted is one of the versions that were written, never a mixture."""
    path = run / "small"
    size = 256 << 10
    path.write_bytes(b"\0" * size)
    stop = threading.Event()

    def write() -> None:
        version = 0
        descriptor = os.open(path, os.O_WRONLY)
        while not stop.is_set():
            version = (version + 1) % 256
            os.pwrite(descriptor, bytes([version]) * size, 0)
            time.sleep(0.0005)
        os.close(descriptor)

    thread = threading.Thread(target=write)
    thread.start()
    accepted = refused = 0
    try:
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                data = read_whole(descriptor, settle(descriptor, sleep=lambda _: None))
                assert len(set(data)) == 1, "a mixture of two versions was accepted"
                accepted += 1
            except ChangedWhileReadError:
                refused += 1
            finally:
                os.close(descriptor)
    finally:
        stop.set()
        thread.join()
    assert refused > 0, "the writer never met the reader: this test proved nothing"


def test_a_fresh_file_is_waited_for(run: Path) -> None:
    path = run / "fresh"
    path.write_text("x")
    waited: list[float] = []
    with path.open("rb") as file:
        settle(file.fileno(), sleep=waited.append)
    assert len(waited) == 1
    assert 0 < waited[0] <= 0.02


def test_links_are_never_followed(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "outside"
    secret.mkdir()
    (secret / "file").write_text("secret")
    (run / "sub").mkdir()
    (run / "sub" / "file").write_text("mine")
    expected = Fingerprint.of((run / "sub" / "file").stat())
    (run / "sub" / "file").unlink()
    (run / "sub").rmdir()
    (run / "sub").symlink_to(secret)
    with pytest.raises(NotARegularFileError), open_inside(str(run), "sub/file", expected):
        pass
    (run / "link").symlink_to(secret / "file")
    with pytest.raises(NotARegularFileError), open_inside(str(run), "link", expected):
        pass


def test_what_cannot_be_opened_is_told_apart(run: Path) -> None:
    nothing = Fingerprint(0, 0, 0, 0)
    with pytest.raises(GoneError), open_inside(str(run), "missing", nothing):
        pass
    os.mkfifo(run / "fifo")
    with pytest.raises(NotARegularFileError), open_inside(str(run), "fifo", nothing):
        pass
    (run / "locked").write_text("x")
    (run / "locked").chmod(0)
    if os.geteuid() != 0:
        with pytest.raises(SourceError), open_inside(str(run), "locked", nothing):
            pass


def test_edges_tell_growth_from_a_rewrite(file: Path, opened: int) -> None:
    content = file.read_bytes()
    for size in (0, 1, 4096, 4097, 100_000, SIZE):
        part = content[:size]
        assert edges_at(opened, size) == (zlib.crc32(part[:4096]), zlib.crc32(part[-4096:]))


@pytest.mark.slow
def test_a_long_write_that_is_under_way_is_waited_for(run: Path) -> None:
    """A write stamps the file when it begins: within it, the stamp says nothing."""
    path = run / "large"
    size = 256 << 20
    path.write_bytes(b"\0" * size)
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys, time\n"
            "descriptor, size = os.open(sys.argv[1], os.O_WRONLY), int(sys.argv[2])\n"
            "for version in range(1, 40):\n"
            "    data = bytes([version]) * size\n"
            "    os.pwrite(descriptor, data, 0)\n"
            "    time.sleep(0.06)\n",
            str(path),
            str(size),
        ]
    )
    versions: set[bytes] = set()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while writer.poll() is None:
            try:
                before = settle(descriptor)
            except ChangedWhileReadError:
                continue
            data = b"".join(os.pread(descriptor, 1, at) for at in (0, size // 2, size - 1))
            if same_content(before, descriptor):
                assert len(set(data)) == 1, "the middle of a write was taken for a moment of rest"
                versions.add(data)
    finally:
        writer.kill()
        writer.wait()
        os.close(descriptor)
    assert len(versions) > 3, "the reader never met the writer: this test proved nothing"
