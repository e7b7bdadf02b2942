"""What surgery should replace, and by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

__all__ = ["Policy"]


def _never(module: nn.Module) -> bool:
    del module
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One kind of replacement.

    Attributes:
        name: What the report calls it.
        applies: Whether a module is to be replaced.
        build: Makes the replacement. Best on the ``meta`` device: parameters and buffers that the
            old module has under the same name and with the same shape are taken over as the very
            same objects afterwards, so that nothing is initialised in vain and no random number is
            drawn. A tensor that only the new module has must be given real values by `build`.
        renamed: Which new parameter comes for which old one, by name within the module, where the
            names differ. With equal shapes it inherits the optimizer's state.
        already: Whether a module is the result of this policy, which makes surgery idempotent.
    """

    name: str
    applies: Callable[[nn.Module], bool]
    build: Callable[[nn.Module], nn.Module]
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    already: Callable[[nn.Module], bool] = _never
