"""The trainer's end of the uploader's own process: start it, talk to it, start it again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from rundir_uploader.conditions import Report
from rundir_uploader.errors import WorkerError
from rundir_uploader.forks import close_guarded, guard, is_guarded
from rundir_uploader.lock import state_folder
from rundir_uploader.messages import TRIGGER, encode_frame, read_frame, unread
from rundir_uploader.mirror import Missing
from rundir_uploader.session import SessionPlan
from rundir_uploader.status import UploadStatus

LOG_NAME = "worker.log"
_MAX_LOG = 1 << 20
_LOG_TAIL = 2000
_QUICK_DEATH = 10.0
_MAX_QUICK_DEATHS = 5
_MAX_BACKOFF = 60.0
_EXIT_PATIENCE = 30.0
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Request:
    """Something that was asked for and is not answered yet."""

    line: bytes
    answered: threading.Event = field(default_factory=threading.Event)
    reply: dict[str, Any] = field(default_factory=dict[str, Any])
    error: BaseException | None = None


class WorkerProcess:
    """Runs a session in a process of its own, which outlives this one if it has to.

    Args:
        plan: What to do.
        report: Where sentences about what is wrong go; called from another thread.

    Attributes:
        restarts: How often the process had to be started again.
    """

    def __init__(self, plan: SessionPlan, report: Report) -> None:
        self._plan = plan
        self._report = report
        self._lock = threading.Lock()
        self._pipe_lock = threading.Lock()  # never held while anything waits
        self._trigger_is_last = False
        self._process: subprocess.Popen[bytes] | None = None
        self._input = -1
        self._requests: dict[int, _Request] = {}
        self._next_id = 0
        self._ready = threading.Event()
        self._start_error: BaseException | None = None
        self._began = False
        self._closing = False
        self._ended = False
        self._dead: WorkerError | None = None
        self._reader: threading.Thread | None = None
        self._last_status = UploadStatus()
        self.restarts = 0

    def start(self, timeout: float | None = None) -> bool:
        """Start the process and wait until it mirrors.

        Args:
            timeout: Seconds to wait; None for as long as it takes.

        Returns:
            Whether it is ready; False if it may still become so.

        Raises:
            Exception: What kept it from beginning, as `Session` raised it.
            WorkerError: The process ended without a word.
        """
        output = self._spawn()
        self._reader = threading.Thread(
            target=self._read_loop, args=(output,), name="rundir-uploader-reader", daemon=True
        )
        self._reader.start()
        ready = self._ready.wait(timeout)
        if self._start_error is not None:
            self._reap()
            raise self._start_error
        return ready

    def trigger(self) -> None:
        """Ask for a scan: at most one short write, which never waits."""
        with self._pipe_lock:
            if not is_guarded(self._input):
                return
            if self._trigger_is_last and unread(self._input):
                return  # one that was not read yet speaks for this one too
            # A broken pipe is the reader's business; a full one is as good as a trigger.
            with contextlib.suppress(OSError):
                os.write(self._input, TRIGGER)
                self._trigger_is_last = True

    def stage(self) -> None:
        """See `Session.stage`; waits for the copies."""
        with contextlib.suppress(WorkerError):  # the next flush tells
            self._ask({"do": "stage"})

    def flush(self, timeout: float | None = None) -> Missing:
        """See `Mirror.flush`.

        Args:
            timeout: Seconds after which to give up.
        """
        return self._missing(self._ask({"do": "flush", "timeout": timeout}))

    def close(self, timeout: float | None = None) -> Missing:
        """See `Mirror.close`; waits for the end of the process.

        Interrupted, as by Ctrl-C, it leaves the process alone, which then stores the rest.

        Args:
            timeout: Seconds after which to give up.
        """
        self._closing = True
        try:
            missing = self._missing(self._ask({"do": "close", "timeout": timeout}))
        except WorkerError:  # it is gone already
            self._ended = True
            self._reap()
            raise
        except BaseException:
            self._ended = True
            self.kill_input()
            raise
        self._ended = True
        self._reap()
        return missing

    def status(self, timeout: float = 5.0) -> UploadStatus:
        """Return how things are, or how they were when the process last answered.

        Args:
            timeout: Seconds to wait for an answer.
        """
        if not self._ended:
            with contextlib.suppress(WorkerError, TimeoutError):
                self._ask({"do": "status"}, timeout)
        problem = str(self._dead or self._last_status.problem)
        return replace(self._last_status, restarts=self.restarts, problem=problem)

    def kill_input(self) -> None:
        """Close the pipe: the process takes it that the trainer is gone."""
        self._closing = True
        self._close_input()

    @property
    def pid(self) -> int | None:
        """Number of the process; None while there is none."""
        return self._process.pid if self._process is not None else None

    def _missing(self, reply: dict[str, Any]) -> Missing:
        return [(path, reason) for path, reason in reply["missing"]]

    def _ask(self, request: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            if self._dead is not None:
                raise self._dead
            number = self._next_id = self._next_id + 1
            line = json.dumps({**request, "id": number}).encode() + b"\n"
            asked = self._requests[number] = _Request(line)
        try:
            self._send_line(line, deadline)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not asked.answered.wait(left):
                raise TimeoutError("the uploader's own process did not answer in time")
        finally:  # nobody waits for it any more, whatever ended the wait
            with self._lock:
                self._requests.pop(number, None)
        if asked.error is not None:
            raise asked.error
        return asked.reply

    def _send_line(self, line: bytes, deadline: float | None = None) -> None:
        """Write a line; if the process is gone, the next one gets it.

        A line is far shorter than what a pipe takes in one piece, so it goes whole or not at all.
        """
        while True:
            with self._pipe_lock:
                if self._input < 0:
                    return
                try:
                    os.write(self._input, line)
                except BlockingIOError:
                    pass
                except OSError:
                    return
                else:
                    self._trigger_is_last = False
                    return
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("the uploader's own process does not read what it is sent")
            time.sleep(0.01)

    def _spawn(self) -> BinaryIO:
        if not sys.executable:
            raise WorkerError(
                "this Python does not know its own executable, so no second process can be "
                "started; pass use_procs=False"
            )
        # -P: what lies in the working directory must not stand in for the standard library.
        command = [sys.executable, "-P", "-m", "rundir_uploader.worker"]
        with _open_log(self._plan.mirror.directory) as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=_environment(),
            )
        stdin, stdout = cast("BinaryIO", process.stdin), cast("BinaryIO", process.stdout)
        with contextlib.suppress(BrokenPipeError):  # it died at once: the reader finds out
            stdin.write(encode_frame(sys.path) + encode_frame(self._plan))
            stdin.flush()
        with self._pipe_lock:
            self._process = process
            self._trigger_is_last = False
            self._input = os.dup(stdin.fileno())
            os.set_blocking(self._input, False)
            guard(self._input)
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        return stdout

    def _read_loop(self, output: BinaryIO) -> None:
        quick_deaths = 0
        while True:
            began = time.monotonic()
            with output:
                while (message := _read_message(output)) is not None:
                    self._on_message(message)
            code = self._reap()
            if self._is_over():
                return
            quick_deaths = quick_deaths + 1 if time.monotonic() - began < _QUICK_DEATH else 1
            if not self._began or quick_deaths > _MAX_QUICK_DEATHS:
                self._give_up(code)
                return
            self._report(
                "warning",
                f"the uploader's own process ended unexpectedly ({_describe(code)}); it is started "
                "again and goes on from its journal",
            )
            time.sleep(min(_MAX_BACKOFF, 0.2 * 2.0 ** (quick_deaths - 1)))
            self.restarts += 1
            self._plan = self._plan.lenient()
            try:
                output = self._spawn()
            except Exception as error:  # told to whoever asks next
                self._give_up(code, error)
                return
            with self._lock:
                lines = [request.line for request in self._requests.values()]
            for line in lines:
                self._send_line(line)

    def _is_over(self) -> bool:
        """Whether the process was meant to end, or never came to begin."""
        with self._lock:
            return self._start_error is not None or (self._closing and not self._requests)

    def _on_message(self, message: dict[str, Any]) -> None:
        if "log" in message:
            self._report(message["log"], message["sentence"])
            return
        if "status" in message:
            self._last_status = UploadStatus.from_dict(message["status"])
        if "ready" in message:
            if message["ready"]:
                self._began = True
                self._ready.set()
            else:
                self._refused(message["error"])
            return
        with self._lock:
            asked = self._requests.pop(message["id"], None)
        if asked is not None:
            asked.reply = message
            asked.answered.set()

    def _refused(self, error: BaseException) -> None:
        """Take in why a process did not begin; a restarted one is not asked to try again."""
        self._start_error = error
        self._ready.set()
        dead = WorkerError(f"the uploader's own process could not begin: {error}")
        dead.__cause__ = error
        self._fail_all(dead)

    def _give_up(self, code: int | None, error: Exception | None = None) -> None:
        tail = _log_tail(self._plan.mirror.directory)
        why = f"cannot be started: {error}" if error else f"keeps dying ({_describe(code)})"
        dead = WorkerError(
            f"the uploader's own process {why}. The end of its log:\n{tail}\n"
            "Mend that, or pass use_procs=False."
        )
        if not self._began:
            self._start_error = dead
        self._fail_all(dead)
        self._report("warning", str(dead))
        self._ready.set()

    def _fail_all(self, error: WorkerError) -> None:
        with self._lock:
            self._dead = error
            waiting, self._requests = self._requests, {}
        for request in waiting.values():
            request.error = error
            request.answered.set()

    def _close_input(self) -> None:
        with self._pipe_lock:
            if self._input >= 0:
                close_guarded(self._input)
                self._input = -1

    def _reap(self) -> int | None:
        """Wait for a process that has said its last word, or that ended; kill it if it hangs."""
        self._close_input()
        process = self._process
        if process is None:
            return None
        try:
            return process.wait(_EXIT_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _environment() -> dict[str, str]:
    """Return this environment without what would make the child's Python behave differently."""
    dropped = ("PYTHONINSPECT", "PYTHONSTARTUP")
    return {name: value for name, value in os.environ.items() if name not in dropped}


@contextlib.contextmanager
def _open_log(directory: Path) -> Generator[int]:
    path = state_folder(directory) / LOG_NAME
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        if os.fstat(descriptor).st_size > _MAX_LOG:
            os.ftruncate(descriptor, 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _log_tail(directory: Path) -> str:
    try:
        data = (state_folder(directory) / LOG_NAME).read_bytes()
    except OSError as error:
        return f"(no log: {error})"
    return data[-_LOG_TAIL:].decode("utf-8", "replace").strip()


def _read_message(output: BinaryIO) -> dict[str, Any] | None:
    try:
        return read_frame(output)
    except Exception:  # a torn frame is the end of the process
        _logger.debug("a frame of the uploader's process could not be read", exc_info=True)
        return None


def _describe(code: int | None) -> str:
    if code is None:
        return "not started"
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"
