"""Surgery replaces what it should and leaves everything else as it was."""

from __future__ import annotations

import copy
import gc
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrizations, prune

from stretto.algorithms import NoEffectWarning, SurgeryError, apply_blurpool
from stretto.algorithms.surgery import Policy, replace_modules


class LowRank(nn.Module):
    """A linear layer as a product of two: nothing in it is called as in what it replaces."""

    def __init__(self, linear: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(x))


class Scaled(nn.Linear):
    """A linear layer with a parameter more."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.scale = nn.Parameter(torch.ones(linear.out_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


class Renamed(nn.Module):
    """The same layer with parameters of its own under other names."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.kernel = nn.Parameter(linear.weight.detach().clone())
        self.offset = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.kernel, self.offset)


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.gain


def is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear


LOW_RANK = Policy(name="LowRank", applies=is_linear, build=LowRank)
SCALED = Policy(
    name="Scaled",
    applies=is_linear,
    build=Scaled,
    already=lambda module: isinstance(module, Scaled),
)
NAMES = {"weight": "kernel", "bias": "offset"}
RENAMED = Policy(name="Renamed", applies=is_linear, build=Renamed, renamed=NAMES)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def train_once(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    model(torch.randn(5, 4)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def test_kept_parameters_are_the_same_objects_with_everything_they_had():
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).to(torch.bfloat16)
    model[0].weight.requires_grad_(False)
    model[0].eval()
    before = dict(model.named_parameters())
    report = replace_modules(model, SCALED)
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert [r.path for r in report.replaced] == ["0", "1"]
    assert model[0].training is False
    assert model[1].training is True
    assert not model[0].weight.requires_grad
    assert model[0].scale.dtype is torch.bfloat16
    assert model[0].scale.requires_grad  # the bias was not frozen
    assert report.parameter_names == {}


def test_new_tensors_of_a_frozen_module_are_frozen():
    model = mlp()
    model[0].requires_grad_(False)
    replace_modules(model, SCALED)
    assert not model[0].scale.requires_grad
    assert model[2].scale.requires_grad


def test_new_tensors_take_the_memory_format_and_the_device():
    class Gate(nn.Conv2d):
        def __init__(self, conv: nn.Conv2d) -> None:
            super().__init__(conv.in_channels, conv.out_channels, 3, device="meta")
            self.gate = nn.Parameter(torch.ones(1, conv.out_channels, 3, 3))

    policy = Policy(name="Gate", applies=lambda m: type(m) is nn.Conv2d, build=Gate)
    model = nn.Sequential(nn.Conv2d(3, 5, 3)).to(memory_format=torch.channels_last)
    replace_modules(model, policy)
    assert model[0].gate.is_contiguous(memory_format=torch.channels_last)
    assert not model[0].gate.is_contiguous()
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 5, 3))
    replace_modules(model, policy)
    assert model[0].gate.is_meta


def test_a_new_tensor_without_values_is_an_error():
    class Hollow(nn.Linear):
        def __init__(self, linear: nn.Linear) -> None:
            super().__init__(linear.in_features, linear.out_features, device="meta")
            self.extra = nn.Parameter(torch.empty(2, device="meta"))

    with pytest.raises(SurgeryError, match="extra was built on the meta device"):
        replace_modules(mlp(), Policy(name="Hollow", applies=is_linear, build=Hollow))


def test_hooks_go_along_and_their_handles_keep_working():
    model = mlp()
    calls: list[str] = []
    forward = model[0].register_forward_hook(lambda *_: calls.append("forward"))
    kwargs = model[0].register_forward_pre_hook(
        lambda module, args, kwargs: calls.append("pre"), with_kwargs=True
    )
    model[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    loads: list[nn.Module] = []
    model[0].register_load_state_dict_pre_hook(lambda module, *_: loads.append(module))
    replace_modules(model, SCALED)
    gc.collect()
    model(torch.randn(2, 4)).sum().backward()
    assert calls == ["pre", "forward", "backward"]
    forward.remove()
    kwargs.remove()
    calls.clear()
    model(torch.randn(2, 4)).sum().backward()
    assert calls == ["backward"]
    model.load_state_dict(model.state_dict())
    assert loads == [model[0]]


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight

    model = Tied()
    replace_modules(model, Policy(name="Scaled", applies=is_linear, build=_scaled_without_bias))
    assert type(model.head) is Scaled
    assert model.head.weight is model.embedding.weight


def _scaled_without_bias(module: nn.Module) -> nn.Module:
    new = Scaled(module)
    new.bias = None
    return new


def test_a_module_used_twice_gets_one_replacement():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    report = replace_modules(model, LOW_RANK)
    assert model[0] is model[2]
    assert [r.path for r in report.replaced] == ["0", "2"]


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_parameters_move_within_their_group_over_several_groups_and_optimizers(make):
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 4)})
    first = make(
        [
            {"params": [model.a.weight], "weight_decay": 0.1},
            {"params": [model.a.bias, model.b.bias], "weight_decay": 0.0},
        ],
        lr=0.1,
    )
    second = make([model.b.weight, *model.c.parameters()], lr=0.2)
    old = dict(model.named_parameters())
    report = replace_modules(model, RENAMED, optimizers=[first, second])
    new = {
        name: model.get_parameter(name.replace("weight", "kernel").replace("bias", "offset"))
        for name in old
    }
    assert report.parameter_names["a.weight"] == ("a.kernel",)
    assert [id(p) for p in first.param_groups[0]["params"]] == [id(new["a.weight"])]
    assert [id(p) for p in first.param_groups[1]["params"]] == [
        id(new["a.bias"]),
        id(new["b.bias"]),
    ]
    assert [id(p) for p in second.param_groups[0]["params"]] == [
        id(new[name]) for name in ("b.weight", "c.weight", "c.bias")
    ]
    assert first.param_groups[0]["weight_decay"] == 0.1
    assert {id(k): [id(p) for p in v] for k, v in report.parameters.items()} == {
        id(old[name]): [id(new[name])] for name in old
    }


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_state_is_transplanted_so_that_training_goes_on_as_if_nothing_had_happened(momentum):
    def run(operate: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        for step in range(4):
            if step == 2 and operate:
                replace_modules(model, RENAMED, optimizers=optimizer)
            train_once(model, optimizer)
        return [p.detach() for p in model.parameters()]

    for with_surgery, without in zip(run(True), run(False), strict=True):
        assert torch.equal(with_surgery, without)


def test_adam_state_goes_along_and_old_parameters_leave_no_trace():
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    train_once(model, optimizer)
    old = list(model.parameters())
    moments = [optimizer.state[p]["exp_avg"] for p in old]
    replace_modules(model, RENAMED, optimizers=optimizer)
    new = list(model.parameters())
    assert all(optimizer.state[p]["exp_avg"] is m for p, m in zip(new, moments, strict=True))
    assert not any(p in optimizer.state for p in old)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train_once(model, optimizer)


def test_state_that_fits_nothing_is_dropped_and_reported():
    model = mlp()
    optimizer = torch.optim.Adam(
        [{"params": [model[0].weight, model[2].weight]}, {"params": [model[0].bias, model[2].bias]}]
    )
    train_once(model, optimizer)
    report = replace_modules(model, LOW_RANK, optimizers=optimizer)
    assert report.dropped_state == ("0.down.weight", "2.down.weight")
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in model.parameters()}
    assert optimizer.param_groups[1]["params"] == []  # biases that are gone leave their group
    train_once(model, optimizer)


def test_a_wrapper_keeps_the_inner_state_and_adds_to_the_weights_group():
    model = mlp()
    optimizer = torch.optim.Adam(
        [
            {"params": [model[0].bias, model[2].bias], "lr": 1.0},
            {"params": [model[0].weight, model[2].weight], "lr": 2.0},
        ]
    )
    train_once(model, optimizer)
    weight = model[0].weight
    state = optimizer.state[weight]
    policy = Policy(name="Wrapped", applies=is_linear, build=Wrapped)
    report = replace_modules(model, policy, optimizers=optimizer)
    assert model[0].inner.weight is weight
    assert optimizer.state[weight] is state
    group = [id(p) for p in optimizer.param_groups[1]["params"]]
    assert id(model[0].gain) in group
    assert id(model[2].gain) in group
    assert report.parameter_names["0.weight"] == ("0.inner.weight",)
    assert report.parameter_names["0.bias"] == ("0.inner.bias",)


def test_it_is_idempotent_and_says_so():
    model = mlp()
    assert replace_modules(model, SCALED)
    layers = list(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = replace_modules(model, SCALED)
    assert not report
    assert report.already == ("0", "2")
    assert list(model) == layers
    assert "done before" in report.summary()


def test_nothing_to_replace_warns():
    with pytest.warns(NoEffectWarning, match=r"LowRank changed nothing: none of the 1 modules"):
        assert not replace_modules(nn.Sequential(nn.ReLU()), LOW_RANK)


def test_a_builder_that_fails_leaves_the_model_as_it_was():
    def build(module: nn.Module) -> nn.Module:
        if module.in_features == 6:
            raise ValueError("no")
        return LowRank(module)

    model = mlp()
    layers = list(model)
    with pytest.raises(ValueError, match="no"):
        replace_modules(model, Policy(name="Fails", applies=is_linear, build=build))
    assert list(model) == layers


def test_excluded_parts_and_attention_stay():
    model = nn.ModuleDict(
        {"attention": nn.MultiheadAttention(4, 2), "keep": mlp(), "change": mlp()}
    )
    report = replace_modules(model, LOW_RANK, exclude=lambda path, _: path == "keep")
    assert [r.path for r in report.replaced] == ["change.0", "change.2"]


def test_the_root_is_refused():
    with pytest.raises(SurgeryError, match="Sequential"):
        replace_modules(nn.Linear(2, 2), LOW_RANK)


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_ddp_is_refused(one_process):
    wrapped = nn.parallel.DistributedDataParallel(mlp())
    with pytest.raises(SurgeryError, match="DistributedDataParallel"):
        replace_modules(wrapped, LOW_RANK)


def test_sharded_modules_are_refused(one_process):
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(mlp())
    fully_shard(model[0])
    with pytest.raises(SurgeryError, match="before DDP or fully_shard"):
        replace_modules(model, LOW_RANK)


REPARAMETRIZED = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "old weight_norm": nn.utils.weight_norm,
    "old spectral_norm": nn.utils.spectral_norm,
    "prune": lambda conv: prune.l1_unstructured(conv, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("wrap", REPARAMETRIZED.values(), ids=list(REPARAMETRIZED))
@pytest.mark.parametrize("training", [True, False])
def test_reparametrized_weights_go_along(wrap, training):
    def build() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(wrap(nn.Conv2d(16, 8, 3, stride=2))).train(training)

    model, reference = build(), build()
    names = [(name, id(p)) for name, p in model.named_parameters()]
    keys = list(model.state_dict())
    apply_blurpool(model)
    assert [(name, id(p)) for name, p in model.named_parameters()] == names
    assert list(model.state_dict()) == keys
    x = torch.randn(2, 16, 9, 9)
    expected = reference(model[0].blur(x))
    torch.testing.assert_close(model(x), expected)
    for name, tensor in reference.state_dict().items():  # power iterations included
        torch.testing.assert_close(model.state_dict()[name], tensor)
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
