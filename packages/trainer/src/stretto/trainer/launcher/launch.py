"""Start the ranks, wait for them, end what is left of them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path

import click
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from stretto.run_directory import create_run_directory, set_run_directory
from stretto.trainer.launcher import rank_start
from stretto.trainer.launcher.logs import RankLogs, last_lines
from stretto.trainer.launcher.options import LaunchOptions, default_threads

_GRACE_SECONDS = 30.0


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
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.update(default_threads(os.environ, options.nproc))
    logs = RankLogs(
        _settle_logs(options),
        stdout=options.stdout,
        stderr=options.stderr,
        verbose=options.verbose,
    )
    with tempfile.TemporaryDirectory(prefix="stretto-launch-") as folder:
        starter = ["-S", "-E", rank_start.__file__, str(os.getpid()), folder]
        run = elastic_launch(_configure(options, logs), sys.executable)
        try:
            run(*starter, *options.command)
        except ChildFailedError as error:
            return _report(error, logs)
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
    create_run_directory()
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
        config.rdzv_endpoint = f"{options.master_addr or '127.0.0.1'}:{options.master_port}"
        config.rdzv_configs["rank"] = options.node_rank
    return config


def _report(error: ChildFailedError, logs: RankLogs) -> int:
    """Say which rank failed first and return its exit code."""
    rank, failure = error.get_first_failure()
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


def _end_groups(folder: Path) -> None:
    """End the process groups of ranks, of which only what the ranks left behind is alive."""
    groups = {int(path.name) for path in folder.iterdir()}
    deadline = time.monotonic() + _GRACE_SECONDS
    groups = {group for group in groups if _signal_group(group, signal.SIGTERM)}
    while groups and time.monotonic() < deadline:
        time.sleep(0.05)
        groups = {group for group in groups if _signal_group(group, None)}
    for group in groups:
        _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals | None) -> bool:
    """Send a signal (None: nothing) to a process group; return whether it has members."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number or 0)
        return True
    return False
