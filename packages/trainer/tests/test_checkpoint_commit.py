"""Files that are there whole or not at all, and the pointer to the newest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stretto.trainer.checkpoint.commit import commit_file, move_pointer, remove_leftovers
from stretto.trainer.checkpoint.errors import CheckpointError, CheckpointNotFoundError
from stretto.trainer.checkpoint.source import find_file

WRITER = """
import sys, time
from pathlib import Path
from stretto.trainer.checkpoint.commit import commit_file, move_pointer
folder = Path(sys.argv[1])

def slowly(path):
    with path.open("wb") as file:
        for _ in range(1000):
            file.write(b"new" * 1000)
            file.flush()
            print("writing", flush=True)
            time.sleep(0.02)

commit_file(folder / sys.argv[2], slowly)
move_pointer(folder / "latest.pt", folder / sys.argv[2])
"""


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".tmp"))


@pytest.mark.parametrize("name", ["same.pt", "next.pt"])
def test_a_kill_while_writing_leaves_the_last_file_and_the_pointer_whole(tmp_path, name):
    """Field report K8, with a real process and SIGKILL."""
    commit_file(tmp_path / "same.pt", lambda path: path.write_bytes(b"old" * 5000))
    move_pointer(tmp_path / "latest.pt", tmp_path / "same.pt")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), name], stdout=subprocess.PIPE
    )
    for _ in range(5):
        assert writer.stdout.readline() == b"writing\n"
    writer.send_signal(signal.SIGKILL)
    assert writer.wait() == -signal.SIGKILL
    writer.stdout.close()

    assert visible(tmp_path) == ["latest.pt", "same.pt"]
    assert (tmp_path / "latest.pt").read_bytes() == b"old" * 5000
    # What it left is named so that no mirror takes it, and the next run clears it away.
    assert len(list(tmp_path.glob(".*.tmp"))) == 1
    remove_leftovers(tmp_path)
    assert not list(tmp_path.glob(".*.tmp"))


def test_leftovers_of_the_living_and_of_other_machines_stay(tmp_path):
    mine = tmp_path / f".a.pt.{__import__('socket').gethostname()}-{os.getpid()}.tmp"
    others = tmp_path / ".a.pt.elsewhere-1.tmp"
    strange = tmp_path / ".a.tmp"
    for path in (mine, others, strange):
        path.touch()
    remove_leftovers(tmp_path)
    assert mine.exists()
    assert others.exists()
    assert strange.exists()


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    commit_file(tmp_path / "a.pt", lambda path: path.write_bytes(b"old"))

    def fail(path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"a\.pt could not be written: .*No space left"):
        commit_file(tmp_path / "a.pt", fail)
    assert (tmp_path / "a.pt").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file/a\.pt could not be written"):
        commit_file(tmp_path / "file" / "a.pt", lambda path: path.write_bytes(b""))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_of_ours(tmp_path):
    import torch

    from stretto.trainer import _torch

    def to_full_disk(path):
        path.symlink_to("/dev/full")
        _torch.save_file({"weights": torch.ones(1 << 16)}, path)

    with pytest.raises(CheckpointError, match=r"a\.pt could not be written"):
        commit_file(tmp_path / "a.pt", to_full_disk)
    assert list(tmp_path.iterdir()) == []


def test_the_pointer_is_a_relative_link(tmp_path):
    (tmp_path / "deep").mkdir()
    commit_file(tmp_path / "deep" / "a.pt", lambda path: path.write_bytes(b"a"))
    move_pointer(tmp_path / "latest.pt", tmp_path / "deep" / "a.pt")
    assert str((tmp_path / "latest.pt").readlink()) == "deep/a.pt"
    commit_file(tmp_path / "b.pt", lambda path: path.write_bytes(b"b"))
    move_pointer(tmp_path / "latest.pt", tmp_path / "b.pt")
    assert (tmp_path / "latest.pt").read_bytes() == b"b"
    # The whole folder may be moved.
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert find_file(moved / "latest.pt").read_bytes() == b"b"


def test_without_symbolic_links_the_pointer_is_a_text_file(tmp_path, monkeypatch, caplog):
    """Field report K6: such a disk used to end the training."""
    commit_file(tmp_path / "a.pt", lambda path: path.write_bytes(b"a"))
    commit_file(tmp_path / "b.pt", lambda path: path.write_bytes(b"b"))
    move_pointer(tmp_path / "latest.pt", tmp_path / "a.pt")

    def refuse(*args, **kwargs):
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "symlink", refuse)
        move_pointer(tmp_path / "latest.pt", tmp_path / "b.pt")
    assert "text file latest.pt.symlink instead" in caplog.text
    assert (tmp_path / "latest.pt.symlink").read_text() == "b.pt"
    assert not os.path.lexists(tmp_path / "latest.pt")
    assert find_file(tmp_path / "latest.pt") == tmp_path / "b.pt"
    assert find_file(tmp_path / "latest.pt.symlink") == tmp_path / "b.pt"

    # Where links work again, the text file must not win over the link.
    move_pointer(tmp_path / "latest.pt", tmp_path / "a.pt")
    assert find_file(tmp_path / "latest.pt").read_bytes() == b"a"
    assert visible(tmp_path) == ["a.pt", "b.pt", "latest.pt"]


def test_a_pointer_brought_back_from_a_store_names_a_key(tmp_path):
    folder = tmp_path / "two" / "checkpoints"
    (folder / "ep1").mkdir(parents=True)
    (folder / "ep1" / "a.pt").touch()
    for text in ("two/checkpoints/ep1/a.pt\n", "prefix/checkpoints/ep1/a.pt", "ep1/a.pt"):
        (folder / "latest.pt.symlink").write_text(text)
        assert find_file(folder / "latest.pt") == folder / "ep1" / "a.pt"
    (folder / "latest.pt.symlink").write_text("ep1/b.pt")
    with pytest.raises(CheckpointNotFoundError, match=r"names .*ep1/b\.pt, which is not there"):
        find_file(folder / "latest.pt")


def test_what_is_not_there_is_named_with_what_is(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*x\.pt.*nothing that ends in"):
        find_file(tmp_path / "x.pt")
    with pytest.raises(CheckpointNotFoundError, match="no/such does not exist"):
        find_file(tmp_path / "no" / "such" / "x.pt")
    (tmp_path / "ep1.pt").touch()
    with pytest.raises(CheckpointNotFoundError, match=r"In that folder: ep1\.pt"):
        find_file(tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"a folder\. Give a file in it: ep1\.pt"):
        find_file(tmp_path)
    (tmp_path / "latest.pt").symlink_to("gone.pt")
    with pytest.raises(CheckpointNotFoundError, match=r"points to gone\.pt, and that is not there"):
        find_file(tmp_path / "latest.pt")


def test_commits_do_not_race_with_readers(tmp_path):
    """A reader sees one version or another, never a part."""
    path = tmp_path / "a.pt"
    commit_file(path, lambda p: p.write_bytes(b"0" * 100_000))
    process = os.fork()
    if process == 0:
        for number in range(1, 60):
            commit_file(path, lambda p, n=number: p.write_bytes(str(n % 10).encode() * 100_000))
        os._exit(0)
    deadline = time.monotonic() + 60
    while os.waitpid(process, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
        content = path.read_bytes()
        assert len(content) == 100_000
        assert content.count(content[:1]) == 100_000
