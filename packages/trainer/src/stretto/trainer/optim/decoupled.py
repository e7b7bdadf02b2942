"""SGD whose weight decay does not go through the momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from stretto.trainer._loose import add_all, add_all_, multiply_all_


class DecoupledSGDW(Optimizer):
    """Stochastic gradient descent with decoupled weight decay.

    A step is `w <- w * (1 - weight_decay * lr / initial_lr) - lr * d`, where `d` is the gradient,
    or its momentum buffer: the decay follows the schedule, not the size of the learning rate.

    Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2017, arXiv 1711.05101.

    Args:
        params: Parameters or groups of them.
        lr: The learning rate.
        momentum: Factor of the momentum buffer.
        dampening: How much of a gradient does not enter the buffer.
        weight_decay: Share of a weight that decays in one step at the initial rate.
        nesterov: Whether to look ahead.

    Raises:
        ValueError: If a value is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            group.setdefault("initial_lr", group["lr"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step.

        Args:
            closure: Computes the loss again and returns it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        weights = [p for p in cast("list[Tensor]", group["params"]) if p.grad is not None]
        if not weights:
            return
        directions = [cast("Tensor", p.grad) for p in weights]
        if group["momentum"]:
            directions = self._with_momentum(group, weights, directions)
        lr, initial = group["lr"], group.get("initial_lr", group["lr"])
        if group["weight_decay"] and initial:
            multiply_all_(weights, 1 - group["weight_decay"] * lr / initial)
        add_all_(weights, directions, -lr)

    def _with_momentum(
        self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]
    ) -> list[Tensor]:
        buffers: list[Tensor] = []
        for weight, gradient in zip(weights, gradients, strict=True):
            state = self.state[weight]
            buffer = state.get("momentum_buffer")
            if buffer is None:
                buffer = state["momentum_buffer"] = gradient.clone()
            else:
                buffer.mul_(group["momentum"]).add_(gradient, alpha=1 - group["dampening"])
            buffers.append(buffer)
        if not group["nesterov"]:
            return buffers
        return add_all(gradients, buffers, group["momentum"])
