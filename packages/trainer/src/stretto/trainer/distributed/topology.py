"""The ranks and sizes of a run, in one frozen object."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.run_directory import rank as environment

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Where this process stands among all processes of the run.

    Samplers, seeds, logging and de-duplication ask this object; nothing else asks for the world
    size. Every rank of the data-parallel dimension sees other samples. Shards are the slices of
    the parameters under FSDP2: they lie within the data-parallel dimension.

    Attributes:
        world_size: Number of processes of the run.
        global_rank: Rank of this process among them.
        local_rank: Rank among the processes of this node.
        local_world_size: Number of processes of this node.
        node_rank: Rank of this node.
        num_nodes: Number of nodes.
        data_parallel_size: Number of ranks that see different samples.
        data_parallel_rank: Rank among those.
        shard_size: Number of slices each parameter is cut into; 1 means whole parameters.
        shard_rank: Which slice lies here.
        tensor_size: Number of ranks that share one sample's work; always 1 so far.
        tensor_rank: Rank among those.
        mesh: The device mesh, or None where no strategy needs one.

    Raises:
        ValueError: A rank lies outside its size, or the sizes do not fit together.
    """

    world_size: int = 1
    global_rank: int = 0
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    shard_size: int = 1
    shard_rank: int = 0
    tensor_size: int = 1
    tensor_rank: int = 0
    mesh: DeviceMesh | None = None

    def __post_init__(self) -> None:
        for what, rank, size in (
            ("global rank", self.global_rank, self.world_size),
            ("local rank", self.local_rank, self.local_world_size),
            ("node rank", self.node_rank, self.num_nodes),
            ("data-parallel rank", self.data_parallel_rank, self.data_parallel_size),
            ("shard rank", self.shard_rank, self.shard_size),
            ("tensor rank", self.tensor_rank, self.tensor_size),
        ):
            if not 0 <= rank < size:
                raise ValueError(
                    f"The {what} is {rank} of {size}: a rank lies between 0 and its size - 1. "
                    f"Check the launcher's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and "
                    f"NODE_RANK."
                )
        if self.data_parallel_size * self.tensor_size != self.world_size:
            raise ValueError(
                f"{self.data_parallel_size} data-parallel times {self.tensor_size} tensor-parallel "
                f"ranks are not the {self.world_size} ranks of the run."
            )
        if self.data_parallel_size % self.shard_size:
            raise ValueError(
                f"{self.data_parallel_size} data-parallel ranks cannot be cut into groups of "
                f"{self.shard_size} shards."
            )

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the process that writes what the run writes once."""
        return self.global_rank == 0

    @property
    def is_local_rank_zero(self) -> bool:
        """Whether this is the process that does what a node does once."""
        return self.local_rank == 0

    @classmethod
    def single(cls) -> Topology:
        """Return the topology of one process alone."""
        return cls()

    @classmethod
    def from_environment(cls) -> Topology:
        """Read the variables of the launcher (``stretto``, ``torchrun``, Open MPI or SLURM).

        Returns:
            All ranks data-parallel, no shards, no mesh.

        Raises:
            InvalidRankError: A variable is not a number.
            ValueError: The variables contradict each other.
        """
        world_size = environment.get_world_size()
        local_world_size = environment.get_local_world_size()
        node_rank = environment.get_node_rank()
        global_rank = environment.get_global_rank()
        return cls(
            world_size=world_size,
            global_rank=global_rank,
            local_rank=environment.get_local_rank(),
            local_world_size=local_world_size,
            node_rank=node_rank,
            # Nodes need not hold the same number of processes.
            num_nodes=max(node_rank + 1, -(-world_size // local_world_size)),
            data_parallel_size=world_size,
            data_parallel_rank=global_rank,
        )

    def with_shards(self, *, size: int, rank: int, mesh: DeviceMesh) -> Topology:
        """Return this topology with its parameters cut into slices over a mesh."""
        return dataclasses.replace(self, shard_size=size, shard_rank=rank, mesh=mesh)
