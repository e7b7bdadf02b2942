"""Number formats, and who unscales, checks and applies gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stretto.trainer.devices import DeviceCPU
from stretto.trainer.distributed import Topology
from stretto.trainer.precision import LossScaler, Precision, make_precision_policy

CPU = DeviceCPU()
ALONE = Topology.single()


def test_the_cpu_trains_in_fp32_by_default():
    policy = make_precision_policy(None, CPU, ALONE)
    assert policy.precision is Precision.FP32
    assert policy.state_dict() == {}
    with policy.forward_context():
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype is torch.float32
    # Nothing to do costs nothing: the same context each time.
    assert policy.forward_context() is policy.forward_context()


@pytest.mark.parametrize("name", ["amp_bf16", "AMP_BF16", Precision.AMP_BF16])
def test_the_cpu_can_do_bf16(name):
    """Field report M14: it used to be refused."""
    policy = make_precision_policy(name, CPU, ALONE)
    model = nn.Linear(4, 4)
    for _ in range(2):
        with policy.forward_context():
            out = model(torch.ones(1, 4))
    assert out.dtype is torch.bfloat16
    assert model.weight.dtype is torch.float32


def test_bf16_trains_to_about_what_fp32_does():
    losses = {}
    for name in ("fp32", "amp_bf16"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x = torch.randn(64, 8)
        y = x[:, :3].argmax(1)
        policy = make_precision_policy(name, CPU, ALONE)
        for _ in range(60):
            with policy.forward_context():
                loss = nn.functional.cross_entropy(model(x), y)
            policy.backward(loss)
            policy.unscale([optimizer])
            policy.step([optimizer])
            optimizer.zero_grad()
        losses[name] = loss.item()
    assert losses["fp32"] < 0.2
    assert losses["amp_bf16"] == pytest.approx(losses["fp32"], abs=0.05)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fp64", r"The precision is 'fp64'; on cpu use one of fp32, amp_bf16"),
        ("amp_fp8", r"'amp_fp8'; on cpu use one of"),
        ("amp_fp16", r"'amp_fp16' is not supported on the device 'cpu'\. It needs a GPU"),
    ],
)
def test_what_the_cpu_cannot_do_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        make_precision_policy(name, CPU, ALONE)


def model_and_optimizers():
    torch.manual_seed(1)
    model = nn.ModuleList([nn.Linear(3, 2), nn.Linear(2, 1)])
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.5) for part in model]
    return model, optimizers


def forward(model, scale=1.0):
    return model[1](torch.tanh(model[0](torch.ones(1, 3)))).sum() * scale


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_a_scaled_step_equals_a_plain_one():
    model, optimizers = model_and_optimizers()
    forward(model).backward()
    for optimizer in optimizers:
        optimizer.step()
    expected = weights(model)

    model, optimizers = model_and_optimizers()
    scaler = LossScaler(torch.device("cpu"), initial_scale=1024.0)
    scaler.scaled(forward(model)).backward()
    assert model[1].bias.grad.item() == 1024.0
    scaler.unscale(optimizers)
    scaler.unscale(optimizers)  # once a step, however often it is asked for
    assert model[1].bias.grad.item() == 1.0
    scaler.step(optimizers)
    for ours, plain in zip(weights(model), expected, strict=True):
        torch.testing.assert_close(ours, plain)


def test_a_step_that_overflowed_is_skipped_and_the_scale_shrinks():
    model, optimizers = model_and_optimizers()
    before = weights(model)
    scaler = LossScaler(torch.device("cpu"), initial_scale=8.0)
    forward(model, scale=float("inf")).backward()
    scaler.step(optimizers)
    assert all(torch.equal(a, b) for a, b in zip(weights(model), before, strict=True))
    assert scaler.state_dict() == {"scale": 4.0, "growth_tracker": 0}


def test_only_the_optimizer_that_overflowed_is_skipped():
    model, optimizers = model_and_optimizers()
    before = weights(model)
    scaler = LossScaler(torch.device("cpu"), initial_scale=1.0)
    scaler.scaled(forward(model)).backward()
    model[0].weight.grad[0, 0] = float("nan")
    scaler.step(optimizers)
    after = weights(model)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[3], after[3])
    assert scaler.state_dict()["scale"] == 0.5


def test_the_scale_grows_after_good_steps_in_a_row():
    model, optimizers = model_and_optimizers()
    scaler = LossScaler(torch.device("cpu"), initial_scale=2.0, growth_interval=3)
    seen = []
    for step in range(7):
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scaled(forward(model)).backward()
        if step == 1:
            model[1].bias.grad.fill_(float("inf"))
        scaler.step(optimizers)
        seen.append(scaler.state_dict()["scale"])
    assert seen == [2.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0]


def test_it_behaves_like_torchs_own_scaler():
    """The oracle: torch.amp.GradScaler on the same gradients."""
    model, (optimizer, _) = model_and_optimizers()
    other, (other_optimizer, _) = model_and_optimizers()
    ours = LossScaler(torch.device("cpu"), initial_scale=64.0, growth_interval=2)
    torchs = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        gradient = torch.randn(2, 3, generator=generator) * 100
        if step % 5 == 3:
            gradient[0, 1] = float("inf")
        model[0].weight.grad = gradient.clone()
        other[0].weight.grad = gradient.clone()
        ours.step([optimizer])
        torchs.scale(torch.ones(1))
        torchs.step(other_optimizer)
        torchs.update()
        torch.testing.assert_close(model[0].weight, other[0].weight)
        assert ours.state_dict()["scale"] == torchs.get_scale()


def test_the_scale_is_saved_and_loaded():
    scaler = LossScaler(torch.device("cpu"), initial_scale=2.0)
    scaler.load_state_dict({"scale": 128.0, "growth_tracker": 7})
    assert scaler.state_dict() == {"scale": 128.0, "growth_tracker": 7}


def test_parameters_without_gradient_are_no_matter():
    _, optimizers = model_and_optimizers()
    scaler = LossScaler(torch.device("cpu"))
    scaler.step(optimizers)
    assert scaler.state_dict() == {"scale": 65536.0, "growth_tracker": 1}


@pytest.mark.parametrize(
    "arguments",
    [
        {"initial_scale": 0.0},
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"growth_interval": 0},
    ],
)
def test_factors_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError, match=r"growth|scale"):
        LossScaler(torch.device("cpu"), **arguments)


@pytest.mark.parametrize("config", [None, {"fsdp": {}}], ids=["ddp", "fsdp"])
def test_all_ranks_skip_a_step_that_overflowed_on_one(run_ranks, config):
    """Decision 8: under FSDP each rank sees its slices only, so they must agree."""

    def body(config):
        import torch
        from torch import nn

        from stretto.trainer import _torch
        from stretto.trainer.devices import DeviceCPU
        from stretto.trainer.distributed import Topology, initialize_dist
        from stretto.trainer.parallel import make_strategy
        from stretto.trainer.precision import LossScaler

        device = DeviceCPU()
        initialize_dist(device, timeout=20)
        topology = Topology.from_environment()
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        strategy = make_strategy(config, topology, device)
        prepared = strategy.prepare(model, [optimizer], device)
        scaler = LossScaler(
            torch.device("cpu"), initial_scale=4.0, agree=lambda t: _torch.all_reduce(t, "MAX")
        )
        changed = []
        for overflow in (False, True, False):
            optimizer.zero_grad()
            with strategy.microbatch_context(prepared, is_last=True):
                loss = prepared.module(torch.ones(2, 4)).sum()
                scaler.scaled(loss * strategy.gradient_multiplier).backward()
            if overflow and topology.global_rank == 1:
                gradient = model.bias.grad
                local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
                local[-1] = float("inf")
            before = [p.detach().clone() for p in model.parameters()]
            scaler.step([optimizer])
            after = list(model.parameters())
            if hasattr(after[0], "to_local"):
                before = [p.to_local() for p in before]
                after = [p.to_local() for p in after]
            changed.append([not torch.equal(a, b) for a, b in zip(after, before, strict=True)])
        return changed, scaler.state_dict()["scale"]

    expected = ([[True, True], [False, False], [True, True]], 2.0)
    assert run_ranks(body, config=config) == [expected, expected]
