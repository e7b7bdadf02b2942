"""Gradients are sums over ranks and microbatches, whatever the strategy and the microbatch size.

The oracle is a plain torch loop in one process over the whole global batch.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

SINGLE, DDP, FSDP = None, {"ddp": {}}, {"fsdp": {}}


def body(config, sync, sizes, lengths, freeze=False, tied=False):
    """Return the gradients by name for each microbatch size, as rank 0 sees them."""
    import torch
    from torch import nn

    from stretto.trainer.devices import DeviceCPU
    from stretto.trainer.distributed import Topology, initialize_dist
    from stretto.trainer.parallel import canonical_parameters, make_strategy

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(7, 5), nn.Linear(5, 7)

        def forward(self, x):
            return x + self.down(torch.tanh(self.up(x)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inward = nn.Linear(3, 7)
            self.blocks = nn.ModuleList([Block() for _ in range(3)])
            self.head = nn.Linear(7, 3)
            if tied:
                self.head.weight = nn.Parameter(self.inward.weight.detach().T.clone())
                self.extra = nn.Linear(7, 3)
                self.extra.weight = self.head.weight

        def forward(self, x):
            x = self.inward(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x) + (self.extra(x) if tied else 0)

    device = DeviceCPU()
    initialize_dist(device, timeout=60)
    topology = Topology.from_environment()
    rank = topology.global_rank
    found = {}
    for size in sizes:
        # Ranks start from different weights: preparing must make them rank 0's.
        torch.manual_seed(100 + rank)
        model = Net()
        model.inward.weight.requires_grad_(not freeze)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        strategy = make_strategy(config, topology, device, ddp_sync_strategy=sync)
        prepared = strategy.prepare(model, [optimizer], device)

        data = torch.Generator().manual_seed(7)
        x, y = torch.randn(sum(lengths), 3, generator=data), torch.arange(sum(lengths)) % 3
        start = sum(lengths[:rank])
        x, y = x[start : start + lengths[rank]], y[start : start + lengths[rank]]
        (denominator,) = strategy.sum_counts([len(x)])
        assert denominator == sum(lengths)
        parts = list(zip(x.split(size), y.split(size), strict=True))
        # Every rank does as many microbatches as any other.
        for place, (xs, ys) in enumerate(parts):
            with strategy.microbatch_context(prepared, is_last=place == len(parts) - 1):
                loss = nn.functional.cross_entropy(prepared.module(xs), ys, reduction="sum")
                (loss * strategy.gradient_multiplier / denominator).backward()

        gradients = {}
        for name, parameter in canonical_parameters(prepared.model).items():
            gradient = parameter.grad
            if gradient is not None:
                whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
                gradients[name] = whole.clone()
        found[size] = gradients
    return found


def oracle(lengths, seed=100):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(7, 5), nn.Linear(5, 7)

        def forward(self, x):
            return x + self.down(torch.tanh(self.up(x)))

    torch.manual_seed(seed)
    model = nn.ModuleDict(
        {
            "inward": nn.Linear(3, 7),
            "blocks": nn.ModuleList([Block() for _ in range(3)]),
            "head": nn.Linear(7, 3),
        }
    )
    data = torch.Generator().manual_seed(7)
    x, y = torch.randn(sum(lengths), 3, generator=data), torch.arange(sum(lengths)) % 3
    hidden = model["inward"](x)
    for block in model["blocks"]:
        hidden = block(hidden)
    nn.functional.cross_entropy(model["head"](hidden), y).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_equal(gradients, expected):
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-5, atol=1e-7, msg=name)


@pytest.fixture
def one_process(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_single(one_process):
    for gradients in body(SINGLE, None, [1, 4, 5, 12], [12]).values():
        assert_equal(gradients, oracle([12]))


@pytest.mark.parametrize("sync", [None, "single_auto_sync", "multi_auto_sync", "forced_sync"])
def test_ddp(run_ranks, sync):
    expected = oracle([6, 6])
    for rank in run_ranks(body, config=DDP, sync=sync, sizes=[1, 4, 6], lengths=[6, 6]):
        for gradients in rank.values():
            assert_equal(gradients, expected)


@pytest.mark.parametrize("sync", [None, "multi_auto_sync"])
@pytest.mark.parametrize(
    "options", [{}, {"auto_wrap": False}, {"sharding_strategy": "SHARD_GRAD_OP"}]
)
def test_fsdp(run_ranks, sync, options):
    expected = oracle([6, 6])
    config = {"fsdp": options}
    for rank in run_ranks(body, config=config, sync=sync, sizes=[1, 4, 6], lengths=[6, 6]):
        for gradients in rank.values():
            assert_equal(gradients, expected)


@pytest.mark.parametrize("config", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_ranks_with_unequal_batches_weigh_by_samples(run_ranks, config):
    expected = oracle([6, 2])
    # One microbatch on each rank: six samples there, two here.
    for rank in run_ranks(body, config=config, sync=None, sizes=[6], lengths=[6, 2]):
        assert_equal(rank[6], expected)


@pytest.mark.parametrize("config", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_frozen_parameters_get_no_gradient(run_ranks, config):
    expected = oracle([4, 4])
    del expected["inward.weight"]
    for rank in run_ranks(body, config=config, sync=None, sizes=[2], lengths=[4, 4], freeze=True):
        assert_equal(rank[2], expected)


def test_tied_weights_agree_between_ddp_and_fsdp(run_ranks):
    arguments = {"sync": None, "sizes": [2, 4], "lengths": [4, 4], "tied": True}
    by_ddp = run_ranks(body, config=DDP, **arguments)[0]
    by_fsdp = run_ranks(body, config=FSDP, **arguments)[0]
    assert "head.weight" in by_ddp[2]
    assert "extra.weight" not in by_ddp[2]
    for size in (2, 4):
        assert_equal(by_fsdp[size], by_ddp[4])


def test_fsdp_on_one_rank(run_ranks):
    (rank,) = run_ranks(body, n=1, config=FSDP, sync=None, sizes=[2, 5], lengths=[5])
    for gradients in rank.values():
        assert_equal(gradients, oracle([5]))


@pytest.mark.slow
@pytest.mark.parametrize("sync", [None, "multi_auto_sync"])
@pytest.mark.parametrize(
    "config",
    [
        DDP,
        FSDP,
        {"fsdp": {"sharding_strategy": "HYBRID_SHARD", "data_parallel_shard_degree": 2}},
    ],
    ids=["ddp", "fsdp", "hybrid"],
)
def test_four_ranks(run_ranks, config, sync):
    lengths = [3, 3, 3, 3]
    for rank in run_ranks(body, n=4, config=config, sync=sync, sizes=[1, 2], lengths=lengths):
        for gradients in rank.values():
            assert_equal(gradients, oracle(lengths))
