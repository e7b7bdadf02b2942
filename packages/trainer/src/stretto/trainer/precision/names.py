"""The number formats by name, and which one each device takes by itself."""

from __future__ import annotations

from enum import StrEnum

import torch

from stretto.trainer.devices import Device


class Precision(StrEnum):
    """The format of the forward and backward computation. Weights and optimizer stay in fp32."""

    FP32 = "fp32"
    AMP_FP16 = "amp_fp16"
    AMP_BF16 = "amp_bf16"

    @property
    def low_dtype(self) -> torch.dtype | None:
        """The 16-bit type of the computation; None for fp32."""
        return _LOW[self]


_LOW: dict[Precision, torch.dtype | None] = {
    Precision.FP32: None,
    Precision.AMP_FP16: torch.float16,
    Precision.AMP_BF16: torch.bfloat16,
}

_BY_DEVICE: dict[str, tuple[Precision, ...]] = {
    "cpu": (Precision.FP32, Precision.AMP_BF16),
    "gpu": (Precision.FP32, Precision.AMP_BF16, Precision.AMP_FP16),
    "mps": (Precision.FP32,),
}


def default_precision(device: Device) -> Precision:
    """Return the format used where none is asked for.

    Returns:
        On a GPU ``amp_bf16`` if the chip has it, else ``amp_fp16``; elsewhere ``fp32``.
    """
    if device.name != "gpu":
        return Precision.FP32
    return Precision.AMP_BF16 if torch.cuda.is_bf16_supported() else Precision.AMP_FP16


def resolve_precision(precision: str | Precision | None, device: Device) -> Precision:
    """Return the format that is meant, if the device can do it.

    Args:
        precision: ``fp32``, ``amp_bf16``, ``amp_fp16`` in any case, or None for the default.
        device: Where the computation runs.

    Raises:
        ValueError: The name is unknown, or the device cannot do it.
    """
    if precision is None:
        return default_precision(device)
    allowed = _BY_DEVICE[device.name]
    names = ", ".join(member.value for member in allowed)
    text = precision.value if isinstance(precision, Precision) else str(precision).lower()
    try:
        resolved = Precision(text)
    except ValueError:
        raise ValueError(
            f"The precision is {precision!r}; on {device.name} use one of {names}."
        ) from None
    if resolved not in allowed:
        why = " It needs a GPU, where the loss is scaled." if text == "amp_fp16" else ""
        raise ValueError(
            f"The precision {text!r} is not supported on the device {device.name!r}.{why} "
            f"Use one of {names}."
        )
    return resolved
