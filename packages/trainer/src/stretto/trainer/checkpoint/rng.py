"""The random state of one rank: Python's, numpy's, torch's on the CPU and on the accelerator."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch

from stretto.trainer.devices.rng import accelerator_rng_state, set_accelerator_rng_state


def capture_rng_state() -> dict[str, Any]:
    """Return the state of all random numbers of this process, in tensors and plain data only."""
    version, internal, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    inner = cast("dict[str, Any]", numpy_state["state"])
    return {
        "python": {
            "version": version,
            "internal": torch.tensor(internal, dtype=torch.int64),
            "gauss": gauss,
        },
        "numpy": {
            "bit_generator": str(numpy_state["bit_generator"]),
            "key": torch.tensor(inner["key"].tolist(), dtype=torch.int64),
            "pos": int(inner["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "torch": torch.get_rng_state(),
        **accelerator_rng_state(),
    }


def restore_rng_state(state: Mapping[str, Any]) -> None:
    """Set the random numbers of this process as :func:`capture_rng_state` found them.

    The state of an accelerator that is not here is left aside.
    """
    python = state["python"]
    internal = tuple(int(word) for word in python["internal"].tolist())
    random.setstate((python["version"], internal, python["gauss"]))
    numpy = state["numpy"]
    np.random.set_state(
        (
            numpy["bit_generator"],
            numpy["key"].numpy().astype(np.uint32),
            numpy["pos"],
            numpy["has_gauss"],
            numpy["gauss"],
        )
    )
    torch.set_rng_state(state["torch"].clone())
    set_accelerator_rng_state({name: state[name] for name in ("cuda", "mps") if name in state})
