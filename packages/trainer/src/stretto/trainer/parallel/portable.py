"""State dicts that every strategy reads and writes alike: whole tensors by canonical name.

A strategy that cuts its parameters hands in how to make a slice whole (``gather``) and how to cut
a whole tensor like another (``cut``); for the others a tensor is what it is. torch's own functions
for this are left alone: they step an optimizer once to learn its state, so a checkpoint taken
before the first step would hold moments and a step count that never were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from stretto.trainer import _torch
from stretto.trainer.checkpoint.errors import CheckpointMismatchError
from stretto.trainer.parallel.fqn import canonical_name, listed, names_by_parameter

Gather = Callable[[Tensor], Tensor | None]
"""Makes a tensor whole; every rank calls it, and those that need no result get None."""

Cut = Callable[[Tensor, Tensor], Tensor]
"""Cuts the first tensor, which is whole, as the second one is."""


def refuse_sharded(*, full: bool) -> None:
    """Raise where a sharded state dict is asked for."""
    if not full:
        raise ValueError(
            "full=False asks for a sharded state dict, which is not supported yet. Use full=True."
        )


def model_state(model: nn.Module, gather: Gather | None = None) -> dict[str, Any]:
    """Return a model's parameters and buffers, whole, by canonical name.

    Args:
        model: The unwrapped model.
        gather: Makes slices whole; None where there are none.
    """
    state: dict[str, Any] = {}
    tied = {name: id(parameter) for name, parameter in _torch.named_parameters(model, tied=True)}
    made_whole: dict[int, Tensor | None] = {}
    for name, value in _torch.module_state_dict(model).items():
        if gather is None or not isinstance(value, Tensor):
            whole = value
        else:
            identity = tied.get(name, id(value))
            if identity not in made_whole:
                made_whole[identity] = gather(value)
            whole = made_whole[identity]
        state[canonical_name(name)] = whole
    return state


def load_model_state(
    model: nn.Module, state_dict: Mapping[str, Any], *, strict: bool, cut: Cut | None = None
) -> tuple[list[str], list[str]]:
    """Load whole parameters and buffers by canonical name.

    Args:
        model: The unwrapped model.
        state_dict: From :func:`model_state` of this or another strategy.
        strict: Refuse missing and unexpected names.
        cut: Cuts whole tensors; None where parameters are whole.

    Returns:
        The missing names, and the unexpected ones.

    Raises:
        CheckpointMismatchError: Names differ and ``strict``, or shapes differ.
    """
    present = {canonical_name(name): name for name in _torch.module_state_dict(model)}
    current = _torch.module_state_dict(model)
    missing = [name for name in present if name not in state_dict]
    unexpected = [name for name in state_dict if name not in present]
    misshapen = [
        f"{name} ({_shape(state_dict[name])} in the file, {_shape(current[actual])} in the model)"
        for name, actual in present.items()
        if name in state_dict and _shape(state_dict[name]) != _shape(current[actual])
    ]
    if misshapen or (strict and (missing or unexpected)):
        raise CheckpointMismatchError(_mismatch(missing, unexpected, misshapen, strict=strict))
    values = {
        actual: _fitted(state_dict[name], current[actual], cut)
        for name, actual in present.items()
        if name in state_dict
    }
    _torch.load_module_state_dict(model, values)
    return missing, unexpected


def optimizer_state(
    model: nn.Module, optimizer: Optimizer, gather: Gather | None = None
) -> dict[str, Any]:
    """Return an optimizer's state, whole, by canonical name.

    Args:
        model: The unwrapped model.
        optimizer: Of its parameters.
        gather: Makes slices whole; None where there are none.

    Returns:
        ``state``: values by name; ``param_groups``: the groups, their ``params`` names.
    """
    names = _numbered_names(model, optimizer)
    packed = _torch.packed_optimizer_state(optimizer)
    state: dict[str, dict[str, Any]] = {}
    for number in sorted(packed["state"]):
        values = cast("dict[str, Any]", packed["state"][number])
        state[names[number]] = {
            key: gather(value) if gather is not None and isinstance(value, Tensor) else value
            for key, value in sorted(values.items())
        }
    groups: list[dict[str, Any]] = [
        {**group, "params": [names[number] for number in group["params"]]}
        for group in packed["param_groups"]
    ]
    return {"state": state, "param_groups": groups}


def load_optimizer_state(
    model: nn.Module,
    optimizer: Optimizer,
    state_dict: Mapping[str, Any],
    cut: Cut | None = None,
) -> None:
    """Load an optimizer's whole state by canonical name.

    Args:
        model: The unwrapped model.
        optimizer: Of its parameters.
        state_dict: From :func:`optimizer_state` of this or another strategy.
        cut: Cuts whole tensors; None where parameters are whole.

    Raises:
        CheckpointMismatchError: The groups hold other parameters, or shapes differ.
    """
    named = names_by_parameter(model)
    groups = _torch.param_groups(optimizer)
    ours = [[named[parameter] for parameter in group["params"]] for group in groups]
    saved_groups = _matching_groups(optimizer, ours, state_dict["param_groups"])
    numbers = {name: number for number, name in enumerate(name for names in ours for name in names)}
    parameters = {name: parameter for parameter, name in named.items()}
    packed: dict[int, dict[str, Any]] = {}
    for name, values in cast("Mapping[str, Mapping[str, Any]]", state_dict["state"]).items():
        packed[numbers[name]] = {
            key: _fitted_state(name, key, value, parameters[name], cut)
            for key, value in values.items()
        }
    packed_groups = [
        {**saved, "params": [numbers[name] for name in names]}
        for saved, names in zip(saved_groups, ours, strict=True)
    ]
    _torch.load_packed_optimizer_state(optimizer, {"state": packed, "param_groups": packed_groups})


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _fitted(value: Any, like: Any, cut: Cut | None) -> Any:
    if cut is not None and isinstance(value, Tensor) and isinstance(like, Tensor):
        return cut(value, like)
    return value


def _fitted_state(name: str, key: str, value: Any, parameter: Tensor, cut: Cut | None) -> Any:
    """Cut a value of an optimizer's state, or copy it: an optimizer may keep what it is given."""
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 0 or cut is None:
        return value.clone()
    if value.shape != parameter.shape:
        raise CheckpointMismatchError(
            f"The optimizer state {key!r} of {name} has the shape {tuple(value.shape)} and its "
            f"parameter {tuple(parameter.shape)}; under FSDP only state of the parameter's own "
            f"shape can be cut. Resume this run without FSDP, or load the weights only."
        )
    return cut(value, parameter)


def _numbered_names(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Return the names of an optimizer's parameters in the order in which it numbers them."""
    named = names_by_parameter(model)
    return [
        named[parameter]
        for group in _torch.param_groups(optimizer)
        for parameter in group["params"]
    ]


def _matching_groups(
    optimizer: Optimizer, ours: list[list[str]], saved: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the saved group of each of ours, found by the parameters in it."""
    by_names = {frozenset(group["params"]): group for group in saved}
    wanted = [frozenset(names) for names in ours]
    if len(by_names) == len(wanted) and all(names in by_names for names in wanted):
        return [by_names[names] for names in wanted]
    here = frozenset[str]().union(*wanted)
    there = frozenset[str]().union(*by_names)
    raise CheckpointMismatchError(
        f"The state of the optimizer {type(optimizer).__name__} does not fit. "
        f"In the file, not in the optimizer: {listed(there - here) or 'nothing'}. "
        f"In the optimizer, not in the file: {listed(here - there) or 'nothing'}. "
        f"{len(by_names)} parameter groups in the file, {len(wanted)} here"
        f"{'' if here != there else ', with the parameters shared out differently'}. "
        f"Build the same model and optimizer, or load the weights only."
    )


def _mismatch(
    missing: list[str], unexpected: list[str], misshapen: list[str], *, strict: bool
) -> str:
    lines = ["The weights in the checkpoint do not fit the model."]
    for title, names in (
        ("in the model, not in the checkpoint", missing if strict else []),
        ("in the checkpoint, not in the model", unexpected if strict else []),
        ("of another shape", misshapen),
    ):
        if names:
            lines.append(f"  {title} ({len(names)}):")
            lines += [f"    {name}" for name in names[:20]]
            if len(names) > 20:
                lines.append(f"    … and {len(names) - 20} more")
    remedy = "Build the model that was saved"
    if not misshapen:
        remedy += ", or pass load_strict_model_weights=False to take what fits"
    return "\n".join([*lines, f"{remedy}."])
