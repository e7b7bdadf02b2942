"""Start the ranks, wait for them, end what is left of them."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path

import click
from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from stretto.run_directory import create_node_run_directory, set_run_directory
from stretto.trainer.launcher import rank_start
from stretto.trainer.launcher.deaths import DeathWatch
from stretto.trainer.launcher.logs import RankLogs, last_lines
from stretto.trainer.launcher.options import LaunchOptions, default_threads

_GRACE_SECONDS = 30.0
_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl


def launch(options: LaunchOptions) -> int:
    """Run a command on every rank of this node; return the exit code of the first that failed.

    When a rank fails, when this process is told to end, and when it is killed, all ranks end, with
    the processes that they have started in their own group. A process that a rank has put into a
    session of its own (such as an uploader's) is left alone.

    Args:
        options: What to launch.

    Returns:
        0, the exit code of the rank that failed first, or 128 plus the number of the signal that
        ended it (or this process).
    """
    if not options.verbose:
        # "Sending process … closing signal" and the like; what matters is said by _report.
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.update(default_threads(os.environ, options.nproc))
    _adopt_orphans()
    logs = RankLogs(
        _settle_logs(options),
        stdout=options.stdout,
        stderr=options.stderr,
        verbose=options.verbose,
    )
    with tempfile.TemporaryDirectory(prefix="stretto-launch-") as folder:
        starter = ["-S", "-E", rank_start.__file__, str(os.getpid()), folder]
        run = elastic_launch(_configure(options, logs), sys.executable)
        deaths = DeathWatch(Path(folder), options.nproc)
        try:
            with deaths:
                # torch takes arguments for templates, in which $$ is a dollar sign.
                run(*starter, *(argument.replace("$", "$$") for argument in options.command))
        except ChildFailedError as error:
            return _report(error, logs, deaths)
        except (RendezvousError, DistError) as error:
            raise ConnectionError(
                f"the nodes did not find each other at {options.master_addr or 'localhost'}, port "
                f"{options.master_port or 'any'}: {error}. Check --master_addr and --master_port, "
                "and that node 0 runs."
            ) from error
        except SignalException as error:
            return 128 + int(error.sigval)
        except KeyboardInterrupt:
            return 128 + int(signal.SIGINT)
        finally:
            _end_groups(Path(folder))
    return 0


def _settle_logs(options: LaunchOptions) -> Path:
    """Settle the run directory for all ranks and return the folder for their logs."""
    known = options.run_directory or any(
        os.environ.get(name) for name in ("STRETTO_RUN_DIRECTORY", "COMPOSER_RUN_DIRECTORY")
    )
    if options.nodes > 1 and not known:
        # Every node would choose a name of its own; the trainer will agree on rank 0's.
        folder = tempfile.mkdtemp(prefix="stretto-logs-")
        click.echo(f"logs of the ranks on this node: {folder}", err=True)
        return Path(folder)
    directory = set_run_directory(options.run_directory)
    create_node_run_directory()
    return Path(directory) / "logs"


def _configure(options: LaunchOptions, logs: RankLogs) -> LaunchConfig:
    config = LaunchConfig(
        min_nodes=options.nodes,
        max_nodes=options.nodes,
        nproc_per_node=options.nproc,
        run_id=str(uuid.uuid4()),
        logs_specs=logs,
        log_line_prefix_template="[rank ${rank}]: ",
        max_restarts=0,
        start_method="spawn",
        monitor_interval=0.1,
    )
    if options.master_port is None:
        # One node: the rendezvous takes a free port, so two launches never collide.
        config.rdzv_backend = "c10d"
        config.rdzv_endpoint = "127.0.0.1:0"
        config.local_addr = options.master_addr or "127.0.0.1"
    else:
        config.rdzv_backend = "static"
        config.run_id = "stretto"  # the nodes find each other under one name
        config.rdzv_endpoint = f"{options.master_addr or '127.0.0.1'}:{options.master_port}"
        config.rdzv_configs["rank"] = options.node_rank
    return config


def _report(error: ChildFailedError, logs: RankLogs, deaths: DeathWatch) -> int:
    """Say which rank failed first and return its exit code."""
    rank = deaths.first({rank: failure.pid for rank, failure in error.failures.items()})
    if rank is None:
        rank, _ = error.get_first_failure()
    failure = error.failures[rank]
    code = 128 - failure.exitcode if failure.exitcode < 0 else failure.exitcode
    how = f"exit code {code}"
    if failure.exitcode < 0:
        how = f"signal {signal.Signals(-failure.exitcode).name}"
    click.echo(f"rank {rank} failed first, with {how}; all ranks were ended", err=True)
    path = logs.files.get(failure.local_rank, {}).get("stderr")
    if path is not None:
        click.echo(f"the end of {path}:", err=True)
        for line in last_lines(path):
            click.echo(f"  {line}", err=True)
    return code


def _adopt_orphans() -> None:
    """Become the parent of what dead ranks leave behind.

    Nobody else may collect it where process 1 is a program that does not (in containers), and a
    process that is dead and not collected still counts as a member of its group.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_groups(folder: Path) -> None:
    """End the process groups of ranks, of which only what the ranks left behind is alive.

    torch ends the groups of ranks that it stops, and not those of ranks that ended by themselves.
    """
    groups = {int(path.name) for path in folder.iterdir()}
    deadline = time.monotonic() + _GRACE_SECONDS
    groups = {group for group in groups if _signal_group(group, signal.SIGTERM)}
    while groups and time.monotonic() < deadline:
        time.sleep(0.02)
        groups = {group for group in groups if _signal_group(group, None)}
    for group in groups:
        _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals | None) -> bool:
    """Send a signal (None: nothing) to a process group; return whether it has members."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number or 0)
        return True
    return False
