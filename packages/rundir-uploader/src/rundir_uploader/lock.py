"""One uploader a directory, its parents and its children included."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from rundir_uploader.errors import DirectoryLockedError
from rundir_uploader.forks import close_guarded, guard, is_guarded
from rundir_uploader.keys import STATE_FOLDER
from rundir_uploader.processes import ProcessIdentity

LOCK_NAME = "lock"
HANDOVER_NAME = "handover"
_PRIVATE = 0o700
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_POLL = 0.1
_UNKNOWN_PATIENCE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lock.

    Attributes:
        process: The uploader itself.
        owner: The process it works for: a trainer, or itself.
        since: Seconds since the epoch when it took the lock.
        leaving: Whether it only finishes what its trainer left behind.
    """

    process: ProcessIdentity
    owner: ProcessIdentity
    since: float
    leaving: bool = False

    def hands_over(self) -> bool:
        """Whether it gives the directory to the next one that asks."""
        return self.leaving or (self.owner.is_here() and not self.owner.is_alive())

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.since))
        works_for = "" if self.owner == self.process else f", working for process {self.owner.pid}"
        return f"process {self.process.pid} on host {self.process.host}{works_for}, since {since}"


def state_folder(directory: Path) -> Path:
    """Return our folder in a directory, made if it is missing, and private.

    Args:
        directory: The mirrored directory.

    Raises:
        NotADirectoryError: Something else, or a link, has its name.
    """
    folder = directory / STATE_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(20, "must be a folder, not a link; remove it", str(folder))
    if stat.S_IMODE(status.st_mode) != _PRIVATE:
        folder.chmod(_PRIVATE)
    return folder


class DirectoryLock:
    """A held lock; see `acquire`."""

    def __init__(self, folder: Path, descriptor: int, holder: Holder) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self.holder = holder

    @classmethod
    def acquire(
        cls,
        directory: Path,
        *,
        owner: ProcessIdentity,
        patience: float = 600.0,
        waiting: Callable[[str], None] | None = None,
    ) -> DirectoryLock:
        """Take the lock of a directory, or say who has it.

        A holder whose trainer is gone is asked to leave, and waited for while it finishes the
        transfers it is in.

        Args:
            directory: What is to be mirrored; exists.
            owner: The process on whose behalf.
            patience: Seconds to wait for a holder that is leaving.
            waiting: Called once with a sentence if there is something to wait for.

        Raises:
            DirectoryLockedError: Another uploader holds the directory or a parent of it.
        """
        folder = state_folder(directory)
        deadline = time.monotonic() + patience
        wait = _Wait(deadline, waiting)
        descriptor = wait.until_free(folder / LOCK_NAME, lambda: _try_exclusive(folder))
        try:
            real = Path(os.path.realpath(directory))  # a link into a mirrored folder is in it too
            for parent in dict.fromkeys((*directory.parents, *real.parents)):
                wait.until_free(
                    parent / STATE_FOLDER / LOCK_NAME, lambda at=parent: _is_free(at) or None
                )
        except BaseException:
            os.close(descriptor)
            raise
        holder = Holder(process=ProcessIdentity.current(), owner=owner, since=time.time())
        guard(descriptor)
        lock = cls(folder, descriptor, holder)
        lock._write()
        with contextlib.suppress(OSError):
            (folder / HANDOVER_NAME).unlink()
        return lock

    def set_leaving(self) -> None:
        """Let others know that the trainer is gone: whoever asks may have the directory."""
        self.holder = Holder(
            process=self.holder.process,
            owner=self.holder.owner,
            since=self.holder.since,
            leaving=True,
        )
        self._write()

    def is_asked_for(self) -> bool:
        """Whether somebody waits for this lock."""
        return (self._folder / HANDOVER_NAME).exists()

    def release(self) -> None:
        """Let go; safe to call again."""
        if is_guarded(self._descriptor):
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            close_guarded(self._descriptor)
        self._descriptor = -1

    def _write(self) -> None:
        data = json.dumps(asdict(self.holder)).encode()
        with contextlib.suppress(OSError):  # a full disk must not stop us; the lock is held anyway
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, data, 0)


def nested_holder(state: Path) -> Holder | None:
    """Return who holds the lock in a state folder below ours, None where it is free.

    Args:
        state: A folder named ``.rundir-uploader`` inside the directory.
    """
    return None if _is_free(state.parent) else _read_holder(state / LOCK_NAME)


class _Wait:
    """Waits for locks, as long as their holders are about to leave."""

    def __init__(self, deadline: float, waiting: Callable[[str], None] | None) -> None:
        self._deadline = deadline
        self._waiting = waiting
        self._unknown_until = time.monotonic() + _UNKNOWN_PATIENCE

    def until_free(self, lock: Path, attempt: Callable[[], Any | None]) -> Any:
        while True:
            found = attempt()
            if found is not None:
                return found
            holder = _read_holder(lock)
            if holder is None:
                if time.monotonic() > self._unknown_until:
                    raise _refusal(lock, None)
            elif not holder.hands_over() or time.monotonic() > self._deadline:
                raise _refusal(lock, holder)
            else:
                with contextlib.suppress(OSError):
                    (lock.parent / HANDOVER_NAME).touch(mode=0o600)
                if self._waiting is not None:
                    self._waiting(f"waiting for the transfers of an earlier uploader: {holder}")
                    self._waiting = None
            time.sleep(_POLL)


def _refusal(lock: Path, holder: Holder | None) -> DirectoryLockedError:
    who = str(holder) if holder is not None else "a process that has not said who it is"
    return DirectoryLockedError(
        f"{lock.parent.parent} is already being mirrored by {who}. Leave the work to it, or end it "
        "first; with two uploaders on one directory, neither could say what is stored."
    )


def _try_exclusive(folder: Path) -> int | None:
    """Take a lock; None while somebody else has it."""
    path = folder / LOCK_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            # A file system without locks cannot keep a second uploader out; work all the same.
        mine = os.fstat(descriptor)
        if (mine.st_dev, mine.st_ino) == _identity(path):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_free(directory: Path) -> bool:
    """Whether nobody holds the lock of a directory (or it has none, or it is not ours to see)."""
    with _opened(directory / STATE_FOLDER / LOCK_NAME) as descriptor:
        if descriptor is None:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


@contextlib.contextmanager
def _opened(path: Path) -> Generator[int | None]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_holder(lock: Path) -> Holder | None:
    """Read who holds a lock; None while it is not written yet."""
    try:
        said = cast("dict[str, Any]", json.loads(lock.read_bytes()))
        return Holder(
            process=ProcessIdentity(**said["process"]),
            owner=ProcessIdentity(**said["owner"]),
            since=said["since"],
            leaving=said["leaving"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
