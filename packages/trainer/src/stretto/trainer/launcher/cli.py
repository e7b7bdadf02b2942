"""The command `stretto`."""

from __future__ import annotations

import os
import sys

import click

from stretto.trainer.launcher.options import LaunchOptions, first_number, settle_ranks

_SETTINGS = {
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": ["-h", "--help"],
}


@click.command(context_settings=_SETTINGS)
@click.version_option(package_name="stretto-trainer")
@click.option(
    "-n",
    "--nproc",
    type=int,
    help="Ranks on this node. Default: LOCAL_WORLD_SIZE, else one for each GPU, at least one.",
)
@click.option(
    "--world_size",
    type=int,
    help="Ranks on all nodes. Default: WORLD_SIZE, else --nproc.",
)
@click.option(
    "--base_rank",
    type=int,
    help="First rank on this node. Default: BASE_RANK, else it follows from --node_rank.",
)
@click.option(
    "--node_rank",
    type=int,
    help="Number of this node, from 0. Default: NODE_RANK, else it follows from --base_rank.",
)
@click.option("--master_addr", help="Host of rank 0. Default: MASTER_ADDR; not needed on one node.")
@click.option(
    "--master_port",
    type=int,
    help="Port on it. Default: MASTER_PORT; on one node a free one.",
)
@click.option(
    "--run_directory",
    "--run-directory",
    help="Where the run keeps its files. Default: STRETTO_RUN_DIRECTORY, else ./runs/<UTC time>.",
)
@click.option(
    "--stdout",
    help="File for each rank's standard output; variables {rank} {local_rank} {world_size}"
    " {node_rank} {local_world_size}. Default: logs/ in the run directory, local rank"
    " 0 on the console.",
)
@click.option("--stderr", help="The same for standard error.")
@click.option("-v", "--verbose", is_flag=True, help="Show what all ranks print.")
@click.option("-m", "--module_mode", is_flag=True, help="The script is a module, as in python -m.")
@click.option("-c", "--command_mode", is_flag=True, help="The script is a command, run as it is.")
@click.argument("training_script")
@click.argument("training_script_args", nargs=-1, type=click.UNPROCESSED)
def stretto(
    training_script: str,
    training_script_args: tuple[str, ...],
    *,
    nproc: int | None,
    world_size: int | None,
    base_rank: int | None,
    node_rank: int | None,
    master_addr: str | None,
    master_port: int | None,
    run_directory: str | None,
    stdout: str | None,
    stderr: str | None,
    verbose: bool,
    module_mode: bool,
    command_mode: bool,
) -> None:
    """Run a training script on several ranks, each in a process of its own.

    Arguments behind the script reach it unchanged. The exit code is that of the rank that failed
    first; when one ends badly, all end.
    """
    if module_mode and command_mode:
        raise click.UsageError("-m and -c exclude each other: a script is a module or a command")
    try:
        nproc, world_size, node_rank = settle_ranks(
            os.environ,
            nproc=nproc,
            world_size=world_size,
            base_rank=base_rank,
            node_rank=node_rank,
            count_devices=_count_devices() if nproc is None else 0,
        )
        several = world_size > nproc
        options = LaunchOptions(
            command=_command(training_script, training_script_args, module_mode, command_mode),
            nproc=nproc,
            world_size=world_size,
            node_rank=node_rank,
            master_addr=master_addr or (os.environ.get("MASTER_ADDR") if several else None),
            master_port=first_number(master_port, os.environ if several else {}, "MASTER_PORT"),
            run_directory=run_directory,
            stdout=stdout,
            stderr=stderr,
            verbose=verbose,
        )
        code = _launch(options)
    except ConnectionError as error:
        raise click.ClickException(str(error)) from None
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from None
    sys.exit(code)


def _command(
    script: str, arguments: tuple[str, ...], module_mode: bool, command_mode: bool
) -> tuple[str, ...]:
    if command_mode:
        return (script, *arguments)
    if module_mode:
        return (sys.executable, "-m", script, *arguments)
    if not os.path.isfile(script):  # noqa: PTH113 - a path to check, not one to work with
        raise ValueError(
            f"there is no file {script!r}. Give a script, -m with a module, or -c with a command."
        )
    return (sys.executable, script, *arguments)


def _launch(options: LaunchOptions) -> int:
    # torch takes seconds to import; --help and wrong usage do without it.
    from stretto.trainer.launcher.launch import launch

    return launch(options)


def _count_devices() -> int:
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def main() -> None:
    """Run the command."""
    stretto()
