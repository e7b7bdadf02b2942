"""Sharded gradients are clipped as the whole gradients would be, on two real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import copy, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from stretto.algorithms import apply_gradient_clipping

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.ModuleDict(
    {"conv": nn.Conv2d(2, 5, 3), "head": nn.Linear(7, 3), "plain": nn.Linear(3, 2, bias=False)}
)
values = [torch.randn(p.shape) for p in model.parameters()]
whole = copy.deepcopy(model)
for name in ("conv", "head"):  # "plain" stays unsharded: both kinds in one model
    fully_shard(model[name], mesh=mesh)


def fill(model, bad):
    for parameter, value in zip(model.parameters(), values):
        value = value.clone()
        if bad and value.dim() == 2 and value.size(0) == 3:
            value[2, 1] = float("inf")
        if isinstance(parameter, DTensor):
            from torch.distributed.tensor import distribute_tensor
            parameter.grad = distribute_tensor(value, mesh, parameter.placements)
        else:
            parameter.grad = value


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


for bad in (False, True):
    for kind, threshold in (("norm", 0.5), ("value", 0.3), ("adaptive", 0.02)):
        fill(model, bad)
        fill(whole, bad)
        found = apply_gradient_clipping(model, kind, threshold, fsdp_enabled=True)
        expected = apply_gradient_clipping(whole, kind, threshold)
        if expected is not None:
            assert type(found) is torch.Tensor
            torch.testing.assert_close(found, expected)
        for one, two in zip(model.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(full(one.grad), two.grad)
        if not bad and kind == "norm":
            norm = float(nn.utils.get_total_norm([p.grad for p in whole.parameters()]))
            assert abs(norm - 0.5) < 1e-3
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2])
def test_sharded_and_plain_gradients_together(tmp_path: Path, world_size: int) -> None:
    script = tmp_path / "clip.py"
    script.write_text(SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [process.communicate(timeout=280)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
