"""A link ``l`` and a file ``l.symlink`` would have objects of one name: the file keeps it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rundir_uploader import Uploader


def run(command: str, directory: Path, store: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rundir_uploader", command, str(directory), str(store)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_file_named_like_a_links_object_is_stored_and_stays(tmp_path):
    directory, store = tmp_path / "run", tmp_path / "store"
    directory.mkdir()
    (directory / "real").write_text("d")
    (directory / "l1").symlink_to("real")
    (directory / "l1.symlink").write_text("data")
    for _ in range(3):
        run("sync", directory, store)
        assert (store / "l1.symlink").read_text() == "data"
    run("verify", directory, store)


def test_a_file_that_takes_the_name_later_is_stored_and_stays(tmp_path):
    directory, store = tmp_path / "run", tmp_path / "store"
    directory.mkdir()
    (directory / "real").write_text("d")
    (directory / "l1").symlink_to("real")
    run("sync", directory, store)
    assert (store / "l1.symlink").read_text() == "real"
    (directory / "l1.symlink").write_text("data")
    for _ in range(3):
        run("sync", directory, store)
        assert (store / "l1.symlink").read_text() == "data"
    run("verify", directory, store)


def test_the_uri_of_a_link_is_that_of_the_object_that_stands_for_it(tmp_path):
    directory, store = tmp_path / "run", tmp_path / "store"
    directory.mkdir()
    (directory / "a").write_text("content")
    (directory / "l").symlink_to("a")
    (directory / "outward").symlink_to(tmp_path)
    with Uploader(directory, str(store), use_procs=False) as uploader:
        uris = {name: uploader.get_uri_for_uploaded_file(directory / name) for name in "al"}
        outward = uploader.get_uri_for_uploaded_file(directory / "outward")
    assert (store / "l.symlink").read_text() == "a"
    assert uris == {"a": f"file://{store}/a", "l": f"file://{store}/l.symlink"}
    assert outward == f"file://{store}/outward"
