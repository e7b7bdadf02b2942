"""Paths become clean keys, and no two paths the same one."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from rundir_uploader.keys import escape_path, object_key, printable
from stretto.object_store import is_clean_key

part = (
    st.binary(min_size=1, max_size=12)
    .map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_"))
    .filter(lambda raw: raw not in (b".", b".."))
)
path = st.lists(part, min_size=1, max_size=4).map(lambda parts: os.fsdecode(b"/".join(parts)))


@given(path)
def test_every_path_becomes_a_clean_key(name: str) -> None:
    assert is_clean_key(escape_path(name))
    printable(name).encode()


@given(path, path)
def test_two_paths_never_share_a_key(first: str, second: str) -> None:
    assert (escape_path(first) == escape_path(second)) == (first == second)


@given(st.text("abcXYZ019._-%~ äß日", min_size=1, max_size=30).filter(lambda t: t.strip(".")))
def test_an_ordinary_name_is_its_own_key(name: str) -> None:
    assert escape_path(name) == name


def test_keys_are_prefix_and_path() -> None:
    assert object_key("two", "rank_1/log.txt") == "two/rank_1/log.txt"
    assert object_key("", "rank_1/log.txt") == "rank_1/log.txt"
    assert object_key("a/b", "latest", pointer=True) == "a/b/latest.symlink"


def test_foreign_bytes_stay_readable() -> None:
    key = escape_path(os.fsdecode(b"caf\xe9/new\nline"))
    assert key.startswith("caf%E9~")
    assert "/new%0Aline~" in key
