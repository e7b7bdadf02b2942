"""What is mirrored and what is not."""

from __future__ import annotations

import pytest

from rundir_uploader import UploaderSettingsError
from rundir_uploader.selection import Selection


def test_everything_but_temporary_files_and_our_own_folder() -> None:
    everything = Selection()
    for path in ("a", ".hidden", "ckpt/.metadata", "a/b/c.pt", "tmp", "x.tmp.txt"):
        assert everything.covers(path), path
    for path in (
        "a.tmp",
        "b/c.tmp",
        "x.tmp/inner",
        ".rundir-uploader/lock",
        "a/.rundir-uploader/x",
    ):
        assert not everything.covers(path), path


@pytest.mark.parametrize(
    ("pattern", "path", "out"),
    [
        ("*.log", "a.log", True),
        ("*.log", "deep/down/a.log", True),
        ("*.log", "a.log.gz", False),
        ("cache", "cache/a/b", True),
        ("cache", "rank_0/cache/b", True),
        ("rank_*/cache", "rank_1/cache/b", True),
        ("rank_*/cache", "cache/b", False),
        ("/logs/", "logs/a", True),
    ],
)
def test_patterns(pattern: str, path: str, out: bool) -> None:
    assert Selection(exclude=(pattern,)).covers(path) is not out


def test_exclusion_wins_over_inclusion() -> None:
    selection = Selection(include=("*.pt",), exclude=("bad*",))
    assert selection.covers("a/good.pt")
    assert not selection.covers("a/bad.pt")
    assert not selection.covers("a/good.txt")


def test_hidden_names_can_be_left_out() -> None:
    visible = Selection(hidden=False)
    assert not visible.covers(".git/config")
    assert not visible.covers("a/.hidden")
    assert visible.covers("a/b")


def test_an_empty_pattern_is_refused() -> None:
    with pytest.raises(UploaderSettingsError, match="empty pattern"):
        Selection(exclude=("",))
