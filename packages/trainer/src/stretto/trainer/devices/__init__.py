"""Where tensors live. Nothing outside this package chooses a device."""

from __future__ import annotations

from stretto.trainer.devices.choose import get_device
from stretto.trainer.devices.cpu import DeviceCPU
from stretto.trainer.devices.device import Device
from stretto.trainer.devices.gpu import DeviceGPU
from stretto.trainer.devices.mps import DeviceMPS

__all__ = ["Device", "DeviceCPU", "DeviceGPU", "DeviceMPS", "get_device"]
