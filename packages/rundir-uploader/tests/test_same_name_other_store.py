"""One address that means another store, or an older state of it, is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rundir_uploader import Uploader
from rundir_uploader.errors import DirectoryLockedError


def mirror(directory: Path, store: Path) -> None:
    with Uploader(directory, str(store), use_procs=False):
        pass


def test_a_store_put_back_to_an_earlier_state_is_brought_up_to_date(tmp_path):
    directory, store = tmp_path / "run", tmp_path / "store"
    directory.mkdir()
    (directory / "f").write_text("version-1")
    (directory / "same").write_text("unchanged")
    mirror(directory, store)
    store.rename(tmp_path / "A")
    (directory / "f").write_text("version-2")
    mirror(directory, store)
    assert (store / "f").read_text() == "version-2"
    assert (store / "same").read_text() == "unchanged"
    store.rename(tmp_path / "B")
    (tmp_path / "A").rename(store)
    mirror(directory, store)
    assert (store / "f").read_text() == "version-2"


def test_a_second_uploader_is_told_of_the_first_through_a_link_too(tmp_path):
    child = tmp_path / "parent" / "child"
    child.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(child)
    with Uploader(tmp_path / "parent", str(tmp_path / "one"), use_procs=False):
        second = Uploader(link, str(tmp_path / "two"), use_procs=False)
        with pytest.raises(DirectoryLockedError):
            second.start()
