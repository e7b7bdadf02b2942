"""Schedules of the learning rate as functions of a run's progress.

With a scale schedule ratio (`ssr`) the whole run is stretched: `max_duration` was already scaled,
times in other units are multiplied here. A warm-up keeps its length unless `scale_warmup=True`,
whether it is given in batches or as a fraction of the run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from stretto.core_events import TimeUnit
from stretto.trainer.optim.timeline import read_time, resolve, same_unit

if TYPE_CHECKING:
    from stretto.core_events import State, Time, TimeInput
    from stretto.trainer.optim.timeline import Span


@runtime_checkable
class ComposerScheduler(Protocol):
    """Anything that maps a run's state to a multiplier of the initial learning rate."""

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Return the multiplier.

        Args:
            state: The run.
            ssr: The scale schedule ratio.
        """
        ...


class ConstantScheduler:
    """Keeps `alpha` until `t_max`, then 0.

    Args:
        alpha: The multiplier.
        t_max: When it ends; the whole run by default.
    """

    def __init__(self, alpha: float = 1.0, t_max: TimeInput = "1dur") -> None:
        self.alpha = alpha
        self.t_max = read_time("t_max", t_max)

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Return the multiplier at the state's progress."""
        end = _end(self.t_max, state, ssr)
        return self.alpha if end.position(state) <= end.length else 0.0


class LinearWithWarmupScheduler:
    """Rises from 0 to `alpha_i` in `t_warmup`, then goes straight to `alpha_f` at `t_max`.

    Args:
        t_warmup: Length of the rise.
        alpha_i: Multiplier at the end of the rise.
        alpha_f: Multiplier from `t_max` on.
        t_max: When `alpha_f` is reached; the whole run by default.
        scale_warmup: Whether the scale schedule ratio stretches the rise too.
    """

    def __init__(
        self,
        t_warmup: TimeInput,
        alpha_i: float = 1.0,
        alpha_f: float = 0.0,
        t_max: TimeInput = "1dur",
        scale_warmup: bool = False,
    ) -> None:
        self.t_warmup = read_time("t_warmup", t_warmup)
        self.alpha_i = alpha_i
        self.alpha_f = alpha_f
        self.t_max = read_time("t_max", t_max)
        self.scale_warmup = scale_warmup

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Return the multiplier at the state's progress."""
        rise, fraction = _progress(self.t_warmup, self.t_max, state, ssr, self.scale_warmup)
        if rise < 1.0:
            return self.alpha_i * rise
        return self.alpha_i + (self.alpha_f - self.alpha_i) * fraction


class LinearScheduler(LinearWithWarmupScheduler):
    """Goes straight from `alpha_i` to `alpha_f` at `t_max`.

    Args:
        alpha_i: Multiplier at the start.
        alpha_f: Multiplier from `t_max` on.
        t_max: When `alpha_f` is reached; the whole run by default.
    """

    def __init__(
        self, alpha_i: float = 1.0, alpha_f: float = 0.0, t_max: TimeInput = "1dur"
    ) -> None:
        super().__init__("0dur", alpha_i, alpha_f, t_max)


class CosineAnnealingWithWarmupScheduler:
    """Rises from 0 to 1 in `t_warmup`, then falls along half a cosine to `alpha_f` at `t_max`.

    Args:
        t_warmup: Length of the rise.
        t_max: When `alpha_f` is reached; the whole run by default.
        alpha_f: Multiplier from `t_max` on.
        scale_warmup: Whether the scale schedule ratio stretches the rise too.
    """

    def __init__(
        self,
        t_warmup: TimeInput,
        t_max: TimeInput = "1dur",
        alpha_f: float = 0.0,
        scale_warmup: bool = False,
    ) -> None:
        self.t_warmup = read_time("t_warmup", t_warmup)
        self.t_max = read_time("t_max", t_max)
        self.alpha_f = alpha_f
        self.scale_warmup = scale_warmup

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Return the multiplier at the state's progress."""
        rise, fraction = _progress(self.t_warmup, self.t_max, state, ssr, self.scale_warmup)
        if rise < 1.0:
            return rise
        return self.alpha_f + (1 - self.alpha_f) * 0.5 * (1 + math.cos(math.pi * fraction))


class CosineAnnealingScheduler(CosineAnnealingWithWarmupScheduler):
    """Falls from 1 along half a cosine to `alpha_f` at `t_max`.

    Args:
        t_max: When `alpha_f` is reached; the whole run by default.
        alpha_f: Multiplier from `t_max` on.
    """

    def __init__(self, t_max: TimeInput = "1dur", alpha_f: float = 0.0) -> None:
        super().__init__("0dur", t_max, alpha_f)


def _end(t_max: Time, state: State, ssr: float) -> Span:
    return resolve("t_max", t_max, state, 1.0 if t_max.unit is TimeUnit.DURATION else ssr)


def _progress(
    t_warmup: Time, t_max: Time, state: State, ssr: float, scale_warmup: bool
) -> tuple[float, float]:
    """Return how much of the warm-up and how much of the rest has passed, each at most 1."""
    in_dur = t_warmup.unit is TimeUnit.DURATION
    stretch = (1.0 if in_dur else ssr) if scale_warmup else (1.0 / ssr if in_dur else 1.0)
    end = _end(t_max, state, ssr)
    if t_warmup.value == 0:
        warmup, now = 0.0, end.position(state)
    else:
        rise = resolve("t_warmup", t_warmup, state, stretch)
        same_unit(("t_warmup", t_warmup, rise), ("t_max", t_max, end))
        warmup, now = rise.length, end.position(state)
    if now < warmup:
        return now / warmup, 0.0
    rest = end.length - warmup
    return 1.0, min(1.0, (now - warmup) / rest) if rest > 0 else float(now > warmup)
