"""Averaging gradients over the ranks by hand, for when DDP was told to hold them all back."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from stretto.trainer import _torch
from stretto.trainer.parallel.collectives import DataParallelSums


def average_gradients(model: nn.Module, sums: DataParallelSums) -> None:
    """Replace every gradient by its mean over the ranks, as DDP would.

    A parameter that got a gradient on some rank gets one on all; one that got none anywhere keeps
    none.

    Args:
        model: The unwrapped model, the same on every rank.
        sums: The ranks.
    """
    parameters = [
        parameter for _, parameter in _torch.named_parameters(model) if parameter.requires_grad
    ]
    used = sums.counts([parameter.grad is not None for parameter in parameters])
    grouped: defaultdict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for parameter, anywhere in zip(parameters, used, strict=True):
        if anywhere:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grouped[parameter.grad.dtype, parameter.grad.device].append(parameter.grad)
    for gradients in grouped.values():
        _torch.copy_back(sums.mean(_torch.flattened(gradients)), gradients)
