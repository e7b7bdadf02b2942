"""Nothing in a step waits for the device: shown with torch's make-believe CUDA tensors.

A `FakeTensor` has a shape, a type and a device, and no values: whoever asks for a value, as every
wait for the device does, gets an exception. No GPU is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from stretto.algorithms import GradientClipping, LabelSmoothing, MixUp
from stretto.algorithms.testing import LoopState
from stretto.core_events import Event, Logger


@pytest.fixture
def cuda() -> Iterator[torch.device]:
    with FakeTensorMode():
        yield torch.device("cuda")


class Logits(nn.Module):
    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch[1])


def test_the_instrument_notices_a_wait(cuda):
    with pytest.raises(DataDependentOutputException):
        float(torch.empty(3, device=cuda).sum())
    with pytest.raises(DataDependentOutputException):
        bool(torch.empty((), device=cuda) > 0)


@pytest.mark.parametrize("ignored", [-100, 3])
def test_mixing_and_smoothing(cuda, ignored):
    methods = [MixUp(1.0, ignore_index=ignored), LabelSmoothing(0.1, ignore_index=ignored)]
    state = LoopState(Logits(), algorithms=methods)
    logger = Logger(state)
    state.batch = (torch.empty(8, 3, 4, 4, device=cuda), torch.zeros(8, device=cuda).long())
    for method in methods:
        if method.match(Event.AFTER_DATALOADER, state):
            method.apply(Event.AFTER_DATALOADER, state, logger)
    whole = state.batch
    for microbatch in zip(*(part.split(4) for part in whole), strict=True):
        state.batch = microbatch
        state.outputs = torch.empty(4, 5, device=cuda, requires_grad=True)
        methods[0].apply(Event.BEFORE_FORWARD, state, logger)
        for method in methods:
            method.apply(Event.BEFORE_LOSS, state, logger)
        assert state.batch[1].device.type == "cuda"
        assert state.model.loss(state.outputs, state.batch).device.type == "cuda"
        for method in reversed(methods):
            method.apply(Event.AFTER_LOSS, state, logger)
        assert state.batch[1].shape == (4,)
    state.batch = whole
    methods[0].apply(Event.AFTER_TRAIN_BATCH, state, logger)
    assert state.batch[1].shape == (8,)


@pytest.mark.parametrize("kind", ["norm", "value", "adaptive"])
@pytest.mark.parametrize("non_finite", ["zero", "keep"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_clipping(cuda, kind, non_finite, dtype):
    layers = [
        nn.Conv2d(3, 4, 3, device=cuda, dtype=dtype),
        nn.BatchNorm2d(4, device=cuda, dtype=dtype),
    ]
    model = nn.Sequential(*layers)
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    state = LoopState(model)
    method = GradientClipping(kind, 1.0, non_finite=non_finite)
    method.apply(Event.AFTER_TRAIN_BATCH, state, Logger(state))


def test_clipping_waits_only_where_it_was_asked_to(cuda):
    model = nn.Linear(2, 2, device=cuda)
    model.weight.grad = torch.empty_like(model.weight)
    state = LoopState(model)
    with pytest.raises(DataDependentOutputException):
        GradientClipping("norm", 1.0, non_finite="raise").apply(
            Event.AFTER_TRAIN_BATCH, state, Logger(state)
        )
