"""Starting and ending the process group that the ranks talk through."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

import torch.distributed as torch_dist

from stretto.run_directory import rank as environment
from stretto.trainer import _torch

if TYPE_CHECKING:
    from stretto.trainer.devices import Device

_owned: list[bool] = []


def initialize_dist(device: Device | str | None = None, timeout: float = 300.0) -> None:
    """Join the process group of the run, as the launcher's environment describes it.

    On a CPU the ranks talk over gloo; on a GPU over NCCL, with gloo beside it for what lives on the
    host, so that counting samples never waits for the device. Nothing happens for one process
    alone, or where a group exists already. A group started here ends with the process.

    Args:
        device: A device or its name; None means the GPU if there is one, else the CPU.
        timeout: Seconds after which a collective that some rank does not join is an error.

    Raises:
        ValueError: The timeout is not positive, or the environment names no master.
    """
    if timeout <= 0:
        raise ValueError(f"dist_timeout is {timeout!r}; give a positive number of seconds.")
    world_size = environment.get_world_size()
    if world_size == 1 or is_initialized():
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ValueError(
            f"The environment names {world_size} ranks, but not {' and '.join(missing)}, where "
            f"they meet. Start the script with `stretto -n {world_size} …` or torchrun, or unset "
            f"WORLD_SIZE to train in one process."
        )
    _join(_backend(device), world_size, timeout)


def ensure_process_group(device: Device | str | None = None, timeout: float = 300.0) -> None:
    """Join the run's process group, or make one of this process alone, if there is none yet.

    FSDP2 needs a group even where it has a single rank.

    Args:
        device: As for :func:`initialize_dist`.
        timeout: As for :func:`initialize_dist`.
    """
    initialize_dist(device, timeout)
    if not is_initialized():
        _torch.init_lonely_process_group(backend=_backend(device), timeout=timeout)
        _own()


def is_initialized() -> bool:
    """Tell whether this process belongs to a process group."""
    return torch_dist.is_available() and torch_dist.is_initialized()


def destroy_dist() -> None:
    """Leave the process group, if it was started here; no other rank needs to take part."""
    if _owned:
        _owned.clear()
        if is_initialized():
            torch_dist.destroy_process_group()


def _backend(device: Device | str | None) -> str:
    from stretto.trainer.devices import get_device

    resolved = get_device(device)
    if not resolved.dist_backend:
        raise ValueError(
            f"The device {resolved.name!r} cannot take part in a run of several processes: torch "
            f"has no backend for it. Use the CPU or a CUDA device."
        )
    return resolved.dist_backend


def _join(backend: str, world_size: int, timeout: float) -> None:
    _torch.init_process_group(
        backend=backend,
        rank=environment.get_global_rank(),
        world_size=world_size,
        timeout=timeout,
    )
    _own()


def _own() -> None:
    if not _owned:
        atexit.register(destroy_dist)
    _owned.append(True)
