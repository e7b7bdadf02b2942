"""Tell whether a process that was seen before is still the same one, and still alive."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process of this machine, told apart from a later one with the same number.

    Attributes:
        pid: Process number.
        start: When it started, in the kernel's ticks since boot; None where that is not known.
        host: Name of the machine.
    """

    pid: int
    start: int | None
    host: str

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Return the identity of this process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Return the identity of the process that has this number now.

        Args:
            pid: Process number.
        """
        found = _state_and_start(pid)
        return cls(pid=pid, start=found[1] if found else None, host=host_name())

    def is_here(self) -> bool:
        """Whether the process runs on this machine, so that `is_alive` can tell."""
        return self.host == host_name()

    def is_alive(self) -> bool:
        """Whether it still runs; True where that cannot be told (another machine)."""
        if not self.is_here():
            return True
        found = _state_and_start(self.pid)
        if found is not None:
            state, start = found
            return state not in "ZX" and (self.start is None or start == self.start)
        if Path("/proc/self/stat").exists():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def host_name() -> str:
    """Return the name of this machine."""
    return os.uname().nodename


def _state_and_start(pid: int) -> tuple[str, int] | None:
    """Read a process's state letter and start tick from ``/proc``; None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    try:
        return fields[0].decode(), int(fields[19])
    except (IndexError, ValueError):
        return None
