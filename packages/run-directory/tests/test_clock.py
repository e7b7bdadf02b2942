from __future__ import annotations

import errno
import math
import os
import threading
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.run_directory import get_run_directory_timestamp
from stretto.run_directory.clock import filesystem_now_ns, to_float_seconds


def without_nameless_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)


@pytest.mark.parametrize("nameless", [True, False])
def test_the_clock_is_that_which_stamps_files_and_never_ahead_of_it(
    nameless, tmp_path, monkeypatch
):
    if not nameless:
        without_nameless_files(monkeypatch)
    for number in range(100):
        now = filesystem_now_ns(tmp_path)
        file = tmp_path / str(number)
        file.touch()
        assert now <= file.stat().st_mtime_ns < now + 5 * 10**9


@pytest.mark.parametrize("nameless", [True, False])
def test_asking_leaves_nothing_behind(nameless, tmp_path, monkeypatch):
    """R9."""
    if not nameless:
        without_nameless_files(monkeypatch)
    (tmp_path / "x").touch()
    filesystem_now_ns(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_nameless_probe_does_not_touch_the_folder(tmp_path):
    """R9: where the kernel can, the folder's own times stay as they are."""
    if not hasattr(os, "O_TMPFILE"):
        pytest.skip("no nameless files here")
    before = tmp_path.stat().st_mtime_ns
    time.sleep(0.02)
    filesystem_now_ns(tmp_path)
    assert tmp_path.stat().st_mtime_ns == before


def test_threads_do_not_meet_in_one_name(tmp_path, monkeypatch):
    """R9."""
    without_nameless_files(monkeypatch)
    answers: list[int] = []

    def ask() -> None:
        answers.extend(filesystem_now_ns(tmp_path, system_now_ns=lambda: -1) for _ in range(50))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 400
    assert min(answers) > 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_full_or_read_only_disk_is_answered_for_by_the_system(code, tmp_path, monkeypatch):
    """R8 and R9."""

    def refuse(*args: object, **options: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refuse)
    assert filesystem_now_ns(tmp_path, system_now_ns=lambda: 42) == 42
    assert abs(get_run_directory_timestamp() - time.time()) < 5


def test_the_systems_answer_is_not_ahead_of_the_files_either(tmp_path, monkeypatch):
    """The kernel stamps with a coarse clock that runs behind `time.time`."""
    really = os.open
    for number in range(100):

        def refuse(*args: object, **options: object) -> int:
            raise OSError(errno.EROFS, "read-only")

        monkeypatch.setattr(os, "open", refuse)
        now = filesystem_now_ns(tmp_path)
        monkeypatch.setattr(os, "open", really)
        file = tmp_path / str(number)
        file.touch()
        assert now <= file.stat().st_mtime_ns


def test_a_run_directory_that_is_not_there_is_not_created_for_the_question(workplace):
    """R8."""
    assert abs(get_run_directory_timestamp() - time.time()) < 5
    assert list(workplace.iterdir()) == []


def test_a_missing_folder_is_answered_for_by_its_parent(tmp_path):
    assert filesystem_now_ns(tmp_path / "a" / "b") > 0
    assert filesystem_now_ns(Path("a/b")) > 0


@given(st.integers(min_value=-(10**18), max_value=4 * 10**18))
def test_seconds_are_the_latest_float_that_is_not_later(nanoseconds):
    seconds = to_float_seconds(nanoseconds)
    exact = Fraction(nanoseconds, 10**9)
    assert Fraction(seconds) <= exact < Fraction(math.nextafter(seconds, math.inf))
