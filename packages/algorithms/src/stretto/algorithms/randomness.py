"""Chance that is the same whatever else happens in the run.

A method asks for a generator for each batch, keyed by the rank's seed, the number of batches
trained so far and the method's name. Nothing has to be stored to resume a run exactly, no other
method's draws shift when a method is added, and no global generator is read or moved.
"""

from __future__ import annotations

import hashlib

import torch

__all__ = ["keyed_generator", "keyed_seed"]


def keyed_seed(*, seed: int, batch: int, method: str) -> int:
    """Return a 63-bit seed that depends on all three arguments.

    Args:
        seed: The rank's seed.
        batch: Batches trained so far.
        method: The name of the method that draws.
    """
    digest = hashlib.blake2b(f"{method}/{seed}/{batch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def keyed_generator(*, seed: int, batch: int, method: str) -> torch.Generator:
    """Return a CPU generator seeded with `keyed_seed`.

    Draws are made on the CPU also for batches on an accelerator, so that a run gives the same
    numbers on every device.
    """
    generator = torch.Generator()
    generator.manual_seed(keyed_seed(seed=seed, batch=batch, method=method))
    return generator
