"""Scaling the loss, so that gradients in fp16 do not underflow.

Like torch's own gradient scaler, with two differences: a gradient that is not finite on any rank
skips the step on every rank, also where each rank holds only a slice of it; and the checks of
several optimizers cross to the host together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from stretto.trainer import _torch


class LossScaler:
    """Multiplies the loss, divides the gradients, skips steps that overflowed.

    Args:
        device: Where the gradients are.
        initial_scale: The first factor.
        growth_factor: The factor grows by this after ``growth_interval`` good steps in a row.
        backoff_factor: The factor shrinks by this after a step that overflowed.
        growth_interval: See ``growth_factor``.
        agree: Makes a tensor of flags the largest over all ranks, in place. Default: one rank.

    Raises:
        ValueError: A factor or the interval makes no sense.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        initial_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        agree: Callable[[Tensor], None] | None = None,
    ) -> None:
        if initial_scale <= 0 or growth_factor <= 1 or not 0 < backoff_factor < 1:
            raise ValueError(
                f"A loss scale of {initial_scale} that grows by {growth_factor} and shrinks by "
                f"{backoff_factor} cannot work: give a positive scale, a growth factor above 1 and "
                f"a backoff factor between 0 and 1."
            )
        if growth_interval < 1:
            raise ValueError(
                f"growth_interval is {growth_interval}; give a whole number from 1 up."
            )
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._agree = agree
        self._scale = torch.full((), initial_scale, dtype=torch.float32, device=device)
        self._good_steps = torch.zeros((), dtype=torch.int32, device=device)
        self._found: dict[int, Tensor] = {}

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss times the factor."""
        return loss * self._scale

    def unscale(self, optimizers: Sequence[Optimizer]) -> None:
        """Divide these optimizers' gradients by the factor and look whether they are finite.

        Once a step: optimizers that were unscaled since the last :meth:`step` are left alone.
        """
        fresh = [optimizer for optimizer in optimizers if id(optimizer) not in self._found]
        if not fresh:
            return
        inverse = self._scale.double().reciprocal().float()
        flags = torch.zeros(len(fresh), dtype=torch.float32, device=self._scale.device)
        for position, optimizer in enumerate(fresh):
            for gradients in _local_gradients(optimizer):
                _torch.unscale_and_check(gradients, flags[position : position + 1], inverse)
        if self._agree is not None:
            self._agree(flags)
        for position, optimizer in enumerate(fresh):
            self._found[id(optimizer)] = flags[position]

    def step(self, optimizers: Sequence[Optimizer]) -> None:
        """Apply the gradients of the optimizers that did not overflow, then set the next factor.

        The host reads one number for all optimizers together; none if all of them can skip a step
        by themselves (the fused ones).
        """
        self.unscale(optimizers)
        flags = torch.stack([self._found[id(optimizer)] for optimizer in optimizers])
        plain = [optimizer for optimizer in optimizers if not _skips_by_itself(optimizer)]
        overflowed = _torch.floats(flags) if plain else []
        for position, optimizer in enumerate(optimizers):
            if _skips_by_itself(optimizer):
                _step_fused(optimizer, flags[position])
            elif not overflowed[position]:
                _torch.optimizer_step(optimizer)
        _torch.update_scale(
            self._scale,
            self._good_steps,
            flags.amax(),
            growth=self._growth_factor,
            backoff=self._backoff_factor,
            interval=self._growth_interval,
        )
        self._found.clear()

    def state_dict(self) -> dict[str, float | int]:
        """Return the factor and the number of good steps since it last changed."""
        return {"scale": float(self._scale), "growth_tracker": int(self._good_steps)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with a saved factor."""
        self._scale.fill_(float(state_dict["scale"]))
        self._good_steps.fill_(int(state_dict["growth_tracker"]))


def _local_gradients(optimizer: Optimizer) -> list[list[Tensor]]:
    """Return the gradients that lie on this rank, those of one device and type together."""
    grouped: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for group in _torch.param_groups(optimizer):
        for parameter in group["params"]:
            gradient = cast("Tensor | None", parameter.grad)
            if gradient is None:
                continue
            if hasattr(gradient, "to_local"):
                gradient = cast("Tensor", cast("Any", gradient).to_local())
            grouped[gradient.device, gradient.dtype].append(gradient)
    return list(grouped.values())


def _skips_by_itself(optimizer: Optimizer) -> bool:
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def _step_fused(optimizer: Optimizer, flag: Tensor) -> None:
    fused = cast("Any", optimizer)
    fused.grad_scale, fused.found_inf = None, flag
    try:
        _torch.optimizer_step(optimizer)
    finally:
        del fused.grad_scale, fused.found_inf
