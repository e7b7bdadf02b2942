"""The grid of ranks that FSDP2 cuts parameters over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.trainer.devices import Device
from stretto.trainer.distributed.topology import Topology
from stretto.trainer.parallel.options import FSDPOptions

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

REPLICATE, SHARD = "replicate", "shard"


def degrees(options: FSDPOptions, world_size: int) -> tuple[int, int]:
    """Return the number of copies of the parameters, and of slices of each copy.

    Args:
        options: What the user asked for.
        world_size: Number of ranks.

    Raises:
        ValueError: The product is not the number of ranks, or a hybrid strategy has no degrees.
    """
    shard, replicate = options.data_parallel_shard_degree, options.data_parallel_replicate_degree
    if "HYBRID" in options.sharding_strategy and shard == -1 and replicate is None:
        raise ValueError(
            f"sharding_strategy={options.sharding_strategy!r} needs data_parallel_shard_degree or "
            f"data_parallel_replicate_degree, to say how the {world_size} ranks are split."
        )
    if replicate is None:
        replicate = 1 if shard == -1 else max(world_size // shard, 1)
    if shard == -1:
        shard = max(world_size // replicate, 1) if replicate > 0 else 0
    if replicate < 1 or replicate * shard != world_size:
        raise ValueError(
            f"data_parallel_replicate_degree {replicate} times data_parallel_shard_degree {shard} "
            f"is not the number of ranks, {world_size}."
        )
    return replicate, shard


def build_mesh(options: FSDPOptions, topology: Topology, device: Device) -> DeviceMesh:
    """Return the mesh: one dimension, or two where there are several copies.

    Args:
        options: What the user asked for.
        topology: The ranks; their process group must be up.
        device: Where the parameters are.
    """
    from torch.distributed.device_mesh import init_device_mesh

    replicate, shard = degrees(options, topology.world_size)
    kind = device.torch_device.type
    if replicate == 1:
        return init_device_mesh(kind, (shard,), mesh_dim_names=(SHARD,))
    return init_device_mesh(kind, (replicate, shard), mesh_dim_names=(REPLICATE, SHARD))


def on_mesh(topology: Topology, mesh: DeviceMesh) -> Topology:
    """Return the topology with its shards on a mesh of :func:`build_mesh`."""
    dimension = mesh.ndim - 1
    return topology.with_shards(
        size=mesh.size(dimension), rank=mesh.get_local_rank(dimension), mesh=mesh
    )
