"""Bring a directory into a store once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rundir_uploader.conditions import Report
from rundir_uploader.mirror import Missing
from rundir_uploader.session import Session, SessionPlan
from rundir_uploader.status import UploadStatus

_POLL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What a sync did.

    Attributes:
        missing: Pairs of a path that is not stored, and the reason.
        status: How things stood at the end.
        seconds: How long it took.
        interrupted: Whether it was stopped before it was done.
    """

    missing: Missing
    status: UploadStatus
    seconds: float
    interrupted: bool = False


def sync(
    plan: SessionPlan,
    report: Report,
    *,
    timeout: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    poll: float = _POLL,
) -> SyncReport:
    """Store everything that is on disk now.

    A KeyboardInterrupt lets the transfers in flight end, so that the next time goes on from there.

    Args:
        plan: What to do.
        report: Where sentences about what is wrong go.
        timeout: Seconds after which to give up; None to wait as long as anything succeeds.
        progress: Called now and then with files done and files in all.
        poll: Seconds between these calls.

    Raises:
        DirectoryLockedError: Another uploader has the directory.
        ObjectStoreError: The store refuses.
    """
    began = time.monotonic()
    session = Session(plan, report)
    done: list[Missing] = []
    ended = threading.Event()

    def work() -> None:
        try:
            done.append(session.mirror.close(timeout))
        finally:
            ended.set()

    # Not joined: a join that Ctrl-C interrupts takes the thread for ended, on Python before 3.13.
    worker = threading.Thread(target=work, name="rundir-uploader-sync")
    interrupted = False
    session.start(scan=False)
    try:
        worker.start()
        while not ended.wait(poll):
            if progress is not None:
                progress(*session.mirror.progress())
        if progress is not None:
            progress(*session.mirror.progress())
        session.refuse_nested()
    except KeyboardInterrupt:
        interrupted = True
        session.mirror.stop()
        if worker.ident is not None:
            ended.wait()
    status = session.status()
    session.abandon()
    return SyncReport(
        missing=done[0] if done else [(".", "the sync ended with an error")],
        status=status,
        seconds=time.monotonic() - began,
        interrupted=interrupted,
    )
