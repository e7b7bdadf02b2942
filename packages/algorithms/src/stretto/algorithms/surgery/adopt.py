"""Let a new module take the place of an old one in everything that others can see."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import cast

import torch
from torch import nn
from torch.nn.utils import parametrize

from stretto.algorithms.errors import SurgeryError
from stretto.algorithms.torch_shim import (
    buffer_slots,
    hook_dicts,
    named_modules,
    non_persistent_buffers,
    parameter_slots,
)

__all__ = ["adopt"]


def adopt(new: nn.Module, old: nn.Module, *, fallback: torch.Tensor | None = None) -> None:
    """Give `new` all that `old` had: tensors, device, dtype, memory format, mode and hooks.

    * Parameters and buffers of the same name and shape are taken over as the same objects. Tied
      weights stay tied, ``requires_grad`` stays as it is, and optimizers need not be told.
    * Parametrizations (weight norm, spectral norm, pruning, …) go along, in the new and the old
      style.
    * Tensors that only `new` has go to the device, floating dtype and memory format of the old
      ones; they are frozen if all the old parameters were.
    * ``training`` and all hooks go along; handles that users hold on the hooks keep working.

    Args:
        new: The replacement. It is changed.
        old: The module replaced. It shares its tensors and hooks with `new` and is of no further
            use.
        fallback: A tensor to take device and dtype from if `old` has none.

    Raises:
        SurgeryError: A tensor of `new` has no values (is on the meta device) and no counterpart.
    """
    new.train(old.training)
    _take_parametrizations(new, old)
    _take_tensors(new, old)
    reference = next((t for t in _tensors(old) if t.is_floating_point()), fallback)
    if reference is not None:
        _match_reference(new, reference, adopted={id(tensor) for tensor in _tensors(old)})
    own = list(old.parameters())
    if own and not any(parameter.requires_grad for parameter in own):
        new.requires_grad_(False)
    _take_hooks(new, old)


def _plain_type(module: nn.Module) -> type[nn.Module]:
    """Return the module's class, without the subclass that parametrizations put in between."""
    if parametrize.is_parametrized(module):
        return cast("type[nn.Module]", type(module).__mro__[1])
    return type(module)


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _take_parametrizations(new: nn.Module, old: nn.Module) -> None:
    if not parametrize.is_parametrized(old):
        return
    parametrizations = cast("nn.ModuleDict", old.parametrizations)
    modes = {module: module.training for module in parametrizations.modules()}
    parametrizations.eval()
    new.eval()  # in training mode, registering would make spectral norm iterate once more
    for name in parametrizations:
        value = cast("torch.Tensor", getattr(old, name))
        setattr(new, name, nn.Parameter(value.detach().clone()))
    parametrize.transfer_parametrizations_and_params(old, new)
    new.train(old.training)
    for module, mode in modes.items():
        module.training = mode


def _take_tensors(new: nn.Module, old: nn.Module) -> None:
    drop_in = isinstance(new, _plain_type(old))
    for slots in (parameter_slots, buffer_slots):
        mine = slots(new)
        for name, tensor in slots(old).items():
            if drop_in or (name in mine and _same_shape(mine[name], tensor)):
                mine[name] = tensor
    if drop_in:
        non_persistent_buffers(new).update(non_persistent_buffers(old))
        _take_reparametrized(new, old)


def _take_reparametrized(new: nn.Module, old: nn.Module) -> None:
    """Follow old-style weight norm and pruning, where ``weight`` is an attribute, no parameter."""
    mine, theirs = parameter_slots(new), parameter_slots(old)
    for name in list(mine):
        if name not in theirs and name in old.__dict__:
            del mine[name]
            new.__dict__[name] = old.__dict__[name]


def _same_shape(mine: torch.Tensor | None, theirs: torch.Tensor | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return mine.shape == theirs.shape


def _match_reference(new: nn.Module, reference: torch.Tensor, adopted: set[int]) -> None:
    """Move the tensors that only the new module has to where and what the old ones are."""
    for path, module in named_modules(new):
        for slots in (parameter_slots(module), buffer_slots(module)):
            for name, tensor in slots.items():
                if tensor is None or id(tensor) in adopted:
                    continue
                if tensor.is_meta and not reference.is_meta:
                    raise SurgeryError(
                        f"{type(new).__name__}: {f'{path}.{name}' if path else name} was built on "
                        "the meta device, and the module replaced has nothing of that name and "
                        "shape. Build it with values."
                    )
                moved = _like(tensor.detach(), reference)
                if isinstance(tensor, nn.Parameter):
                    moved = nn.Parameter(moved, requires_grad=tensor.requires_grad)
                slots[name] = moved


def _like(tensor: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    channels_last = (
        tensor.dim() == reference.dim() == 4
        and reference.is_contiguous(memory_format=torch.channels_last)
        and not reference.is_contiguous()
    )
    return tensor.to(
        device=reference.device,
        dtype=reference.dtype if tensor.is_floating_point() else tensor.dtype,
        memory_format=torch.channels_last if channels_last else torch.preserve_format,
    )


def _take_hooks(new: nn.Module, old: nn.Module) -> None:
    """Hand over the dictionaries themselves: a handle removes its hook from the one it knows."""
    mine = hook_dicts(new)
    for name, theirs in hook_dicts(old).items():
        for key, hook in mine.get(name, {}).items():
            theirs.setdefault(key, hook)
        for hook in theirs.values():
            # A hook that is called with its module keeps a weak reference to the old one.
            if getattr(hook, "with_module", False) and hook.module() is old:
                hook.module = weakref.ref(new)
        new.__dict__[name] = theirs
    new.__dict__["_is_full_backward_hook"] = old.__dict__["_is_full_backward_hook"]
