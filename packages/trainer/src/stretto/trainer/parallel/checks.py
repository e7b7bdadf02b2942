"""What every strategy refuses."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from stretto.trainer import _torch
from stretto.trainer.parallel.rebind import take_down


def refuse_unusable(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Raise if there is nothing to train here.

    Raises:
        ValueError: No parameters, a parameter on the meta device, or one that an optimizer holds
            and the model does not.
    """
    parameters = _torch.named_parameters(model)
    if not parameters:
        raise ValueError(
            f"The model {type(model).__name__} has no parameters: there is nothing to train. "
            f"Assign its layers as attributes, so that torch registers them."
        )
    for name, parameter in parameters:
        if parameter.is_meta:
            raise ValueError(
                f"The parameter {name!r} is on the meta device, without values. Materialise the "
                f"model first, with to_empty() and its own initialisation, or build it on the CPU."
            )
    take_down(model, optimizers)
