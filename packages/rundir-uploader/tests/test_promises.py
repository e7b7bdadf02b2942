"""What a review found promised and not kept; each test fails without its mend."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rundir_uploader import IncompleteUploadError, RunDirectoryUploader, Uploader
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


def test_a_full_pipe_neither_blocks_a_trigger_nor_outlasts_the_limit_of_a_status(
    run: Path, tmp_path: Path
) -> None:
    uploader = Uploader(run, tmp_path / "store").start()
    process = uploader._process
    assert process is not None
    assert uploader.pid is not None
    try:
        os.kill(uploader.pid, signal.SIGSTOP)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(process._input, b"\n" * 4096)
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
    from rundir_uploader.destination import Destination

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
