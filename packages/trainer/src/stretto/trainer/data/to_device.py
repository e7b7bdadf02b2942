"""Bring a batch to the device of its rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.trainer.data.spec import DataSpec
    from stretto.trainer.devices import Device


def make_placer(device: Device, spec: DataSpec) -> Callable[[Any], Any] | None:
    """Return what is done to each batch of a loader: move it, then transform it.

    Args:
        device: Where to.
        spec: Whose `batch_transforms` to apply, on the device.

    Returns:
        A function of the batch, or None where nothing needs doing.
    """
    transforms = spec.batch_transforms
    if device.name == "cpu":  # what a loader yields is there already
        return transforms
    move = device.batch_to_device
    if transforms is None:
        return move

    def place(batch: Any) -> Any:
        return transforms(move(batch))

    return place
