"""What to launch, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

LOG_VARIABLES: tuple[str, ...] = (
    "rank",
    "local_rank",
    "world_size",
    "node_rank",
    "local_world_size",
)
"""Variables in the names of the ranks' log files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """What to launch and where.

    Attributes:
        command: What every rank runs, as it is.
        nproc: Ranks on this node.
        world_size: Ranks on all nodes.
        node_rank: The number of this node, from 0.
        master_addr: Host of rank 0; None on one node.
        master_port: Port on that host; None for a free one.
        run_directory: Where the run keeps its files; None for the default.
        stdout: Template of the file that gets a rank's standard output; None for the default.
        stderr: The same for standard error.
        verbose: Show what all ranks print, not only local rank 0.
    """

    command: tuple[str, ...]
    nproc: int
    world_size: int
    node_rank: int
    master_addr: str | None
    master_port: int | None
    run_directory: str | None
    stdout: str | None
    stderr: str | None
    verbose: bool

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.world_size // self.nproc

    def __post_init__(self) -> None:
        if self.nproc < 1:
            raise ValueError(f"--nproc is {self.nproc}. Give the number of ranks, 1 or more.")
        if self.world_size % self.nproc or self.world_size < self.nproc:
            raise ValueError(
                f"--world_size is {self.world_size}, which is no multiple of --nproc "
                f"{self.nproc}. Every node runs the same number of ranks."
            )
        if not 0 <= self.node_rank < self.nodes:
            raise ValueError(
                f"--node_rank is {self.node_rank}, but there are {self.nodes} nodes "
                f"(--world_size {self.world_size}, --nproc {self.nproc}). Give 0 to "
                f"{self.nodes - 1}."
            )
        if self.nodes > 1 and (self.master_addr is None or self.master_port is None):
            raise ValueError(
                f"a run on {self.nodes} nodes needs --master_addr and --master_port, the same on "
                "every node"
            )
        for name, template in (("--stdout", self.stdout), ("--stderr", self.stderr)):
            _check_log_template(name, template, self.nproc)
        if self.stdout is not None and self.stdout == self.stderr:
            raise ValueError(
                f"--stdout and --stderr are both {self.stdout!r}, and would overwrite each other. "
                "Give each a file of its own."
            )


def settle_ranks(
    environment: Mapping[str, str],
    *,
    nproc: int | None,
    world_size: int | None,
    base_rank: int | None,
    node_rank: int | None,
    count_devices: int,
) -> tuple[int, int, int]:
    """Return ranks on this node, ranks in all, and the number of this node.

    An argument comes before its environment variable, that before what follows from the others.

    Args:
        environment: Read for LOCAL_WORLD_SIZE, WORLD_SIZE, BASE_RANK and NODE_RANK.
        nproc: Ranks on this node.
        world_size: Ranks on all nodes.
        base_rank: The first rank on this node.
        node_rank: The number of this node.
        count_devices: Accelerators on this node; as many ranks are started, at least one.

    Raises:
        ValueError: A variable is no number, or base rank and node rank contradict each other.
    """
    nproc = first_number(nproc, environment, "LOCAL_WORLD_SIZE")
    if nproc is None:
        nproc = max(1, count_devices)
    if nproc < 1:
        raise ValueError(f"--nproc is {nproc}. Give the number of ranks, 1 or more.")
    world_size = first_number(world_size, environment, "WORLD_SIZE")
    if world_size is None:
        world_size = nproc
    base_rank = first_number(base_rank, environment, "BASE_RANK")
    node_rank = first_number(node_rank, environment, "NODE_RANK")
    if node_rank is None:
        if base_rank is None and world_size > nproc:
            raise ValueError(
                f"--world_size {world_size} with --nproc {nproc} means several nodes: give each "
                "its --node_rank (or NODE_RANK)"
            )
        node_rank = (base_rank or 0) // nproc
    if base_rank is not None and base_rank != node_rank * nproc:
        raise ValueError(
            f"--base_rank is {base_rank}, but node {node_rank} with {nproc} ranks a node begins at "
            f"rank {node_rank * nproc}. Leave --base_rank out."
        )
    return nproc, world_size, node_rank


def first_number(value: int | None, environment: Mapping[str, str], name: str) -> int | None:
    """Return a value, else that of an environment variable; None where neither is there.

    Args:
        value: What was given on the command line.
        environment: Where to look else.
        name: The variable.

    Raises:
        ValueError: The variable is no number.
    """
    if value is not None:
        return value
    text = environment.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, which is no number. Correct or unset it.") from None


def _check_log_template(name: str, template: str | None, nproc: int) -> None:
    if template is None:
        return
    try:
        paths = {
            template.format_map(
                dict.fromkeys(LOG_VARIABLES, 0) | {"rank": rank, "local_rank": rank}
            )
            for rank in range(nproc)
        }
    except (KeyError, IndexError, ValueError):
        known = ", ".join(f"{{{variable}}}" for variable in LOG_VARIABLES)
        raise ValueError(f"{name} is {template!r}. The variables it knows are {known}.") from None
    if len(paths) < nproc:
        raise ValueError(
            f"{name} is {template!r}, one file for {nproc} ranks, which would overwrite each "
            "other. Put {rank} or {local_rank} into it."
        )


def default_threads(environment: Mapping[str, str], nproc: int) -> Mapping[str, str]:
    """Return OMP_NUM_THREADS for each rank, where the user has not set it: a share of the cores."""
    if "OMP_NUM_THREADS" in environment:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // nproc))}
