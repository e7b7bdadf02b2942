"""One uploader a directory, with parents and children; the lock ends with its process."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rundir_uploader.errors import DirectoryLockedError
from rundir_uploader.lock import DirectoryLock, nested_holder, state_folder
from rundir_uploader.processes import ProcessIdentity, host_name

ME = ProcessIdentity.current()
HOLD = """
import sys, time
from pathlib import Path
from rundir_uploader.lock import DirectoryLock
from rundir_uploader.processes import ProcessIdentity
lock = DirectoryLock.acquire(Path(sys.argv[1]), owner=ProcessIdentity.current())
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_one_is_told_which_process_on_which_host(run: Path, start) -> None:
    other = start(HOLD, run)
    assert other.stdout.readline() == "held\n"
    with pytest.raises(DirectoryLockedError) as caught:
        DirectoryLock.acquire(run, owner=ME)
    assert f"process {other.pid} on host {host_name()}" in str(caught.value)
    assert str(run) in str(caught.value)


def test_the_same_process_is_refused_too(run: Path) -> None:
    lock = DirectoryLock.acquire(run, owner=ME)
    with pytest.raises(DirectoryLockedError, match=str(os.getpid())):
        DirectoryLock.acquire(run, owner=ME)
    lock.release()
    lock.release()
    DirectoryLock.acquire(run, owner=ME).release()


def test_a_child_of_a_mirrored_directory_is_refused(run: Path) -> None:
    inner = run / "a" / "b"
    inner.mkdir(parents=True)
    lock = DirectoryLock.acquire(run, owner=ME)
    with pytest.raises(DirectoryLockedError):
        DirectoryLock.acquire(inner, owner=ME)
    lock.release()
    inner_lock = DirectoryLock.acquire(inner, owner=ME)
    assert nested_holder(inner / ".rundir-uploader") == inner_lock.holder
    inner_lock.release()
    assert nested_holder(inner / ".rundir-uploader") is None


def test_no_lock_stays_behind_a_killed_process(run: Path, start) -> None:
    other = start(HOLD, run)
    other.stdout.readline()
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    began = time.monotonic()
    DirectoryLock.acquire(run, owner=ME).release()
    assert time.monotonic() - began < 1.5


def test_a_leaving_holder_is_asked_and_waited_for(run: Path) -> None:
    old = DirectoryLock.acquire(run, owner=ME)
    assert not old.is_asked_for()
    old.set_leaving()

    def leave() -> None:
        while not old.is_asked_for():
            time.sleep(0.01)
        old.release()

    thread = threading.Thread(target=leave)
    thread.start()
    said: list[str] = []
    new = DirectoryLock.acquire(run, owner=ME, waiting=said.append)
    thread.join()
    assert len(said) == 1
    assert "waiting" in said[0]
    assert not new.is_asked_for()
    new.release()


def test_patience_with_a_leaving_holder_ends(run: Path) -> None:
    old = DirectoryLock.acquire(run, owner=ME)
    old.set_leaving()
    with pytest.raises(DirectoryLockedError):
        DirectoryLock.acquire(run, owner=ME, patience=0.3)
    old.release()


def test_a_holder_whose_trainer_is_dead_hands_over_even_if_it_has_not_noticed(run: Path) -> None:
    dead = ProcessIdentity(pid=2**22 - 1, start=1, host=host_name())
    old = DirectoryLock.acquire(run, owner=dead)
    assert old.holder.hands_over()
    elsewhere = ProcessIdentity(pid=1, start=1, host="another-host")
    assert elsewhere.is_alive()
    old.release()


def test_our_folder_is_private(run: Path) -> None:
    lock = DirectoryLock.acquire(run, owner=ME)
    assert state_folder(run).stat().st_mode & 0o777 == 0o700
    assert (state_folder(run) / "lock").stat().st_mode & 0o777 == 0o600
    lock.release()


def test_a_reused_process_number_is_another_process() -> None:
    assert ME.is_alive()
    assert not ProcessIdentity(pid=ME.pid, start=(ME.start or 0) + 1, host=ME.host).is_alive()


def test_a_forked_child_does_not_keep_the_lock(run: Path) -> None:
    lock = DirectoryLock.acquire(run, owner=ME)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0)
    lock.release()
    again = DirectoryLock.acquire(run, owner=ME)
    again.release()
    os.write(write, b"x")
    os.waitpid(child, 0)


def test_our_folder_must_not_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (run / ".rundir-uploader").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError, match="link"):
        DirectoryLock.acquire(run, owner=ME)
    assert list((tmp_path / "elsewhere").iterdir()) == []
