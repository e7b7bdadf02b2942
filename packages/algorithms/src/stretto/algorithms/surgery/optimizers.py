"""Tell optimizers which parameters have taken the place of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

__all__ = ["as_sequence", "rebind_optimizers"]


def as_sequence(optimizers: Optimizer | Sequence[Optimizer] | None) -> tuple[Optimizer, ...]:
    """Return the optimizers as a tuple; None is none."""
    if optimizers is None:
        return ()
    return (optimizers,) if isinstance(optimizers, Optimizer) else tuple(optimizers)


def rebind_optimizers(
    optimizers: Optimizer | Sequence[Optimizer] | None,
    successors: Mapping[nn.Parameter, Sequence[nn.Parameter]],
    *,
    still_used: Sequence[nn.Parameter] = (),
) -> tuple[nn.Parameter, ...]:
    """Put the successors of parameters where those were, in every group of every optimizer.

    A parameter's state (moments, step) goes to its first successor if the shapes are equal. The
    optimizer objects and the lists in their groups stay the same objects, so that schedulers and
    whoever else holds them need not know.

    Args:
        optimizers: Those that may hold any of the parameters.
        successors: For each parameter that left the model, those that came for it, possibly none.
        still_used: Parameters that are among the keys of `successors` and also remain in use
            elsewhere in the model: they keep their place and their state.

    Returns:
        The successors whose predecessor's state could not be kept, since the shapes differ.
    """
    kept = {id(parameter) for parameter in still_used}
    dropped: list[nn.Parameter] = []
    for optimizer in as_sequence(optimizers):
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for group in optimizer.param_groups:
            parameters = cast("list[nn.Parameter]", group["params"])
            parameters[:] = _replace(parameters, successors, kept=kept, held=held)
        dropped.extend(_move_state(optimizer, successors, kept))
    return tuple(dropped)


def _replace(
    parameters: Sequence[nn.Parameter],
    successors: Mapping[nn.Parameter, Sequence[nn.Parameter]],
    *,
    kept: set[int],
    held: set[int],
) -> list[nn.Parameter]:
    result: list[nn.Parameter] = []
    for parameter in parameters:
        coming = successors.get(parameter)
        if coming is None or id(parameter) in kept:
            result.append(parameter)
        for successor in coming or ():
            if id(successor) not in held:
                held.add(id(successor))
                result.append(successor)
    return result


def _move_state(
    optimizer: Optimizer,
    successors: Mapping[nn.Parameter, Sequence[nn.Parameter]],
    kept: set[int],
) -> list[nn.Parameter]:
    dropped: list[nn.Parameter] = []
    state = cast("dict[torch.Tensor, Any]", optimizer.state)
    for parameter, coming in successors.items():
        if parameter not in state or id(parameter) in kept:
            continue
        entry = state.pop(parameter)
        if not coming:
            continue
        heir = coming[0]
        if heir.shape == parameter.shape and heir not in state:
            state[heir] = entry
        elif heir.shape != parameter.shape:
            dropped.append(heir)
    return dropped
