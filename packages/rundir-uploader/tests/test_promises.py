"""What a review found promised and not kept; each test fails without its mend."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rundir_uploader import (
    IncompleteUploadError,
    RunDirectoryUploader,
    Uploader,
    UploaderSettingsError,
)
from rundir_uploader.destination import Destination
from rundir_uploader.processes import ProcessIdentity
from rundir_uploader.ranks import RankPlan, report_rank
from rundir_uploader.session import SessionPlan
from rundir_uploader.settings import MirrorSettings

# A store whose puts take as long as the environment says; in a module, so that it can be pickled.
SLOW_STORE = """
import os, time
from stretto.object_store import LocalStore

class SlowStore(LocalStore):
    def put(self, key, source, **keywords):
        if ".rundir-uploader" not in key:
            time.sleep(float(os.environ["SLOW_PUT"]))
        return super().put(key, source, **keywords)

    def __reduce__(self):
        return SlowStore, (str(self.root),)
"""

INTERRUPTED = """
import os, sys, threading, signal
sys.path.insert(0, sys.argv[3])
from pathlib import Path
import rundir_uploader.process
from rundir_uploader import Uploader
from slow_store import SlowStore
rundir_uploader.process._EXIT_PATIENCE = 0.5
uploader = Uploader(Path(sys.argv[1]), SlowStore(sys.argv[2])).start()
print(uploader.pid, flush=True)
threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    uploader.close()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.slow
def test_an_interrupted_close_leaves_the_upload_to_the_process(
    run: Path, tmp_path: Path, start, eventually, gone
) -> None:
    (tmp_path / "slow_store.py").write_text(SLOW_STORE)
    (run / "checkpoint.pt").write_bytes(b"x" * 1000)
    destination = tmp_path / "store"
    script = start(INTERRUPTED, run, destination, tmp_path, env={"SLOW_PUT": "5"})
    pid = int(script.stdout.readline())
    assert script.stdout.readline() == "interrupted\n"
    assert script.wait(10) == 0
    gone(pid, 60)
    assert (destination / "checkpoint.pt").read_bytes() == b"x" * 1000
    assert "unexpectedly" not in script.stderr.read()


def test_triggers_never_wait_and_a_status_keeps_its_limit_when_the_process_stands_still(
    run: Path, tmp_path: Path
) -> None:
    (run / "file").write_text("content")
    uploader = Uploader(run, tmp_path / "store").start()
    assert uploader.pid is not None
    try:
        os.kill(uploader.pid, signal.SIGSTOP)
        for _ in range(40_000):  # more than a pipe holds
            uploader.trigger()
        process = uploader._process
        assert process is not None
        asking = threading.Thread(target=process.status, args=(1.0,), daemon=True)
        asking.start()
        time.sleep(0.2)
        began = time.monotonic()
        calling = threading.Thread(target=uploader.trigger, daemon=True)
        calling.start()
        calling.join(5)
        assert not calling.is_alive()
        asking.join(5)
        assert not asking.is_alive()
        assert time.monotonic() - began < 3
    finally:
        os.kill(uploader.pid, signal.SIGCONT)
        uploader.close()


def fill(pipe: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"\n" * 4096)


def test_a_full_pipe_neither_blocks_a_trigger_nor_outlasts_the_limit_of_a_status(
    run: Path, tmp_path: Path
) -> None:
    uploader = Uploader(run, tmp_path / "store").start()
    process = uploader._process
    assert process is not None
    assert uploader.pid is not None
    try:
        os.kill(uploader.pid, signal.SIGSTOP)
        fill(process._input)
        asking = threading.Thread(target=process.status, args=(1.0,), daemon=True)
        asking.start()
        time.sleep(0.2)
        calling = threading.Thread(target=uploader.trigger, daemon=True)
        calling.start()
        calling.join(0.6)
        assert not calling.is_alive()
        asking.join(5)
        assert not asking.is_alive()
    finally:
        os.kill(uploader.pid, signal.SIGCONT)
        uploader.close()


def test_a_rank_that_lives_is_waited_for_however_long(run: Path) -> None:
    report_rank(run, 1, finished=False)
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > 7200:
            report_rank(run, 1, finished=True)

    plan = RankPlan.begin(run, 2)
    assert plan.wait(run, clock=lambda: now, sleep=sleep) == []
    assert now > 7200


def test_a_rank_that_outlives_the_limit_of_a_close_is_named_as_missing(
    run: Path, tmp_path: Path
) -> None:
    (run / "file").write_text("content")
    report_rank(run, 1, finished=False)  # by this process, which lives
    plan = SessionPlan(
        mirror=MirrorSettings(directory=run),
        destination=Destination.of(tmp_path / "store"),
        owner=ProcessIdentity.current(),
        ranks=RankPlan.begin(run, 2),
    )
    uploader = Uploader.from_plan(plan, use_procs=True).start()
    with pytest.raises(IncompleteUploadError) as caught:
        uploader.close(2)
    assert any("local rank 1" in reason for _, reason in caught.value.missing)
    assert (tmp_path / "store" / "file").read_text() == "content"


def test_verify_names_a_link_whose_object_names_another_file(run, tmp_path, command) -> None:
    store = tmp_path / "store"
    (run / "sub").mkdir()
    (run / "sub" / "b.txt").write_text("in sub")
    (run / "b.txt").write_text("above")
    (run / "link").symlink_to("sub/b.txt")
    assert command("sync", run, store).returncode == 0
    assert command("verify", run, store).returncode == 0
    (run / "link").unlink()
    (run / "link").symlink_to("b.txt")
    checked = command("verify", run, store)
    assert checked.returncode == 1, checked.stdout
    assert "content: link.symlink" in checked.stdout


def test_verify_knows_a_link_that_was_stored_from_further_up(run, tmp_path, command) -> None:
    """The callback puts the directory's name before keys; the command's URL has it at its end."""
    (run / "sub").mkdir()
    (run / "sub" / "b.txt").write_text("in sub")
    (run / "link").symlink_to("sub/b.txt")
    with Uploader(run, tmp_path / "store", prefix="deep/two", use_procs=False):
        pass
    link = tmp_path / "store" / "deep" / "two" / "link.symlink"
    assert link.read_text() == "deep/two/sub/b.txt"
    assert command("verify", run, tmp_path / "store" / "deep" / "two").returncode == 0
    link.write_text("deep/other/sub/b.txt")
    assert command("verify", run, tmp_path / "store" / "deep" / "two").returncode == 1


def test_verify_leaves_out_of_the_store_what_it_leaves_out_of_the_directory(
    run, tmp_path, command
) -> None:
    store = tmp_path / "store"
    (run / "sub").mkdir()
    for name in ("a.txt", "b.log", ".hidden", "sub/c.txt"):
        (run / name).write_text(name)
    (run / "link").symlink_to("sub/c.txt")
    assert command("sync", run, store).returncode == 0
    for selection in (
        ("--exclude", "*.log"),
        ("--exclude", "sub"),
        ("--include", "*.log"),
        ("--no-hidden",),
    ):
        checked = command("verify", run, store, *selection)
        assert checked.returncode == 0, (selection, checked.stdout)
    (store / "other.txt").write_text("nobody's")
    for selection in ((), ("--exclude", "*.log")):
        checked = command("verify", run, store, *selection)
        assert checked.returncode == 1, selection
        assert "extra: other.txt" in checked.stdout


def test_verify_makes_no_store_where_there_is_none(run, tmp_path, command) -> None:
    (run / "file").write_text("content")
    checked = command("verify", run, tmp_path / "typo" / "x")
    assert checked.returncode == 3, checked.stdout
    assert f"{tmp_path}/typo/x" in checked.stderr
    assert not (tmp_path / "typo").exists()


INTERRUPTED_SYNC = """
import os, signal, sys, threading, time
from pathlib import Path
from rundir_uploader.destination import Destination
from rundir_uploader.session import SessionPlan
from rundir_uploader.settings import MirrorSettings
from rundir_uploader.sync import sync
from stretto.object_store import LocalStore

class SlowStore(LocalStore):
    def put(self, key, source, **keywords):
        if key == "slow":
            print("begun", flush=True)
            time.sleep(1)
        if ".rundir-uploader" in key:
            time.sleep(2)
        return super().put(key, source, **keywords)

plan = SessionPlan(
    mirror=MirrorSettings(directory=Path(sys.argv[1])),
    destination=Destination.of(SlowStore(sys.argv[2])),
    check=False,
    probe=False,
)
report = sync(plan, lambda *said: None, poll=5.0)
alive = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
print(report.interrupted, alive, flush=True)
"""


@pytest.mark.slow
def test_an_interrupted_sync_ends_after_its_transfers_and_its_thread(
    run: Path, tmp_path: Path, start, command
) -> None:
    (run / "slow").write_text("content")
    store = tmp_path / "store"
    script = start(INTERRUPTED_SYNC, run, store)
    assert script.stdout.readline() == "begun\n"
    time.sleep(0.3)
    os.kill(script.pid, signal.SIGINT)
    said, errors = script.communicate(timeout=30)
    assert said.startswith("True []"), (said, errors)
    assert errors == ""
    before = (store / "slow").stat()
    assert command("sync", run, store).returncode == 0
    assert (store / "slow").stat() == before  # not sent again
    assert (store / "slow").read_text() == "content"


@pytest.mark.slow
def test_a_store_that_cannot_be_reached_is_told_once_with_its_address(run, command) -> None:
    (run / "file").write_text("content")
    nowhere = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "S3_ENDPOINT_URL": "",
        "AWS_ENDPOINT_URL_S3": "",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    for arguments in (("verify",), ("sync", "--timeout", "8")):
        done = command(*arguments, run, "s3://bucket/prefix", env=nowhere)
        assert done.returncode == 3, done.stdout + done.stderr
        assert "stamina" not in done.stdout + done.stderr
        assert "retry_scheduled" not in done.stdout + done.stderr
        last = done.stderr.strip().splitlines()[-1]
        assert "s3://bucket/prefix" in last
        assert "http://127.0.0.1:9" in last
        assert "AWS_ENDPOINT_URL" in last


@pytest.mark.slow
def test_the_log_of_the_process_has_no_line_for_every_attempt(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    (run / "file").write_text("content")
    plan = SessionPlan(
        mirror=MirrorSettings(directory=run),
        destination=Destination.of("s3://bucket/prefix"),
        strict=False,
    )
    uploader = Uploader.from_plan(plan, use_procs=True).start(60)
    with pytest.raises(IncompleteUploadError):
        uploader.close(5)
    log = (run / ".rundir-uploader" / "worker.log").read_text()
    assert "the connection failed" in log
    assert "retry_scheduled" not in log


@pytest.mark.parametrize(
    "wrong",
    [
        {"no_progress_timeout": -1},
        {"no_progress_timeout": 0},
        {"no_progress_timeout": float("nan")},
        {"no_progress_timeout": "600"},
        {"rank_grace": -1},
        {"rank_grace": None},
    ],
)
def test_seconds_that_cannot_be_used_are_refused_at_construction(tmp_path, wrong) -> None:
    (name,) = wrong
    with pytest.raises(UploaderSettingsError, match=name):
        RunDirectoryUploader(tmp_path / "store", **wrong)
    RunDirectoryUploader(tmp_path / "store", rank_grace=0)
