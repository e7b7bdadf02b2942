"""Replace modules of a model in place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn
from torch.optim import Optimizer

from stretto.algorithms.errors import SurgeryError
from stretto.algorithms.surgery.adopt import adopt
from stretto.algorithms.surgery.guards import check_not_wrapped
from stretto.algorithms.surgery.optimizers import rebind_optimizers
from stretto.algorithms.surgery.policy import Policy
from stretto.algorithms.surgery.report import Replacement, SurgeryReport
from stretto.algorithms.torch_shim import child_slots
from stretto.algorithms.warnings import NoEffectWarning

__all__ = ["replace_modules"]

Exclude = Callable[[str, nn.Module], bool]
Successors = dict[nn.Parameter, tuple[nn.Parameter, ...]]

# These read the tensors of their children directly and never call them.
_READS_ITS_CHILDREN = (nn.MultiheadAttention,)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One module to be replaced at one place."""

    parent: nn.Module
    name: str
    path: str
    old: nn.Module
    new: nn.Module
    policy: Policy

    def describe(self) -> Replacement:
        return Replacement(
            path=self.path,
            old=type(self.old).__name__,
            new=type(self.new).__name__,
            policy=self.policy.name,
        )


class _Planner:
    """Walks a model and decides what to replace, without changing it."""

    def __init__(self, policies: Sequence[Policy], exclude: Exclude | None) -> None:
        self.policies = policies
        self.exclude = exclude
        self.steps: list[_Step] = []
        self.already: list[str] = []
        self.seen = 0
        self._built: dict[nn.Module, tuple[nn.Module, Policy]] = {}

    def visit(self, module: nn.Module, path: str = "") -> None:
        """Plan for everything below `module`."""
        for name, child in _children(module):
            child_path = f"{path}.{name}" if path else name
            if self.exclude is not None and self.exclude(child_path, child):
                continue
            self.seen += 1
            if any(policy.already(child) for policy in self.policies):
                self.already.append(child_path)
                continue
            built = self._build(child)
            if built is None:
                self.visit(child, child_path)
                continue
            new, policy = built
            self.steps.append(
                _Step(parent=module, name=name, path=child_path, old=child, new=new, policy=policy)
            )

    def _build(self, module: nn.Module) -> tuple[nn.Module, Policy] | None:
        if module not in self._built:
            policy = next((p for p in self.policies if p.applies(module)), None)
            if policy is None:
                return None
            self._built[module] = (policy.build(module), policy)
        return self._built[module]


def replace_modules(
    model: nn.Module,
    policies: Policy | Sequence[Policy],
    *,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    exclude: Exclude | None = None,
    warn: bool = True,
) -> SurgeryReport:
    """Replace, in place, every module to which a policy applies.

    The first policy that applies decides. A module that is used at several places gets one
    replacement, used at the same places. Children of a replaced module are not looked at, nor are
    those of `torch.nn.MultiheadAttention`, which never calls them. What goes over from the old to
    the new module is said at `stretto.algorithms.surgery.adopt`. If building a replacement fails,
    the model is as it was.

    Args:
        model: The model, not yet wrapped or sharded. The root itself cannot be replaced.
        policies: What to replace, and by what.
        optimizers: Existing optimizers over the model's parameters: any number, with any number
            of groups. Parameters are followed by identity and their state goes along.
        exclude: ``(path, module) -> bool``, True for modules to leave alone, with their children.
        warn: Whether to warn (`NoEffectWarning`) when nothing was there to replace.

    Returns:
        What changed.

    Raises:
        SurgeryError: The model is wrapped in DDP or FSDP, or is itself what a policy replaces.
    """
    policies = (policies,) if isinstance(policies, Policy) else tuple(policies)
    check_not_wrapped(model)
    _check_root(model, policies)
    planner = _Planner(policies, exclude)
    planner.visit(model)
    before = _named_parameters(model)
    successors = _install(planner.steps, fallback=_first_tensor(model))
    after = _named_parameters(model)
    live = set(after.values())
    dropped = rebind_optimizers(
        optimizers, successors, still_used=[old for old in successors if old in live]
    )
    if warn and not planner.steps and not planner.already:
        _warn_no_effect(model, policies, planner.seen)
    dropped_ids = {id(parameter) for parameter in dropped}
    return SurgeryReport(
        replaced=tuple(step.describe() for step in planner.steps),
        already=tuple(planner.already),
        parameters=successors,
        parameter_names=_changed_names(planner.steps, before, after, successors),
        dropped_state=tuple(name for name, p in after.items() if id(p) in dropped_ids),
    )


def _check_root(model: nn.Module, policies: Sequence[Policy]) -> None:
    for policy in policies:
        if policy.applies(model):
            raise SurgeryError(
                f"The model itself is a {type(model).__name__}, which {policy.name} would replace, "
                "and a root cannot be replaced in place. Wrap it: torch.nn.Sequential(model)."
            )


def _install(steps: Sequence[_Step], fallback: torch.Tensor | None) -> Successors:
    """Put every replacement in its place and return what came for the old parameters."""
    successors: Successors = {}
    done: set[nn.Module] = set()
    for step in steps:
        if step.old not in done:
            done.add(step.old)
            own = dict(step.old.named_parameters())
            adopt(step.new, step.old, fallback=fallback)
            new = dict(step.new.named_parameters())
            successors.update(_successors(own, new, step.policy.renamed))
        step.parent.register_module(step.name, step.new)
    return successors


def _successors(
    old: Mapping[str, nn.Parameter], new: Mapping[str, nn.Parameter], renamed: Mapping[str, str]
) -> Successors:
    """Match parameters by name; those without a predecessor come with the old module's weight."""
    kept = {id(parameter) for parameter in old.values()} & {id(p) for p in new.values()}
    result: Successors = {}
    for name, parameter in old.items():
        if id(parameter) not in kept:
            heir = new.get(renamed.get(name, name))
            result[parameter] = () if heir is None or id(heir) in kept else (heir,)
    taken = kept | {id(p) for coming in result.values() for p in coming}
    extra = tuple(p for p in new.values() if id(p) not in taken)
    if extra and old:
        anchor = old.get("weight", next(iter(old.values())))
        result[anchor] = (*result.get(anchor, ()), *extra)
    return result


def _changed_names(
    steps: Sequence[_Step],
    before: Mapping[str, nn.Parameter],
    after: Mapping[str, nn.Parameter],
    successors: Successors,
) -> dict[str, tuple[str, ...]]:
    changed: dict[str, tuple[str, ...]] = {}
    for step in steps:
        prefix = f"{step.path}."
        here = {name: p for name, p in after.items() if name.startswith(prefix)}
        for old_name in (name for name in before if name.startswith(prefix)):
            parameter = before[old_name]
            names = tuple(name for name, p in here.items() if p is parameter)
            if not names:
                coming = {id(p) for p in successors.get(parameter, ())}
                names = tuple(name for name, p in here.items() if id(p) in coming)
            if names != (old_name,):
                changed[old_name] = names
    return changed


def _warn_no_effect(model: nn.Module, policies: Sequence[Policy], seen: int) -> None:
    names = " and ".join(policy.name for policy in policies)
    warnings.warn(
        f"{names} changed nothing: none of the {seen} modules of {type(model).__name__} is of a "
        "kind that it replaces. Check the arguments, or leave the method out.",
        NoEffectWarning,
        stacklevel=4,
    )


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, _READS_ITS_CHILDREN):
        return
    for name, child in child_slots(module).items():
        if child is not None:
            yield name, child


def _first_tensor(module: nn.Module) -> torch.Tensor | None:
    tensors = chain(module.parameters(), module.buffers())
    return next((tensor for tensor in tensors if tensor.is_floating_point()), None)


def _named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters(remove_duplicate=False))
