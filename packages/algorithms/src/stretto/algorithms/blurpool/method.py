"""Put the blurred layers into a model, by a function or as an algorithm of a run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from stretto.algorithms.blurpool.layers import BlurConv2d, BlurMaxPool2d
from stretto.algorithms.blurpool.maths import EdgeMode, as_pair, binomial_filter
from stretto.algorithms.state import SupportsSurgery
from stretto.algorithms.surgery import Policy, SurgeryReport, replace_modules
from stretto.algorithms.warnings import NoEffectWarning
from stretto.core_events import Algorithm, Event

if TYPE_CHECKING:
    from stretto.core_events import Logger

__all__ = ["BlurPool", "apply_blurpool"]

_CONVS = "BlurPool (convolutions)"
_POOLS = "BlurPool (max poolings)"
_log = logging.getLogger(__name__)


def apply_blurpool(
    model: nn.Module,
    replace_convs: bool = True,
    replace_maxpools: bool = True,
    blur_first: bool = True,
    min_channels: int = 16,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    *,
    filter_size: int = 3,
    padding_mode: EdgeMode = "reflect",
) -> SurgeryReport:
    """Add anti-aliasing filters to strided convolutions and max poolings, in place.

    Layers of stride 1 stay as they are, and so do poolings that return indices (there are none
    after a blur) and subclasses with a forward of their own. Parameters stay the same objects, so
    optimizers, tied weights and hooks go on working. Applying it twice is applying it once.

    Args:
        model: The model, before DDP or ``fully_shard``.
        replace_convs: Whether to blur convolutions. Default: yes.
        replace_maxpools: Whether to blur max poolings. Default: yes.
        blur_first: Whether convolutions blur their input (cheap) or their output (as in the
            paper, about four times the work at stride 2). Default: the input.
        min_channels: Convolutions with fewer input channels stay as they are; the first layer of
            an image model is the usual reason. Default: 16.
        optimizers: Optimizers that exist already. Nothing has to be changed in them; the argument
            is there for symmetry with other methods.
        filter_size: Taps of the binomial filter along a strided axis, 2 to 7. Default: 3.
        padding_mode: ``reflect``, ``replicate`` or ``zeros`` (as Composer: borders get darker).

    Returns:
        What was replaced.

    Raises:
        ValueError: `filter_size` or `padding_mode` is none of those.
        SurgeryError: The model is wrapped already.
    """
    _check(filter_size, padding_mode)
    policies: list[Policy] = []
    if replace_convs:
        policies.append(_for_convs(blur_first, min_channels, filter_size, padding_mode))
    if replace_maxpools:
        policies.append(_for_pools(filter_size, padding_mode))
    return replace_modules(model, policies, optimizers=optimizers)


def _for_convs(
    blur_first: bool, min_channels: int, filter_size: int, padding_mode: EdgeMode
) -> Policy:
    def build(module: nn.Module) -> nn.Module:
        conv = _as(nn.Conv2d, module)
        return BlurConv2d.like(
            conv, blur_first=blur_first, filter_size=filter_size, edge_mode=padding_mode
        )

    return Policy(
        name=_CONVS,
        applies=lambda module: _is_eligible_conv(module, min_channels),
        build=build,
        already=lambda module: isinstance(module, BlurConv2d),
    )


def _for_pools(filter_size: int, padding_mode: EdgeMode) -> Policy:
    def build(module: nn.Module) -> nn.Module:
        pool = _as(nn.MaxPool2d, module)
        return BlurMaxPool2d.like(pool, filter_size=filter_size, edge_mode=padding_mode)

    return Policy(
        name=_POOLS,
        applies=_is_eligible_pool,
        build=build,
        already=lambda module: isinstance(module, BlurMaxPool2d),
    )


class BlurPool(Algorithm[SupportsSurgery]):
    """Anti-aliasing filters in a run: `apply_blurpool` at `Event.INIT`.

    Args:
        replace_convs: As in `apply_blurpool`.
        replace_maxpools: As in `apply_blurpool`.
        blur_first: As in `apply_blurpool`.
        min_channels: As in `apply_blurpool`.
        filter_size: As in `apply_blurpool`.
        padding_mode: As in `apply_blurpool`.

    Attributes:
        report: What was replaced, after `Event.INIT`.

    Raises:
        ValueError: `filter_size` or `padding_mode` is not possible.
    """

    events = (Event.INIT,)

    def __init__(
        self,
        replace_convs: bool = True,
        replace_maxpools: bool = True,
        blur_first: bool = True,
        min_channels: int = 16,
        *,
        filter_size: int = 3,
        padding_mode: EdgeMode = "reflect",
    ) -> None:
        _check(filter_size, padding_mode)
        if not (replace_convs or replace_maxpools):
            warnings.warn(
                "BlurPool(replace_convs=False, replace_maxpools=False) will change nothing.",
                NoEffectWarning,
                stacklevel=2,
            )
        self.replace_convs = replace_convs
        self.replace_maxpools = replace_maxpools
        self.blur_first = blur_first
        self.min_channels = min_channels
        self.filter_size = filter_size
        self.padding_mode: EdgeMode = padding_mode
        self.report: SurgeryReport | None = None

    @staticmethod
    def required_on_load() -> bool:
        """Trained weights mean something only with the blur in place."""
        return True

    def apply(self, event: Event, state: SupportsSurgery, logger: Logger) -> None:
        """Change the model."""
        del event
        self.report = apply_blurpool(
            state.model,
            self.replace_convs,
            self.replace_maxpools,
            self.blur_first,
            self.min_channels,
            state.optimizers,
            filter_size=self.filter_size,
            padding_mode=self.padding_mode,
        )
        _log.info("BlurPool:\n%s", self.report.summary())
        logger.log_hyperparameters(
            {
                "blurpool/num_blurconv_layers": self.report.count(_CONVS),
                "blurpool/num_blurpool_layers": self.report.count(_POOLS),
            }
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "report": None}


def _check(filter_size: int, padding_mode: str) -> None:
    binomial_filter(filter_size)
    if padding_mode not in ("reflect", "replicate", "zeros"):
        raise ValueError(f"padding_mode={padding_mode!r}. Give 'reflect', 'replicate' or 'zeros'.")


def _is_eligible_conv(module: nn.Module, min_channels: int) -> bool:
    return (
        isinstance(module, nn.Conv2d)
        and type(module).forward is nn.Conv2d.forward
        and max(module.stride) > 1
        and module.in_channels >= min_channels
    )


def _is_eligible_pool(module: nn.Module) -> bool:
    return (
        isinstance(module, nn.MaxPool2d)
        and type(module).forward is nn.MaxPool2d.forward
        and max(as_pair(module.stride)) > 1
        and not module.return_indices
    )


def _as(kind: type[Any], module: nn.Module) -> Any:
    if not isinstance(module, kind):
        raise TypeError(f"{type(module).__name__} is no {kind.__name__}.")
    return module
