"""DistributedDataParallel: when gradients cross, unused parameters, buffers, starting values."""

from __future__ import annotations

import pytest
import torch


def unused(config, sync, use, by_algorithm=False):
    """Two branches; ``use[rank][microbatch]`` says which one a microbatch takes."""
    import torch
    from torch import nn

    from stretto.trainer.devices import DeviceCPU
    from stretto.trainer.distributed import Topology, initialize_dist
    from stretto.trainer.parallel import canonical_parameters, make_strategy

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.never = nn.Linear(2, 2, bias=False)
            for layer in (self.left, self.right, self.never):
                nn.init.ones_(layer.weight)

        def forward(self, x, branch):
            return getattr(self, branch)(x)

    device = DeviceCPU()
    initialize_dist(device, timeout=20)
    topology = Topology.from_environment()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = make_strategy(config, topology, device, ddp_sync_strategy=sync)
    prepared = strategy.prepare(model, [optimizer], device, find_unused_parameters=by_algorithm)
    mine = use[topology.global_rank]
    grads = []
    for _ in range(2):
        optimizer.zero_grad()
        for place, branch in enumerate(mine):
            with strategy.microbatch_context(prepared, is_last=place == len(mine) - 1):
                x = torch.full((1, 2), float(place + 1 + 10 * topology.global_rank))
                out = prepared.module(x, branch).sum()
                (out * strategy.gradient_multiplier).backward()
        step = {}
        for name, parameter in canonical_parameters(prepared.model).items():
            grad = parameter.grad
            if grad is not None:
                whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
                step[name] = float(whole.clone()[0, 0])
        grads.append(step)
    assert grads[0] == grads[1]
    return grads[0]


CASES = {
    # A branch unused on one rank (field report D9).
    "one rank": [["left", "left"], ["left", "right"]],
    # Used in an early microbatch of one rank, and nowhere in the last.
    "early only": [["right", "left"], ["left", "left"]],
    # Each rank another branch, one microbatch.
    "one microbatch": [["left"], ["right"]],
}


def expected(use):
    sums = {}
    for rank, branches in enumerate(use):
        for place, branch in enumerate(branches):
            name = f"{branch}.weight"
            sums[name] = sums.get(name, 0.0) + place + 1 + 10 * rank
    return sums


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sync", [None, "multi_auto_sync", "forced_sync"])
def test_unused_parameters_are_summed_over_the_ranks_that_use_them(run_ranks, case, sync):
    """Field report D9: the default is safe with unused parameters."""
    use = CASES[case]
    for rank in run_ranks(unused, config=None, sync=sync, use=use, by_algorithm=True):
        used = {name: value for name, value in rank.items() if value or name in expected(use)}
        assert used == expected(use)


def test_the_user_may_say_that_parameters_are_unused(run_ranks):
    use = CASES["one rank"]
    config = {"ddp": {"find_unused_parameters": True}}
    for rank in run_ranks(unused, config=config, sync=None, use=use):
        assert rank == expected(use)


@pytest.mark.parametrize("case", CASES)
def test_unused_parameters_under_fsdp(run_ranks, case):
    use = CASES[case]
    for rank in run_ranks(unused, config={"fsdp": {}}, sync=None, use=use, by_algorithm=True):
        used = {name: value for name, value in rank.items() if value or name in expected(use)}
        assert used == expected(use)


def test_gradients_cross_in_the_last_microbatch_only(run_ranks):
    def body(sync, microbatches):
        import torch
        from torch import nn

        from stretto.trainer.devices import DeviceCPU
        from stretto.trainer.distributed import Topology, initialize_dist
        from stretto.trainer.parallel import make_strategy

        device = DeviceCPU()
        initialize_dist(device, timeout=20)
        model = nn.Linear(3, 2)
        strategy = make_strategy(None, Topology.from_environment(), device, ddp_sync_strategy=sync)
        prepared = strategy.prepare(model, [], device)
        crossings = []

        def hook(state, bucket):
            crossings.append(current)
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        prepared.module.register_comm_hook(None, hook)
        for current in range(microbatches):
            with strategy.microbatch_context(prepared, is_last=current == microbatches - 1):
                prepared.module(torch.ones(1, 3)).sum().backward()
        return crossings

    assert run_ranks(body, sync=None, microbatches=4) == [[3], [3]]
    assert run_ranks(body, sync="multi_auto_sync", microbatches=3) == [[0, 1, 2]] * 2


@pytest.mark.parametrize("config", [None, {"fsdp": {}}], ids=["ddp", "fsdp"])
def test_ranks_start_equal_and_saved_buffers_stay_equal(run_ranks, config):
    def body(config):
        import torch
        from torch import nn

        from stretto.trainer.devices import DeviceCPU
        from stretto.trainer.distributed import Topology, initialize_dist
        from stretto.trainer.parallel import make_strategy

        device = DeviceCPU()
        initialize_dist(device, timeout=20)
        topology = Topology.from_environment()
        torch.manual_seed(topology.global_rank)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 2))
        model = model.to(memory_format=torch.channels_last)
        model[1].register_buffer("drawn", torch.rand(3))
        model[1].register_buffer("scratch", torch.rand(2), persistent=False)
        strategy = make_strategy(config, topology, device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        prepared = strategy.prepare(model, [optimizer], device)

        def whole(tensor):
            return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

        def snapshot():
            state = model.state_dict()
            return {name: whole(value).detach().clone() for name, value in state.items()}

        start = snapshot()
        model[1].scratch.fill_(topology.global_rank)
        for _ in range(2):
            for place in range(2):
                with strategy.microbatch_context(prepared, is_last=place == 1):
                    # Ranks see different data, so their statistics would drift apart.
                    x = torch.randn(4, 1, 6, 6) + topology.global_rank
                    prepared.module(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return start, snapshot(), model[1].scratch.tolist()

    (start, end, scratch), (other_start, other_end, other_scratch) = run_ranks(body, config=config)
    for name in start:
        torch.testing.assert_close(start[name], other_start[name], rtol=0, atol=0, msg=name)
        torch.testing.assert_close(end[name], other_end[name], rtol=0, atol=0, msg=name)
    assert not torch.equal(start["1.running_mean"], end["1.running_mean"])
    assert end["1.num_batches_tracked"] == 4
    # What no checkpoint holds is each rank's own.
    assert (scratch, other_scratch) == ([0.0, 0.0], [1.0, 1.0])


def test_counts_and_losses_over_ranks(run_ranks):
    def body():
        import torch

        from stretto.trainer.devices import DeviceCPU
        from stretto.trainer.distributed import Topology, initialize_dist
        from stretto.trainer.parallel import make_strategy

        device = DeviceCPU()
        initialize_dist(device, timeout=20)
        topology = Topology.from_environment()
        strategy = make_strategy(None, topology, device)
        loss = torch.tensor([1.0, 2.0]) * (topology.global_rank + 1)
        mean = strategy.mean_loss(loss)
        huge = 2**40 + topology.global_rank
        return strategy.sum_counts([3, huge, topology.global_rank]), mean.tolist(), loss.tolist()

    first, second = run_ranks(body)
    assert first == ((6, 2**41 + 1, 1), [1.5, 3.0], [1.0, 2.0])
    assert second == ((6, 2**41 + 1, 1), [1.5, 3.0], [2.0, 4.0])


def test_a_failed_step_can_be_repeated_only_where_nobody_waits(run_ranks):
    def body():
        from stretto.trainer.devices import DeviceCPU
        from stretto.trainer.distributed import Topology, initialize_dist
        from stretto.trainer.parallel import make_strategy

        initialize_dist("cpu", timeout=20)
        topology = Topology.from_environment()
        ranks = [make_strategy(c, topology, DeviceCPU()).can_retry() for c in (None, {"fsdp": {}})]
        return [make_strategy(None, Topology.single(), DeviceCPU()).can_retry(), *ranks]

    assert run_ranks(body) == [[True, False, False]] * 2
