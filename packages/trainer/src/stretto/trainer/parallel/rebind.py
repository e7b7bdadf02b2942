"""Keeping optimizers on a model whose parameters are replaced.

``fully_shard`` puts a new object in place of every parameter, so an optimizer made before it points
at none. Its groups and state are taken down by name first, and put back by name after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from stretto.trainer import _torch
from stretto.trainer.parallel.fqn import canonical_parameters, names_by_parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What one optimizer holds, by name.

    Attributes:
        optimizer: The optimizer.
        groups: The names of each group's parameters.
        state: The state by name.
    """

    optimizer: Optimizer
    groups: tuple[tuple[str, ...], ...]
    state: dict[str, dict[str, Any]]


def take_down(model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[Binding, ...]:
    """Write down which parameters each optimizer holds.

    Args:
        model: The model before its parameters are replaced.
        optimizers: Of its parameters.

    Raises:
        ValueError: An optimizer holds a parameter that is not the model's.
    """
    names = names_by_parameter(model)
    return tuple(_binding(optimizer, names) for optimizer in optimizers)


def put_back(
    model: nn.Module,
    bindings: Sequence[Binding],
    convert: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Point the optimizers at the parameters that now bear the names, in the same group dicts.

    Args:
        model: The model after its parameters were replaced.
        bindings: From :func:`take_down`.
        convert: Turns a tensor of the state with the old parameter's shape into one that goes with
            the new parameter.
    """
    parameters = canonical_parameters(model)
    for binding in bindings:
        for group, names in zip(
            _torch.param_groups(binding.optimizer), binding.groups, strict=True
        ):
            group["params"] = [parameters[name] for name in names]
        state = _torch.optimizer_state(binding.optimizer)
        state.clear()
        for name, values in binding.state.items():
            parameter = parameters[name]
            state[parameter] = {
                key: convert(value, parameter)
                if isinstance(value, Tensor) and value.shape == parameter.shape
                else value
                for key, value in values.items()
            }


def _binding(optimizer: Optimizer, names: dict[Tensor, str]) -> Binding:
    groups = _torch.param_groups(optimizer)
    for number, group in enumerate(groups):
        for parameter in group["params"]:
            if parameter not in names:
                raise ValueError(
                    f"The optimizer {type(optimizer).__name__} holds a parameter of shape "
                    f"{tuple(parameter.shape)} in group {number} that is not one of the model's. "
                    f"Build the optimizer from model.parameters(), after any change to the model."
                )
    return Binding(
        optimizer=optimizer,
        groups=tuple(tuple(names[parameter] for parameter in group["params"]) for group in groups),
        state={
            names[parameter]: dict(values)
            for parameter, values in _torch.optimizer_state(optimizer).items()
        },
    )
