"""The uploader's own process: ``python -m rundir_uploader.worker``.

It is started by `rundir_uploader.process`, reads its plan from standard input, and lives until it
is told to close, or until the trainer is gone and all is stored.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import threading
import time
from typing import Any, BinaryIO, cast

from rundir_uploader.errors import UploaderError
from rundir_uploader.messages import FrameWriter, read_frame
from rundir_uploader.mirror import Missing
from rundir_uploader.ranks import RankPlan
from rundir_uploader.session import Session, SessionPlan
from stretto.object_store.retry import keep_attempts_quiet

_POLL = 0.2
_GRACE = 30.0
_NICE = 5


class Worker:
    """Serves one trainer.

    Args:
        plan: What to do.
        commands: Descriptor that the trainer writes commands to.
        replies: Where answers go.
    """

    def __init__(self, plan: SessionPlan, commands: int, replies: FrameWriter) -> None:
        self._plan = plan
        self._commands = commands
        self._replies = replies
        self._buffer = b""
        self._terminated_at: float | None = None
        self._close_request: dict[str, Any] | None = None
        self._nested_looked_at = False
        self._session: Session | None = None

    def run(self) -> int:
        """Work to the end.

        Returns:
            The exit status: 0 if everything is stored, 1 if not, 3 if it could not begin.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            session = self._session = Session(self._plan, self._report)
            session.start()
        except Exception as error:  # the trainer is told, whatever it is
            self._log("warning", f"could not begin: {type(error).__name__}: {error}")
            self._replies.send({"ready": False, "error": error})
            return 3
        self._replies.send({"ready": True, "status": session.status().to_dict()})
        if self._serve(session):
            missing = self._finish(session, told=True)
        else:
            self._log("info", "the trainer is gone; scanning a last time")
            session.lock.set_leaving()
            missing = self._finish(session, told=False)
        for path, reason in missing:
            self._log("warning", f"not stored: {path!r}: {reason}")
        if not missing:
            self._log("info", "everything is stored")
        return 1 if missing else 0

    def _serve(self, session: Session) -> bool:
        """Serve until told to close (True), or until the trainer is gone (False)."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._commands, selectors.EVENT_READ)
            watch = _open_pidfd(self._plan)
            if watch is not None:
                selector.register(watch, selectors.EVENT_READ)
            try:
                while True:
                    ready = {key.fd for key, _ in selector.select(1.0)}
                    if self._commands in ready and not self._read_commands(session):
                        return False
                    if self._close_request is not None:
                        return True
                    if (watch in ready) if watch is not None else not self._plan.owner.is_alive():
                        return False
                    self._look_for_nested(session)
            finally:
                if watch is not None:
                    os.close(watch)

    def _look_for_nested(self, session: Session) -> None:
        """Give way to uploaders below, if the first scan took too long to be waited for."""
        if self._nested_looked_at or session.mirror.report.generation == 0:
            return
        self._nested_looked_at = True
        try:
            session.refuse_nested()
        except UploaderError as error:
            self._log("warning", str(error))
            self._replies.send({"ready": False, "error": error})
            raise SystemExit(3) from error

    def _read_commands(self, session: Session) -> bool:
        data = os.read(self._commands, 65536)
        if not data:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if b"t" in lines:
            session.mirror.trigger()
        for line in lines:
            if line and line != b"t":
                self._obey(session, cast("dict[str, Any]", json.loads(line)))
        return True

    def _obey(self, session: Session, request: dict[str, Any]) -> None:
        if request["do"] == "close":
            self._close_request = request
        elif request["do"] == "flush":
            threading.Thread(
                target=self._flush, args=(session, request), name="flush", daemon=True
            ).start()
        elif request["do"] == "stage":
            session.stage()
            self._answer(session, request, [])
        elif request["do"] == "status":
            self._answer(session, request, [])

    def _flush(self, session: Session, request: dict[str, Any]) -> None:
        self._answer(session, request, session.flush(request.get("timeout")))

    def _answer(self, session: Session, request: dict[str, Any], missing: Missing) -> None:
        status = session.status().to_dict()
        self._replies.send({"id": request["id"], "missing": missing, "status": status})

    def _finish(self, session: Session, *, told: bool) -> Missing:
        """Wait for the other ranks, store what is left, and let go.

        A trainer that is gone leaves this process interruptible: by the next uploader, which
        takes over from the journal, and by a signal, after some time to finish.
        """
        request = self._close_request or {}
        timeout = cast("float | None", request.get("timeout"))
        stopped = threading.Event()
        done: list[Missing] = []

        def work() -> None:
            began = time.monotonic()
            left: Missing = []
            if self._plan.ranks is not None:
                left = self._wait_for_ranks(self._plan.ranks, stopped, timeout)
            if not stopped.is_set():
                # What the ranks took is gone; one look is owed all the same.
                rest = timeout and max(1.0, timeout - (time.monotonic() - began))
                done.append(session.mirror.close(rest) + left)

        worker = threading.Thread(target=work, name="finish", daemon=True)
        worker.start()
        while worker.is_alive():
            worker.join(_POLL)
            if worker.is_alive() and self._must_leave(session, told=told):
                stopped.set()
                session.mirror.stop()
                worker.join()
                break
        missing = done[0] if done else [(".", "left to the uploader that takes over")]
        status = session.status().to_dict()
        session.abandon()
        if told:
            self._replies.send({"id": request["id"], "missing": missing, "status": status})
        return missing

    def _wait_for_ranks(
        self, ranks: RankPlan, stopped: threading.Event, timeout: float | None
    ) -> Missing:
        """Wait until no other rank writes any more; return those that may go on, as missing."""
        deadline = None if timeout is None else time.monotonic() + timeout

        def give_up() -> bool:
            late = deadline is not None and time.monotonic() >= deadline
            return stopped.is_set() or late

        left = ranks.wait(self._plan.mirror.directory, give_up=give_up)
        reasons = [f"local rank {rank} did not say that it has finished" for rank in left]
        for reason in reasons:
            self._report("warning", f"{reason}; what it still writes is not stored")
        return [(".", reason) for reason in reasons]

    def _must_leave(self, session: Session, *, told: bool) -> bool:
        if told and self._plan.owner.is_alive():
            return False
        if session.lock.is_asked_for():
            self._log("info", "another uploader takes over")
            return True
        return self._terminated_at is not None and time.time() - self._terminated_at > _GRACE

    def _on_signal(self, number: int, _frame: object) -> None:
        """Hurry, but do not die while there is a trainer to serve: it may be writing still."""
        if number == signal.SIGTERM:
            self._terminated_at = time.time()
        if self._session is not None and self._plan.owner.is_alive():
            threading.Thread(target=self._session.mirror.trigger, daemon=True).start()

    def _report(self, level: str, sentence: str) -> None:
        self._log(level, sentence)
        self._replies.send({"log": level, "sentence": sentence})

    def _log(self, level: str, sentence: str) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = f"{when} {os.getpid()} {level}: {sentence}\n"
        with contextlib.suppress(OSError):
            os.write(2, line.encode("utf-8", "backslashreplace"))


def _open_pidfd(plan: SessionPlan) -> int | None:
    """Return a descriptor that becomes readable when the trainer ends; None where there is none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        descriptor = os.pidfd_open(plan.owner.pid)
    except ProcessLookupError:
        read, write = os.pipe()
        os.close(write)
        return read
    except OSError:
        return None
    return descriptor


def main() -> int:
    """Read the plan from standard input and work.

    Returns:
        The exit status.
    """
    replies = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not get between the frames
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    keep_attempts_quiet()
    commands = cast("BinaryIO", os.fdopen(0, "rb", buffering=0, closefd=False))
    places = cast("list[str]", read_frame(commands) or [])
    sys.path += [place for place in places if place and place not in sys.path]
    writer = FrameWriter(replies)
    try:
        plan = cast("SessionPlan", read_frame(commands))
    except Exception as error:  # such as a store whose module is not to be found here
        writer.send({"ready": False, "error": error})
        return 3
    return Worker(plan, 0, writer).run()


if __name__ == "__main__":
    sys.exit(main())
