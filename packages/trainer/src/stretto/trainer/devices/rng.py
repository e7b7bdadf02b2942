"""Random numbers of the accelerator in use, beside the CPU's."""

from __future__ import annotations

import torch
from torch import Tensor


def accelerator_rng_state() -> dict[str, Tensor]:
    """Return the state of the accelerator's random numbers, by its name; empty if none is in use.

    Looking does not start CUDA.
    """
    if torch.cuda.is_initialized():
        return {"cuda": torch.cuda.get_rng_state()}
    if torch.backends.mps.is_available():
        return {"mps": torch.mps.get_rng_state()}
    return {}


def set_accelerator_rng_state(states: dict[str, Tensor]) -> None:
    """Set what :func:`accelerator_rng_state` returned, for the accelerators that are here."""
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    if "mps" in states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states["mps"])
