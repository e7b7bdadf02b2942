"""Which modules FSDP2 shards one by one.

Parameters of one module are gathered together, so a module ought to be a block of the network:
neither a single layer (too many small messages) nor the whole (no memory saved).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

from torch import nn

_MARK = "_fsdp_wrap"


def blocks_to_shard(model: nn.Module, *, auto_wrap: bool = True) -> list[nn.Module]:
    """Return the modules to shard one by one, inner ones first; the rest goes with the root.

    A block is a child of a ``ModuleList`` or ``Sequential`` that occurs there more than once (two
    or more children of its class) and has children itself. Blocks within blocks are not looked
    for: experts that some ranks do not use would make those ranks wait for each other.

    A module with ``_fsdp_wrap = True`` is always a block, one with ``_fsdp_wrap = False`` never.
    The same goes for what ``fsdp_wrap_fn(module)`` says yes or no to, where the model or one of
    its children has such a method.

    Args:
        model: The root.
        auto_wrap: Look for repeated blocks; else only what is marked counts.
    """
    owners = (owner for owner in (model, *model.children()) if hasattr(owner, "fsdp_wrap_fn"))
    wishes = cast(
        "Callable[[nn.Module], Any] | None", getattr(next(owners, model), "fsdp_wrap_fn", None)
    )
    found = list(_walk(model, wishes, look=auto_wrap))
    unique = {id(module): module for module in found if module is not model}
    return [module for module in unique.values() if not isinstance(module, nn.ModuleList)]


def _walk(
    module: nn.Module, wishes: Callable[[nn.Module], Any] | None, *, look: bool
) -> Iterator[nn.Module]:
    kinds = Counter(type(child) for child in module.children())
    repeats = look and isinstance(module, nn.ModuleList | nn.Sequential)
    for child in module.children():
        wish = _wish(child, wishes)
        is_block = wish
        if wish is None:
            is_block = repeats and kinds[type(child)] > 1 and _is_composite(child)
        yield from _walk(child, wishes, look=look and not is_block)
        if is_block and any(True for _ in child.parameters()):
            yield child


def _wish(module: nn.Module, wishes: Callable[[nn.Module], Any] | None) -> bool | None:
    """Return what the user said about a module: yes, no, or nothing."""
    mark = getattr(module, _MARK, None)
    if mark is not None:
        return bool(mark)
    if wishes is not None:
        answer = wishes(module)
        return None if answer is None else bool(answer)
    return None


def _is_composite(module: nn.Module) -> bool:
    return any(True for _ in module.children())
