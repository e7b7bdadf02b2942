"""Where tensors live."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping

import pytest
import torch
from torch import nn

from stretto.trainer.devices import Device, DeviceCPU, get_device

Pair = namedtuple("Pair", "first second")


class Meta(Device):
    """A device whose moves can be seen without a GPU."""

    name = "meta"
    dist_backend = ""

    @property
    def torch_device(self):
        return torch.device("meta")


class Encoding(dict):
    """A dict of a library's own type."""


class Movable:
    def __init__(self):
        self.moved_to = None

    def to(self, device):
        self.moved_to = device
        return self


def test_names():
    device = get_device("cpu")
    assert isinstance(device, DeviceCPU)
    assert get_device(device) is device
    assert get_device("CPU").torch_device == torch.device("cpu")
    assert (device.name, device.dist_backend) == ("cpu", "gloo")


def test_without_a_gpu_the_default_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert get_device().name == "cpu"
    with pytest.raises(ValueError, match="'gpu', but torch sees no CUDA device"):
        get_device("gpu")


def test_unknown_devices_are_refused():
    with pytest.raises(ValueError, match=r"'tpu'; use one of cpu, gpu, cuda, mps"):
        get_device("tpu")
    with pytest.raises(TypeError, match="device is a int"):
        get_device(3)
    if not torch.backends.mps.is_available():
        with pytest.raises(ValueError, match="'mps', but torch sees no Apple GPU"):
            get_device("mps")


def test_batches_of_any_shape_move_and_keep_it():
    movable = Movable()
    batch = {
        "tensor": torch.ones(2),
        "list": [torch.ones(1), "text", 3],
        "tuple": (torch.ones(1), None),
        "named": Pair(torch.ones(1), 2),
        "own": Encoding(ids=torch.ones(1)),
        "movable": movable,
    }
    moved = Meta().batch_to_device(batch)
    assert moved["tensor"].is_meta
    assert moved["list"][0].is_meta
    assert moved["list"][1:] == ["text", 3]
    assert moved["tuple"][0].is_meta
    assert moved["tuple"][1] is None
    assert type(moved["named"]) is Pair
    assert moved["named"].first.is_meta
    assert isinstance(moved["own"], Mapping)
    assert moved["own"]["ids"].is_meta
    assert movable.moved_to == torch.device("meta")
    assert not batch["tensor"].is_meta


def test_on_the_cpu_tensors_are_not_copied():
    tensor = torch.ones(3)
    assert DeviceCPU().batch_to_device((tensor, [tensor]))[1][0] is tensor


def test_modules_keep_their_parameters_and_optimizers_their_state():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    assert DeviceCPU().module_to_device(model) is model
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    Meta().optimizer_to_device(optimizer)
    state = optimizer.state[parameters[0]]
    assert state["exp_avg"].is_meta
    # Optimizers that are not fused count steps on the host.
    assert state["step"].device.type == "cpu"
