"""From a name to a device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stretto.trainer.devices.cpu import DeviceCPU
from stretto.trainer.devices.device import Device
from stretto.trainer.devices.gpu import DeviceGPU
from stretto.trainer.devices.mps import DeviceMPS

_BY_NAME: dict[str, Callable[[], Device]] = {
    "cpu": DeviceCPU,
    "gpu": DeviceGPU,
    "cuda": DeviceGPU,
    "mps": DeviceMPS,
}


def get_device(device: Device | str | None = None) -> Device:
    """Return the device that is meant.

    Args:
        device: A device, ``"cpu"``, ``"gpu"`` (or ``"cuda"``), ``"mps"``; None means the CUDA
            device of this local rank if there is one, else the CPU.

    Raises:
        ValueError: The name is none of these, or the machine has no such device.
        TypeError: It is neither a device nor a name.
    """
    if isinstance(device, Device):
        return device
    if device is None:
        return DeviceGPU() if torch.cuda.is_available() else DeviceCPU()
    if not isinstance(device, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"device is a {type(device).__name__}; give a Device, or one of {', '.join(_BY_NAME)}."
        )
    try:
        make = _BY_NAME[device.lower()]
    except KeyError:
        raise ValueError(f"The device is {device!r}; use one of {', '.join(_BY_NAME)}.") from None
    return make()
