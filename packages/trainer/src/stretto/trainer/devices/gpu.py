"""A CUDA (or ROCm) device."""

from __future__ import annotations

from typing import ClassVar

import torch

from stretto.run_directory import rank as environment
from stretto.trainer.devices.device import Device


class DeviceGPU(Device):
    """One CUDA device; several ranks talk over NCCL, and over gloo about what lives on the host.

    Args:
        device_id: Which one. Default: the local rank.
        allow_tf32: Let fp32 matrix products use TF32 tensor cores. Default: True.

    Raises:
        ValueError: There is no such device.
    """

    name: ClassVar[str] = "gpu"
    dist_backend: ClassVar[str] = "cpu:gloo,cuda:nccl"

    def __init__(self, device_id: int | None = None, *, allow_tf32: bool = True) -> None:
        if not torch.cuda.is_available():
            raise ValueError(
                "The device is 'gpu', but torch sees no CUDA device. Use device='cpu', or check "
                "the driver, CUDA_VISIBLE_DEVICES and that this torch was built for CUDA."
            )
        index = environment.get_local_rank() if device_id is None else device_id
        if not 0 <= index < torch.cuda.device_count():
            raise ValueError(
                f"The CUDA device {index} is asked for, but there are "
                f"{torch.cuda.device_count()}. Start as many ranks on a node as it has devices, "
                f"or give device_id."
            )
        torch.cuda.set_device(index)
        torch.set_float32_matmul_precision("high" if allow_tf32 else "highest")
        self._device = torch.device("cuda", index)

    @property
    def torch_device(self) -> torch.device:
        """``torch.device("cuda", index)``."""
        return self._device
