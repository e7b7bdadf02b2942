"""Files to objects and back: conformance of the functions over a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.object_store.backends.memory import MemoryStore
from stretto.object_store.conformance.objects import BOUNDARY, some_bytes
from stretto.object_store.errors import AlreadyExistsError, NotFoundError
from stretto.object_store.store import Store
from stretto.object_store.transfer import copy_between, download_file, exists, upload_file, walk


class FileConformance:
    """Uploads and downloads. Needs a fixture ``store``: empty, of your making."""

    @pytest.mark.parametrize("size", [0, 10_000, BOUNDARY + 5, 2 * BOUNDARY])
    def test_files_go_there_and_back(self, store: Store, tmp_path: Path, size: int) -> None:
        """With progress that ends at the whole."""
        source, target = tmp_path / "source", tmp_path / "new" / "folder" / "target"
        source.write_bytes(some_bytes(size))
        up: list[tuple[int, int]] = []
        down: list[tuple[int, int]] = []
        result = upload_file(
            store, "a/file", source, progress=lambda done, total: up.append((done, total))
        )
        assert result.size == size
        meta = download_file(
            store, "a/file", target, progress=lambda done, total: down.append((done, total))
        )
        assert target.read_bytes() == source.read_bytes()
        assert meta.size == size
        for seen in (up, down):
            assert seen[-1] == (size, size)
            assert seen == sorted(seen)
            assert {total for _, total in seen} == {size}

    def test_a_download_replaces_only_when_asked(self, store: Store, tmp_path: Path) -> None:
        """And leaves no temporary file."""
        store.put("object", b"new")
        folder = tmp_path / "here"
        folder.mkdir()
        target = folder / "target"
        target.write_bytes(b"old")
        with pytest.raises(AlreadyExistsError):
            download_file(store, "object", target)
        assert target.read_bytes() == b"old"
        download_file(store, "object", target, overwrite=True)
        assert target.read_bytes() == b"new"
        assert list(folder.iterdir()) == [target]

    def test_a_download_of_nothing_makes_nothing(self, store: Store, tmp_path: Path) -> None:
        """No folder, no empty file."""
        with pytest.raises(NotFoundError):
            download_file(store, "nothing", tmp_path / "new" / "target")
        assert not (tmp_path / "new").exists()

    def test_a_missing_file_uploads_nothing(self, store: Store, tmp_path: Path) -> None:
        """The error is the file system's."""
        with pytest.raises(FileNotFoundError) as caught:
            upload_file(store, "object", tmp_path / "nothing")
        assert not isinstance(caught.value, NotFoundError)
        assert not exists(store, "object")

    def test_exists_and_walk(self, store: Store) -> None:
        """What is there, and only that."""
        store.put("a/b", b"x")
        assert exists(store, "a/b")
        assert not exists(store, "a")
        assert not exists(store, "a/b/c")
        assert [meta.key for meta in walk(store, "a")] == ["a/b"]

    def test_objects_go_from_store_to_store(self, store: Store) -> None:
        """In both directions, large ones too."""
        data = some_bytes(BOUNDARY + 77)
        other = MemoryStore("other")
        other.put("from", data)
        assert copy_between(other, "from", store, "to").size == len(data)
        copy_between(store, "to", other, "back")
        assert other.get("back").read() == data
