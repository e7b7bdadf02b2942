"""The GPU of an Apple machine."""

from __future__ import annotations

from typing import ClassVar

import torch

from stretto.trainer.devices.device import Device


class DeviceMPS(Device):
    """Apple's GPU; one process only.

    Raises:
        ValueError: There is none, or this torch was built without it.
    """

    name: ClassVar[str] = "mps"
    dist_backend: ClassVar[str] = ""

    def __init__(self) -> None:
        if not torch.backends.mps.is_available():
            raise ValueError("The device is 'mps', but torch sees no Apple GPU. Use device='cpu'.")

    @property
    def torch_device(self) -> torch.device:
        """``torch.device("mps")``."""
        return torch.device("mps")
