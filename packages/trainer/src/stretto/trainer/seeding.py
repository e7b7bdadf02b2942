"""Seeds: one for the run, from which each rank's follows."""

from __future__ import annotations

import os
import random
import sys

import torch

from stretto.trainer._loose import set_torch_seed

SEED_LIMIT = 2**32

_UNSEEDED = 67280421310721
"""What torch's generator starts from in a process that nobody seeded."""


def choose_seed() -> int:
    """Return a seed where none is given: torch's own if the user set it, else one by chance."""
    current = torch.initial_seed()
    if current != _UNSEEDED:
        return current % SEED_LIMIT
    return int.from_bytes(os.urandom(4), "little")


def seed_all(seed: int) -> None:
    """Seed the generators of torch, Python and, where it is loaded, numpy.

    Args:
        seed: At least 0.

    Raises:
        ValueError: If it is negative.
    """
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    set_torch_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % SEED_LIMIT)


def configure_deterministic_mode() -> None:
    """Let torch use deterministic operations only, and fail where there is none."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
