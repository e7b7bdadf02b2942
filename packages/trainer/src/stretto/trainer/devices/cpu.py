"""The CPU."""

from __future__ import annotations

from typing import ClassVar

import torch

from stretto.trainer.devices.device import Device


class DeviceCPU(Device):
    """The host itself; several ranks talk over gloo."""

    name: ClassVar[str] = "cpu"
    dist_backend: ClassVar[str] = "gloo"

    @property
    def torch_device(self) -> torch.device:
        """``torch.device("cpu")``."""
        return torch.device("cpu")
