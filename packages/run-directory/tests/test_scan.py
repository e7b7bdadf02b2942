from __future__ import annotations

import errno
import os
import pickle
import random
import socket
import stat
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.run_directory import FileEntry, FileKind, Fingerprint, IncompleteScanError, scan


def kinds(directory: Path, **options: object) -> dict[str, FileKind]:
    return {entry.path: entry.kind for entry in scan(directory, **options)}  # pyright: ignore


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def slow_model(directory: Path) -> list[FileEntry]:
    """What a scan must find, from os.walk and os.lstat."""
    found: list[FileEntry] = []
    for folder, folders, files in os.walk(directory):
        for name in folders + files:
            path = f"{folder}/{name}"
            status = os.lstat(path)
            kind, target = FileKind.SPECIAL, None
            if stat.S_ISLNK(status.st_mode):
                kind, target = FileKind.SYMLINK, os.readlink(path)  # noqa: PTH115
            elif stat.S_ISDIR(status.st_mode):
                kind = FileKind.DIRECTORY
            elif stat.S_ISREG(status.st_mode):
                kind = FileKind.FILE
            print_ = Fingerprint(
                status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
            )
            relative = os.path.relpath(path, directory)
            found.append(FileEntry(relative, kind, print_, target, status.st_mode))
    return sorted(found, key=lambda entry: entry.path.split("/"))


_PARTS = st.sampled_from(["a", "b.c", ".d", "e-f", "ä", " g"])
_TREES = st.dictionaries(
    st.lists(_PARTS, min_size=1, max_size=4).map(tuple),
    st.sampled_from(["file", "folder", "link", "dangling", "fifo"]),
    max_size=14,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=_TREES)
def test_a_scan_equals_a_walk_with_lstat_in_order(tree, tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for parts, kind in tree.items():
        path = root.joinpath(*parts)
        if any(parent.exists() and not parent.is_dir() for parent in path.parents):
            continue
        if os.path.lexists(path) or any(parent.is_symlink() for parent in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_text("x" * len(parts))
        elif kind == "folder":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to("." if kind == "link" else "nowhere")
    assert list(scan(root)) == slow_model(root)


def test_a_folder_comes_directly_before_what_it_holds(tmp_path):
    for name in ("b/y", "b/x", "a", "b.txt", "c/z"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    order = [entry.path for entry in scan(tmp_path)]
    assert order == ["a", "b", "b/x", "b/y", "b.txt", "c", "c/z"]


def test_an_empty_directory_holds_nothing_and_empty_folders_are_reported(tmp_path):
    assert list(scan(tmp_path)) == []
    (tmp_path / "empty").mkdir()
    assert kinds(tmp_path) == {"empty": FileKind.DIRECTORY}


def test_hidden_means_any_part_below_the_directory(tmp_path):
    root = tmp_path / ".hidden-root"
    for name in (".f", "a/.f", ".d/f", "a/.d/f", "a/f", "a/b.c"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    assert set(kinds(root, ignore_hidden=True)) == {"a", "a/f", "a/b.c"}
    assert {".f", ".d", ".d/f", "a/.d/f"} < set(kinds(root))


def test_an_excluded_folder_is_not_entered(tmp_path):
    for name in ("keep/x", "drop/x", "keep/drop.tmp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    asked: list[str] = []

    def exclude(path: str) -> bool:
        asked.append(path)
        return path == "drop" or path.endswith(".tmp")

    assert set(kinds(tmp_path, exclude=exclude)) == {"keep", "keep/x"}
    assert asked == ["drop", "keep", "keep/drop.tmp", "keep/x"]


def test_links_in_loops_dangling_and_out_of_the_tree_are_reported_and_not_followed(tmp_path):
    """R12."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a").mkdir(parents=True)
    (outside / "secret").mkdir(parents=True)
    targets = {"a/up": "..", "self": "self", "out": str(outside), "gone": "no/where", "in": "./a"}
    for name, target in targets.items():
        os.symlink(target, root / name)  # noqa: PTH211 - Path would normalise `./a`
    found = {entry.path: entry for entry in scan(root)}
    assert {name: found[name].target for name in targets} == targets
    assert all(found[name].kind is FileKind.SYMLINK for name in targets)
    assert set(found) == {"a", *targets}


def test_sockets_and_fifos_are_special(tmp_path):
    """R12."""
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        assert kinds(tmp_path) == {"fifo": FileKind.SPECIAL, "socket": FileKind.SPECIAL}


def test_a_directory_that_is_itself_a_link_is_scanned(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").touch()
    (tmp_path / "link").symlink_to("real")
    assert set(kinds(tmp_path / "link")) == {"x"}


@pytest.mark.skipif(sys.platform == "darwin", reason="its file system takes UTF-8 only")
def test_names_that_are_not_utf_8_come_back_to_the_byte(tmp_path):
    raw = b"caf\xe9-\xff"
    name = os.fsdecode(raw)
    (tmp_path / name).mkdir()
    (tmp_path / name / name).touch()
    (tmp_path / f"to-{name}").symlink_to(name)
    found = {os.fsencode(entry.path): entry for entry in scan(tmp_path)}
    assert set(found) == {raw, raw + b"/" + raw, b"to-" + raw}
    assert os.fsencode(found[b"to-" + raw].target or "") == raw


def test_names_that_would_break_text_formats_are_plain_names(tmp_path):
    names = {"new\nline", "tab\t", "quote\"'", "back\\slash", "*?[", "a" * 255}
    for name in names:
        (tmp_path / name).touch()
    assert set(kinds(tmp_path)) == names


def test_what_vanishes_between_listing_and_looking_is_left_out(tmp_path):
    """R6: a deleted file, a deleted folder and a folder that became a file."""
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    (tmp_path / "d").mkdir()
    (tmp_path / "e").mkdir()
    walk = scan(tmp_path)
    assert next(walk).path == "a"
    (tmp_path / "b").unlink()
    assert next(walk).path == "c"
    assert next(walk).path == "d"
    (tmp_path / "d").rmdir()
    assert next(walk).path == "e"
    (tmp_path / "e").rmdir()
    (tmp_path / "e").write_text("now a file")
    assert list(walk) == []


def test_a_folder_swapped_for_a_link_during_the_scan_is_not_followed(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "d").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").touch()
    walk = scan(root)
    assert next(walk).path == "d"
    (root / "d").rmdir()
    (root / "d").symlink_to(outside)
    assert list(walk) == []


def test_a_missing_directory_and_a_file_are_errors_of_the_caller(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError):
        list(scan(tmp_path / "missing"))
    with pytest.raises(NotADirectoryError):
        list(scan(tmp_path / "file"))


def test_what_cannot_be_read_is_told_after_everything_else_was_found(tmp_path, monkeypatch):
    for name in ("a/x", "b/x", "c/x"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    really = os.open

    def refusing(path: str, flags: int, *args: int, **options: int) -> int:
        if str(path).endswith("/b"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return really(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refusing)
    found: list[str] = []
    with pytest.raises(IncompleteScanError, match=r"tmp|b") as caught:
        found.extend(entry.path for entry in scan(tmp_path))
    assert [error.filename for error in caught.value.errors] == [str(tmp_path / "b")]
    sent = pickle.loads(pickle.dumps(caught.value))
    assert (str(sent), sent.directory) == (str(caught.value), str(tmp_path))

    reported: list[OSError] = []
    found = [entry.path for entry in scan(tmp_path, on_error=reported.append)]
    assert found == ["a", "a/x", "b", "c", "c/x"]
    assert [error.filename for error in reported] == [str(tmp_path / "b")]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_hundreds_of_folders_within_each_other_are_scanned_with_few_descriptors(tmp_path):
    import resource

    depth = 300
    tmp_path.joinpath(*["d"] * depth).mkdir(parents=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 90, hard))
    try:
        entries = list(scan(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [entry.path.count("/") for entry in entries] == list(range(depth))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_a_scan_that_is_given_up_leaves_no_descriptor_open(tmp_path):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    before = open_descriptors()
    walk = scan(tmp_path)
    next(walk)
    next(walk)
    walk.close()  # pyright: ignore
    assert open_descriptors() == before


def test_a_scan_makes_one_scandir_a_folder_and_one_stat_a_path_and_no_more(tmp_path):
    """R10, and issue 5: the calls of scandir and stat, counted as the interpreter makes them."""
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    folders = [tmp_path]
    files = links = 0
    for number in range(300):
        place = chance.choice(folders) / f"n{number}"
        roll = chance.random()
        if roll < 0.2:
            place.mkdir()
            folders.append(place)
        elif roll < 0.3:
            place.symlink_to("x")
            links += 1
        else:
            place.touch()
            files += 1
    calls: Counter[str] = Counter()

    def count(frame: object, event: str, argument: object) -> None:
        if event == "c_call":
            calls[getattr(argument, "__name__", "?")] += 1

    sys.setprofile(count)
    try:
        entries = list(scan(tmp_path))
    finally:
        sys.setprofile(None)
    assert len(entries) == files + links + len(folders) - 1
    assert calls["scandir"] == len(folders)
    assert calls["stat"] == len(entries)
    assert calls["readlink"] == links
    assert calls["open"] == calls["close"] == len(folders)
    assert not {"lstat", "fstat", "listdir", "is_dir", "is_file", "is_symlink"} & set(calls)


def test_fingerprints_tell_every_way_to_change_a_file(tmp_path):
    """R2: a same-size rewrite with its times set back, a replacement, a chmod of the clock."""
    file = tmp_path / "file"
    file.write_text("one")
    os.utime(file, ns=(10**18 + 1, 10**18 + 1))
    before = Fingerprint.of(file.stat())
    assert before == Fingerprint.of(file.stat())
    assert (before.size, before.mtime_ns) == (3, 10**18 + 1)

    file.write_text("two")
    os.utime(file, ns=(10**18 + 1, 10**18 + 1))
    rewritten = Fingerprint.of(file.stat())
    assert (rewritten.size, rewritten.mtime_ns) == (before.size, before.mtime_ns)
    assert rewritten != before

    other = tmp_path / "other"
    other.write_text("six")
    os.utime(other, ns=(10**18 + 1, 10**18 + 1))
    other.rename(file)
    assert Fingerprint.of(file.stat()).inode != rewritten.inode


def test_entries_and_fingerprints_are_immutable_hashable_and_carry_no_dict(tmp_path):
    (tmp_path / "x").touch()
    (entry,) = scan(tmp_path)
    for value in (entry, entry.fingerprint):
        assert hash(value) == hash(type(value)(*(getattr(value, n) for n in value.__slots__)))
        assert not hasattr(value, "__dict__")
        with pytest.raises(AttributeError):
            setattr(value, value.__slots__[0], 1)
