"""What surgery did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

__all__ = ["Replacement", "SurgeryReport"]

Parameters = Mapping[nn.Parameter, tuple[nn.Parameter, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """One module that was replaced.

    Attributes:
        path: Where it is, as in `torch.nn.Module.get_submodule`.
        old: The class that stood there.
        new: The class that stands there now.
        policy: The policy that asked for it.
    """

    path: str
    old: str
    new: str
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SurgeryReport:
    """What changed. True in a boolean context if anything did.

    Attributes:
        replaced: The modules replaced, in the model's order; a module that is used at several
            places is listed at each.
        already: Paths of modules that an earlier surgery of the same kind had put there.
        parameters: Every old parameter with those that came for it: its successors if it left the
            model, and whatever else should be trained as it is. Empty where the replacements kept
            the parameters themselves and added none, as `BlurPool`'s do.
        parameter_names: Every old parameter name that changed, with the new names.
        dropped_state: New names of parameters whose optimizer state could not be kept, since the
            shapes differ.
    """

    replaced: tuple[Replacement, ...] = ()
    already: tuple[str, ...] = ()
    parameters: Parameters = field(default_factory=dict[nn.Parameter, tuple[nn.Parameter, ...]])
    parameter_names: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )
    dropped_state: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.replaced)

    def count(self, policy: str) -> int:
        """Return how many places a policy changed."""
        return sum(replacement.policy == policy for replacement in self.replaced)

    def summary(self) -> str:
        """Return one line a replacement, for a log."""
        lines = [f"{r.path}: {r.old} -> {r.new}" for r in self.replaced]
        lines += [f"{path}: done before" for path in self.already]
        lines += [f"{name}: optimizer state dropped" for name in self.dropped_state]
        return "\n".join(lines) if lines else "nothing changed"
