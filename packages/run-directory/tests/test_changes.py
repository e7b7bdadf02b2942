from __future__ import annotations

import errno
import logging
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.run_directory import (
    create_run_directory,
    find_latest_run,
    get_modified_files,
    get_run_directory_timestamp,
    set_run_directory,
)
from stretto.run_directory.changes import _as_nanoseconds  # pyright: ignore

LONG_AGO = 10**18


@pytest.fixture
def run(workplace: Path) -> Path:
    set_run_directory("run")
    return Path(create_run_directory())


def names(run: Path, since: float | datetime, **options: bool) -> list[str]:
    return [os.path.relpath(path, run) for path in get_modified_files(since, **options)]


def rest() -> None:
    """Let the clock that stamps files move on."""
    time.sleep(0.02)


def test_only_what_was_written_after_the_moment_is_listed_by_absolute_path(run):
    (run / "old").touch()
    rest()
    moment = get_run_directory_timestamp()
    (run / "sub").mkdir()
    (run / "sub" / "new").touch()
    assert get_modified_files(moment) == [str(run / "sub" / "new")]
    assert isinstance(moment, float)


def test_nothing_written_right_after_the_moment_is_ever_missed(run):
    for number in range(300):
        moment = get_run_directory_timestamp()
        file = run / f"f{number}"
        file.touch()
        assert str(file) in get_modified_files(moment), (moment, file.stat().st_mtime_ns)


def test_a_file_of_exactly_the_moment_is_listed(run):
    (run / "x").touch()
    stamp = (run / "x").stat().st_ctime_ns
    for digits in range(0, 1000, 77):
        later = stamp // 1000 * 1000 + 10**12 + digits
        os.utime(run / "x", ns=(later, later))
        moment = later / 10**9
        exact = Fraction(moment) * 10**9
        assert bool(names(run, moment)) == (Fraction(later) >= exact)


def test_a_hidden_folder_hides_what_it_holds(run):
    """R1."""
    (run / ".hid").mkdir()
    (run / ".hid" / "a.txt").touch()
    (run / ".f").touch()
    assert names(run, 0.0) == []
    assert names(run, 0.0, ignore_hidden=False) == [".f", ".hid/a.txt"]


def test_a_file_moved_copied_or_unpacked_with_old_times_is_listed(run, workplace):
    """R2."""
    source = workplace / "source"
    source.mkdir()
    for name in ("moved", "copied", "unpacked"):
        (source / name).write_text("x")
        os.utime(source / name, ns=(LONG_AGO, LONG_AGO))
    shutil.make_archive(str(workplace / "archive"), "tar", source, "unpacked")
    rest()
    moment = get_run_directory_timestamp()
    (source / "moved").rename(run / "moved")
    shutil.copy2(source / "copied", run / "copied")
    shutil.unpack_archive(workplace / "archive.tar", run, filter="data")
    assert names(run, moment) == ["copied", "moved", "unpacked"]


def test_a_tree_moved_in_as_a_whole_is_listed_and_its_neighbours_are_not(run, workplace):
    """R2."""
    for place in (workplace / "tree", run / "stays"):
        (place / "deep").mkdir(parents=True)
        (place / "deep" / "f").touch()
        (place / "f").touch()
    rest()
    moment = get_run_directory_timestamp()
    (workplace / "tree").rename(run / "tree")
    (run / "stays" / "new").touch()
    assert names(run, moment) == ["stays/new", "tree/deep/f", "tree/f"]


def test_the_hour_that_comes_twice_in_autumn_loses_no_file(workplace):
    """R3: New York, 2023-11-05; a naive datetime of the second 01:50 and a file of the first."""
    code = """
import os, time
from datetime import datetime
from stretto.run_directory import *
set_run_directory("autumn")
run = create_run_directory()
first, second = 1699163400, 1699163400 + 1200   # 01:50 EDT, and 20 minutes on: 01:10 EST
open(run + "/f", "w").close()
os.utime(run + "/f", (second, second))
import stretto.run_directory.changes as changes
changes._latest_ns = lambda entry: entry.fingerprint.mtime_ns   # the change time is today's
for moment in (float(first), datetime.fromtimestamp(first)):
    assert get_modified_files(moment) == [run + "/f"], moment
later = second + 1
assert get_modified_files(datetime.fromtimestamp(later)) == []
assert get_modified_files(float(later)) == []
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TZ": "America/New_York"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_floats_naive_and_aware_datetimes_mean_the_same_moment(run):
    moment = 1_800_000_000.25
    expected = 1_800_000_000_250_000_000
    zones = [UTC, timezone(timedelta(hours=-9, minutes=-30)), ZoneInfo("Europe/Berlin")]
    assert _as_nanoseconds(moment) == expected
    assert _as_nanoseconds(datetime.fromtimestamp(moment)) == expected  # noqa: DTZ006
    for zone in zones:
        assert _as_nanoseconds(datetime.fromtimestamp(moment, zone)) == expected
    assert _as_nanoseconds(1_800_000_000) == 1_800_000_000 * 10**9


@given(st.floats(min_value=-1e10, max_value=1e11))
def test_a_float_is_taken_exactly(moment):
    assert _as_nanoseconds(moment) == math.ceil(Fraction(moment) * 10**9)


@given(
    st.datetimes(
        min_value=datetime(1902, 1, 1),  # noqa: DTZ001
        max_value=datetime(2400, 1, 1),  # noqa: DTZ001
        timezones=st.just(UTC)
        | st.integers(-1439, 1439).map(lambda m: timezone(timedelta(0, m * 60))),
    )
)
def test_a_datetime_is_taken_to_the_microsecond(moment):
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    exact = (delta.days * 86_400 + delta.seconds) * 10**9 + delta.microseconds * 1000
    assert _as_nanoseconds(moment) == exact


@pytest.mark.parametrize("moment", [math.nan, math.inf, -math.inf])
def test_a_moment_that_is_none_is_refused(moment, run):
    with pytest.raises(ValueError, match="modified_since_timestamp"):
        get_modified_files(moment)


@pytest.mark.parametrize("moment", ["2026-01-01", None])
def test_a_moment_of_another_type_is_refused(moment, run):
    with pytest.raises(TypeError, match="modified_since_timestamp"):
        get_modified_files(moment)


def test_links_are_listed_where_they_lead_to_a_file(run, workplace):
    """R6 and R12: dangling links, loops, links to folders, FIFOs and sockets stop nobody."""
    (run / "file").touch()
    (run / "folder").mkdir()
    (run / "to-file").symlink_to("file")
    (run / "to-folder").symlink_to("folder")
    (run / "dangling").symlink_to("/nonexistent")
    (run / "loop").symlink_to("loop")
    os.mkfifo(run / "fifo")
    (run / "to-fifo").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(run / "socket"))
        assert names(run, 0.0) == ["file", "to-file"]


def test_a_link_counts_as_changed_when_its_file_changed(run):
    (run / "to-file").symlink_to("file")
    (run / "file").touch()
    rest()
    moment = get_run_directory_timestamp()
    assert names(run, moment) == []
    (run / "file").write_text("more")
    assert names(run, moment) == ["file", "to-file"]


def test_a_run_directory_that_is_not_there_yet_holds_no_files(workplace):
    assert get_modified_files(0.0) == []
    assert list(workplace.iterdir()) == []


def test_a_folder_that_cannot_be_read_stops_nobody_and_is_told(run, monkeypatch, caplog):
    (run / "a").mkdir()
    (run / "b").touch()
    really = os.open

    def refusing(path: str, flags: int, *args: int, **options: int) -> int:
        if str(path).endswith("/a"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return really(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refusing)
    with caplog.at_level(logging.WARNING, "stretto.run_directory"):
        assert names(run, 0.0) == ["b"]
    assert str(run / "a") in caplog.text


def test_the_ranks_own_folder_is_looked_at_only(run, workplace, monkeypatch):
    """A5."""
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        folder = Path(create_run_directory())
        (folder / "log.txt").write_text(f"rank {rank}")
        assert get_modified_files(0.0) == [str(folder / "log.txt")]
    assert {p.read_text() for p in (workplace / "run").rglob("log.txt")} == {"rank 0", "rank 1"}


def make_run(root: Path, name: str, file: str | None, stamp: int) -> Path:
    (root / name).mkdir(parents=True)
    if file is not None:
        (root / name / file).parent.mkdir(parents=True, exist_ok=True)
        (root / name / file).write_text("x")
        os.utime(root / name / file, ns=(stamp, stamp))
    return root / name


def test_the_latest_run_is_that_with_the_newest_checkpoint(workplace):
    root = workplace / "runs"
    make_run(root, "z-oldest", "checkpoints/ep1.pt", 1_000)
    newest = make_run(root, "a-newest", "rank_0/checkpoints/ep1.pt", 3_000)
    make_run(root, "m-middle", "checkpoints/deep/ep1.pt", 2_000)
    assert find_latest_run() == str(newest)


def test_runs_without_a_whole_checkpoint_do_not_count(workplace):
    root = workplace / "runs"
    make_run(root, "nothing", None, 0)
    make_run(root, "unfinished", "checkpoints/ep1.pt.tmp", 9_000)
    make_run(root, "hidden", "checkpoints/.ep1.pt", 9_000)
    (make_run(root, "empty", "checkpoints/ep1.pt", 9_000) / "checkpoints" / "ep1.pt").write_text("")
    (root / "a-file").write_text("")
    assert find_latest_run() is None
    whole = make_run(root, "whole", "checkpoints/ep1.pt", 1_000)
    assert find_latest_run() == str(whole)


def test_the_latest_run_below_another_root_and_by_another_marker(workplace):
    assert find_latest_run(workplace / "missing") is None
    run = make_run(workplace / "elsewhere", "r", "latest-rank0.pt", 1_000)
    assert find_latest_run("elsewhere") is None
    assert find_latest_run("elsewhere", "latest-rank0.pt") == str(run)
