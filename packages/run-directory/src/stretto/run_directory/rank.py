"""Which process of the run this one is, from the environment alone.

The variables of a PyTorch launcher (``stretto``, ``torchrun``) come first, then Open MPI's, then
SLURM's: where one is started inside the other, the inner one knows better. (``mpirun`` within a
SLURM job starts its daemons with ``srun``, so there SLURM's rank counts daemons.) Nothing is
cached: the environment is read at each call.
"""

from __future__ import annotations

import os
import re

from stretto.run_directory.errors import InvalidRankError

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def get_global_rank() -> int:
    """Return the rank of this process among all processes of the run.

    Returns:
        The rank from ``RANK``, ``OMPI_COMM_WORLD_RANK`` or ``SLURM_PROCID``, else 0.

    Raises:
        InvalidRankError: The variable is not a whole number from 0 up.
    """
    return _first("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", default=0)


def get_world_size() -> int:
    """Return the number of processes of the run.

    SLURM's sizes count only within a step that ``srun`` started: a plain ``python`` in a batch
    script sees the size of the allocation, but is alone.

    Returns:
        The size from ``WORLD_SIZE``, ``OMPI_COMM_WORLD_SIZE``, ``SLURM_STEP_NUM_TASKS`` or
        ``SLURM_NTASKS``, else 1.

    Raises:
        InvalidRankError: The variable is not a whole number from 1 up.
    """
    names = ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"]
    if _in_slurm_step():
        names += ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]
    return _first(*names, default=1, minimum=1)


def get_local_rank() -> int:
    """Return the rank of this process among those of the run on this node.

    Returns:
        The rank from ``LOCAL_RANK``, ``OMPI_COMM_WORLD_LOCAL_RANK`` or ``SLURM_LOCALID``, else 0.

    Raises:
        InvalidRankError: The variable is not a whole number from 0 up.
    """
    return _first("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", default=0)


def get_local_world_size() -> int:
    """Return the number of processes of the run on this node.

    Returns:
        The size from ``LOCAL_WORLD_SIZE``, ``OMPI_COMM_WORLD_LOCAL_SIZE``, or, within an ``srun``
        step, ``SLURM_STEP_TASKS_PER_NODE`` or ``SLURM_NTASKS_PER_NODE``, else 1.

    Raises:
        InvalidRankError: The variable is not a whole number from 1 up.
    """
    size = _first("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", default=0, minimum=1)
    if size or not _in_slurm_step():
        return size or 1
    listed = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    if listed:
        return _tasks_on_node(listed, get_node_rank())
    return _first("SLURM_NTASKS_PER_NODE", default=1, minimum=1)


def get_node_rank() -> int:
    """Return the rank of this node among those of the run.

    Returns:
        The rank from ``NODE_RANK``, ``GROUP_RANK`` or, within an ``srun`` step, ``SLURM_NODEID``;
        else the global rank divided by the number of processes a node, rounded down.

    Raises:
        InvalidRankError: The variable is not a whole number from 0 up.
    """
    rank = _first("NODE_RANK", "GROUP_RANK", default=-1)
    if rank >= 0:
        return rank
    if "OMPI_COMM_WORLD_RANK" not in os.environ and _in_slurm_step():
        return _first("SLURM_NODEID", default=0)
    # Open MPI's NODE_RANK counts processes on the node, not nodes.
    return get_global_rank() // _first(
        "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", default=get_global_rank() + 1, minimum=1
    )


def _in_slurm_step() -> bool:
    """Tell whether ``srun`` started this process, rather than a batch script or a shell."""
    if os.environ.get("SLURM_STEP_ID") or os.environ.get("SLURM_STEPID"):
        return True
    return _first("SLURM_PROCID", default=0) > 0


def _first(*names: str, default: int, minimum: int = 0) -> int:
    """Return the first of these variables that is set and not empty, as a whole number."""
    for name in names:
        text = os.environ.get(name, "").strip()
        if not text:
            continue
        if not (text.isascii() and text.isdigit()) or int(text) < minimum:
            raise InvalidRankError(
                f"The environment variable {name} is {text!r}, and must be a whole number from "
                f"{minimum} up. Unset it, or start the ranks with a launcher that sets it."
            )
        return int(text)
    return default


def _tasks_on_node(listed: str, node: int) -> int:
    """Read SLURM's short form of a list of tasks a node, such as ``4(x2),3``."""
    counts: list[int] = []
    for part in listed.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None:
            raise InvalidRankError(
                f"The environment variable SLURM_STEP_TASKS_PER_NODE is {listed!r}, and must look "
                f"like '4(x2),3'. Start the ranks with srun, which sets it."
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts[min(node, len(counts) - 1)]
