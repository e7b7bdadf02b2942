"""The first thing that runs in a rank's process: ties it to the launcher, then becomes it.

Called as ``python rank_start.py LAUNCHER_PID FOLDER COMMAND…``, before anything is imported.
"""

import os
import sys

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl
_SIGKILL = 9


def _end_with_launcher(launcher: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, _SIGKILL)
    if os.getppid() != launcher:  # it ended before the line above took effect
        raise SystemExit(1)


def main() -> None:
    """Replace this process by the rank's command."""
    launcher, folder, *command = sys.argv[1:]
    _end_with_launcher(int(launcher))
    os.environ["NODE_RANK"] = os.environ.get("GROUP_RANK", "0")
    os.environ["PYTHONUNBUFFERED"] = "1"
    # The rank leads a process group of its own; the launcher ends what is left of it.
    with open(os.path.join(folder, str(os.getpid())), "w"):  # noqa: PTH118, PTH123
        pass
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]!r}: {error.strerror}\n")
        raise SystemExit(127 if isinstance(error, FileNotFoundError) else 126) from None


if __name__ == "__main__":
    main()
