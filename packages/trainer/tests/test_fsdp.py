"""FSDP2: what is sharded, optimizers that follow, options, inference."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from stretto.trainer.devices import DeviceCPU
from stretto.trainer.distributed import Topology
from stretto.trainer.parallel import make_strategy
from stretto.trainer.parallel.mesh import degrees
from stretto.trainer.parallel.options import (
    FSDPOptions,
    read_ddp_options,
    read_fsdp_options,
    read_sync_strategy,
)
from stretto.trainer.parallel.wrap import blocks_to_shard


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        return x + self.mlp(x)


def names(model, blocks):
    by_id = {id(module): name for name, module in model.named_modules()}
    return [by_id[id(block)] for block in blocks]


def test_repeated_blocks_are_sharded_one_by_one_and_single_layers_are_not():
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(10, 4),
            "layers": nn.ModuleList([Block(), Block(), Block()]),
            "norms": nn.ModuleList([nn.LayerNorm(4), nn.LayerNorm(4)]),
            "once": nn.Sequential(Block()),
            "head": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)),
        }
    )
    assert names(model, blocks_to_shard(model)) == ["layers.0", "layers.1", "layers.2"]
    assert blocks_to_shard(model, auto_wrap=False) == []


def test_a_mark_says_yes_or_no():
    model = nn.Sequential(Block(), Block(), nn.Linear(4, 4))
    model[1]._fsdp_wrap = False
    model[2]._fsdp_wrap = True
    assert names(model, blocks_to_shard(model)) == ["0", "2"]
    assert names(model, blocks_to_shard(model, auto_wrap=False)) == ["2"]


def test_marked_modules_within_a_block_come_before_it():
    model = nn.ModuleList([Block(), Block()])
    model[0].mlp._fsdp_wrap = True
    assert names(model, blocks_to_shard(model)) == ["0.mlp", "0", "1"]


def test_experts_within_a_block_stay_with_it():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList([Block(), Block()])

    model = nn.ModuleList([Mixture(), Mixture()])
    assert names(model, blocks_to_shard(model)) == ["0", "1"]


def test_the_models_own_rule_is_asked():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Block(), Block()

        def fsdp_wrap_fn(self, module):
            return module is self.second

    model = Model()
    assert names(model, blocks_to_shard(model)) == ["second"]


@pytest.mark.parametrize(
    ("options", "size", "expected"),
    [
        ({}, 4, (1, 4)),
        ({"data_parallel_shard_degree": 2}, 4, (2, 2)),
        ({"data_parallel_replicate_degree": 4}, 8, (4, 2)),
        ({"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 3}, 6, (2, 3)),
        ({"sharding_strategy": "HYBRID_SHARD", "data_parallel_shard_degree": 2}, 4, (2, 2)),
    ],
)
def test_degrees_split_the_ranks(options, size, expected):
    assert degrees(read_fsdp_options(options), size) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_parallel_shard_degree": 3}, r"1 times data_parallel_shard_degree 3 .* 4"),
        ({"data_parallel_replicate_degree": 3}, "is not the number of ranks, 4"),
        ({"data_parallel_replicate_degree": 0}, "is not the number of ranks, 4"),
        ({"sharding_strategy": "HYBRID_SHARD"}, "needs data_parallel_shard_degree"),
    ],
)
def test_degrees_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        degrees(read_fsdp_options(options), 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": 1}, r"unknown keys 'shard'; it knows .*sharding_strategy"),
        ({"state_dict_type": "sharded"}, "not supported yet.*Use 'full'"),
        ({"state_dict_type": "local"}, "'local'; use one of full"),
        ({"sharding_strategy": "NO_SHARD"}, "Leave 'fsdp' out"),
        ({"sharding_strategy": "SOME"}, "'SOME'; use one of FULL_SHARD"),
        ({"mixed_precision": "HALF"}, "'HALF'; use one of DEFAULT, PURE, FULL"),
        ({"mixed_precision": {"dtype": "bf16"}}, "unknown keys 'dtype'"),
        ({"cpu_offload": True}, r"\['cpu_offload'\] is True, which is not supported"),
        ({"data_parallel_shard_degree": 0}, "data_parallel_shard_degree is 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        read_fsdp_options(options)


def test_every_key_of_the_seeds_is_accepted_and_the_meaningless_ones_warn_once():
    # Composer's FSDPConfig with its defaults, composer-surface.md section 13.
    seed = {
        "activation_checkpointing": False,
        "activation_checkpointing_reentrant": True,
        "activation_cpu_offload": False,
        "auto_wrap": True,
        "te_checkpoint_wrapper": False,
        "te_shard_fp8_weight": False,
        "backward_prefetch": "BACKWARD_POST",
        "backward_prefetch_limit": 1,
        "cpu_offload": False,
        "data_parallel_shard_degree": -1,
        "data_parallel_replicate_degree": None,
        "forward_prefetch": False,
        "forward_prefetch_limit": 1,
        "ignored_modules": None,
        "keep_low_precision_grads": False,
        "limit_all_gathers": True,
        "load_monolith_rank0_only": False,
        "load_planner": None,
        "mixed_precision": "DEFAULT",
        "process_group": None,
        "save_planner": None,
        "sharded_ckpt_prefix_dir": "ep{epoch}-ba{batch}",
        "sharding_strategy": "FULL_SHARD",
        "state_dict_type": "full",
        "sync_module_states": False,
        "use_orig_params": True,
        "verbose": False,
    }
    with warnings.catch_warnings(record=True) as first:
        warnings.simplefilter("always")
        assert read_fsdp_options(seed) == FSDPOptions()
    with warnings.catch_warnings(record=True) as second:
        warnings.simplefilter("always")
        read_fsdp_options(seed)
    said = {str(warning.message).split("[")[2].split("]")[0] for warning in first}
    assert "'backward_prefetch'" in said
    assert "'mixed_precision'" not in said
    assert second == []


def test_options_of_ddp_and_sync_are_checked():
    with pytest.raises(ValueError, match="unknown keys 'find_unused'; it knows bucket_cap_mb"):
        read_ddp_options({"find_unused": True})
    with pytest.raises(ValueError, match="'often'; use one of single_auto_sync"):
        read_sync_strategy("often")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"zero": {}}, r"unknown keys 'zero'; it knows ddp, fsdp, fsdp2"),
        ({"tp": {"tensor_parallel_degree": 2}}, "tensor parallelism, which is not supported yet"),
        ({"fsdp": {}, "fsdp2": {}}, "more than one"),
    ],
)
def test_unknown_parallelism_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        make_strategy(config, Topology.single(), DeviceCPU())


def test_torchs_sharding_is_imported_only_when_chosen():
    import subprocess
    import sys

    code = (
        "import sys, torch.distributed\n"
        "import stretto.trainer.checkpoint.load, stretto.trainer.checkpoint.saver\n"
        "from stretto.trainer.parallel import make_strategy\n"
        "from stretto.trainer.devices import DeviceCPU\n"
        "from stretto.trainer.distributed import Topology\n"
        "make_strategy(None, Topology.single(), DeviceCPU())\n"
        "heavy = ('torch.distributed.fsdp', 'torch.distributed.checkpoint',"
        " 'stretto.trainer.parallel.fsdp', 'stretto.object_store')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


@pytest.mark.parametrize(
    ("model", "message"),
    [(nn.ReLU(), "ReLU has no parameters"), (nn.Linear(1, 1, device="meta"), "'weight' is on the")],
    ids=["empty", "meta"],
)
def test_a_model_that_cannot_be_trained_is_refused(model, message):
    strategy = make_strategy(None, Topology.single(), DeviceCPU())
    with pytest.raises(ValueError, match=message):
        strategy.prepare(model, [], DeviceCPU())


def test_an_optimizer_of_another_model_is_refused():
    strategy = make_strategy(None, Topology.single(), DeviceCPU())
    stranger = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"SGD holds a parameter of shape \(2, 3\) in group 0"):
        strategy.prepare(nn.Linear(3, 2), [stranger], DeviceCPU())


def test_optimizers_follow_their_parameters(run_ranks):
    """fully_shard replaces every parameter; groups, state and the objects themselves are kept."""

    def body():
        import torch
        from torch import nn

        from stretto.trainer.devices import DeviceCPU
        from stretto.trainer.distributed import Topology, initialize_dist
        from stretto.trainer.parallel import canonical_parameters, make_strategy

        device = DeviceCPU()
        initialize_dist(device, timeout=20)
        topology = Topology.from_environment()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
        decay, rest = [model[0].weight, model[2].weight], [model[0].bias, model[2].bias]
        first = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.5}, {"params": [rest[0]], "lr": 0.3}], lr=0.1
        )
        second = torch.optim.SGD([rest[1]], lr=0.2, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(first, lambda step: 1.0 / (step + 1))
        # Trained a little before it is prepared, so that there is state to carry over.
        model(torch.ones(2, 3)).sum().backward()
        first.step(), second.step()
        first.zero_grad(), second.zero_grad()
        moments = {
            name: first.state[p]["exp_avg"].clone()
            for name, p in model.named_parameters()
            if p in first.state
        }
        strategy = make_strategy({"fsdp": {}}, topology, device)
        prepared = strategy.prepare(model, [first, second], device)
        assert prepared.optimizers == (first, second)
        new = canonical_parameters(model)
        assert first.param_groups[0]["params"] == [new["0.weight"], new["2.weight"]]
        assert first.param_groups[1]["params"] == [new["0.bias"]]
        assert second.param_groups[0]["params"] == [new["2.bias"]]
        for name, moment in moments.items():
            kept = first.state[new[name]]["exp_avg"]
            assert kept.placements == new[name].placements
            torch.testing.assert_close(kept.full_tensor(), moment, rtol=0, atol=0)
        before = {name: p.full_tensor().clone() for name, p in new.items()}
        with strategy.microbatch_context(prepared, is_last=True):
            prepared.module(torch.ones(2, 3)).sum().backward()
        first.step(), second.step()
        schedule.step()
        assert first.param_groups[1]["lr"] == 0.15
        return [name for name, p in new.items() if torch.equal(p.full_tensor(), before[name])]

    assert run_ranks(body) == [[], []]


def test_each_rank_holds_its_slice_only(run_ranks):
    def body():
        import torch
        from torch import nn

        from stretto.trainer.devices import DeviceCPU
        from stretto.trainer.distributed import Topology, initialize_dist
        from stretto.trainer.parallel import make_strategy

        device = DeviceCPU()
        initialize_dist(device, timeout=20)
        strategy = make_strategy({"fsdp": {}}, Topology.from_environment(), device)
        model = nn.Sequential(nn.Linear(4, 10), nn.Linear(10, 7))
        optimizer = torch.optim.AdamW(model.parameters())
        prepared = strategy.prepare(model, [optimizer], device)
        with strategy.microbatch_context(prepared, is_last=True):
            model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        shapes = {n: tuple(p.to_local().shape) for n, p in model.named_parameters()}
        moments = {
            n: tuple(optimizer.state[p]["exp_avg"].to_local().shape)
            for n, p in model.named_parameters()
        }
        topology = strategy.topology
        return shapes, moments, (topology.shard_rank, topology.shard_size, topology.mesh.ndim)

    (first, moments, place), (second, other_moments, other_place) = run_ranks(body)
    assert (
        first
        == moments
        == {"0.weight": (5, 4), "0.bias": (5,), "1.weight": (4, 10), "1.bias": (4,)}
    )
    assert second == other_moments == {**first, "1.weight": (3, 10), "1.bias": (3,)}
    assert (place, other_place) == ((0, 2, 1), (1, 2, 1))


def test_evaluation_by_any_door_sees_whole_weights_and_leaves_shards(run_ranks):
    def body():
        import torch
        from torch import nn

        from stretto.trainer.devices import DeviceCPU
        from stretto.trainer.distributed import Topology, initialize_dist
        from stretto.trainer.parallel import make_strategy

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.layer(x))

        class Calls(Net):
            def eval_forward(self, batch, outputs=None):
                return self(batch) if outputs is None else outputs

        class CallsForward(Net):
            def eval_forward(self, batch, outputs=None):
                return self.forward(batch) if outputs is None else outputs

        class UsesHeadAfterwards(Net):
            def eval_forward(self, batch, outputs=None):
                return self(batch) + 0 * self.head(self.layer(batch))

        device = DeviceCPU()
        initialize_dist(device, timeout=20)
        topology = Topology.from_environment()
        x = torch.ones(3, 4)
        for kind in (Net, Calls, CallsForward, UsesHeadAfterwards):
            torch.manual_seed(0)
            model = kind()
            expected = model(x).detach()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            strategy = make_strategy({"fsdp": {}}, topology, device)
            prepared = strategy.prepare(model, [optimizer], device)
            evaluate = getattr(model, "eval_forward", model)
            held = set(optimizer.param_groups[0]["params"])
            with torch.no_grad():
                torch.testing.assert_close(evaluate(x), expected)
            assert set(model.parameters()) == held, kind
            with strategy.microbatch_context(prepared, is_last=False):
                prepared.module(x).sum().backward()
                with torch.no_grad():
                    evaluate(x)
            with strategy.microbatch_context(prepared, is_last=True):
                prepared.module(x).sum().backward()
                with torch.no_grad():
                    evaluate(x)
            assert set(model.parameters()) == held, kind
            # Both ranks saw three rows of ones, twice.
            bias = model.head.bias.grad.full_tensor()
            torch.testing.assert_close(bias, torch.full((2,), 12.0))
        return "ok"

    assert run_ranks(body) == ["ok"] * 2


@pytest.mark.parametrize("wish", ["DEFAULT", "PURE", {"param_dtype": "bf16"}])
def test_low_precision_gathers_and_keeps_masters_in_fp32(run_ranks, wish):
    def body(wish):
        import torch
        from torch import nn

        from stretto.trainer.devices import DeviceCPU
        from stretto.trainer.distributed import Topology, initialize_dist
        from stretto.trainer.parallel import make_strategy
        from stretto.trainer.precision import Precision, make_precision_policy

        device = DeviceCPU()
        initialize_dist(device, timeout=20)
        topology = Topology.from_environment()
        seen = []

        class Net(nn.Linear):
            def forward(self, x):
                seen.append(self.weight.dtype)
                return super().forward(x)

        torch.manual_seed(0)
        model = Net(8, 4)
        whole = model.weight.detach().clone()
        strategy = make_strategy(
            {"fsdp": {"mixed_precision": wish}}, topology, device, precision=Precision.AMP_BF16
        )
        policy = make_precision_policy("amp_bf16", device, topology)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        prepared = strategy.prepare(model, [optimizer], device)
        with strategy.microbatch_context(prepared, is_last=True):
            with policy.forward_context():
                loss = prepared.module(torch.ones(2, 8)).float().sum()
            policy.backward(loss * strategy.gradient_multiplier)
        policy.step([optimizer])
        weight = model.weight
        return str(seen[0]), str(weight.dtype), (weight.full_tensor() - whole).flatten().tolist()

    for seen, master, change in run_ranks(body, wish=wish):
        assert (seen, master) == ("torch.bfloat16", "torch.float32")
        assert change == pytest.approx([-2.0] * 32, abs=1e-6)  # 0.5 times 2 rows on 2 ranks


def test_activations_can_be_recomputed(run_ranks):
    def body():
        import torch
        from torch import nn

        from stretto.trainer.devices import DeviceCPU
        from stretto.trainer.distributed import Topology, initialize_dist
        from stretto.trainer.parallel import canonical_parameters, make_strategy

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
                self.calls = 0

            def forward(self, x):
                self.calls += 1
                return self.layer(x)

        device = DeviceCPU()
        initialize_dist(device, timeout=20)
        results = []
        for recompute in (False, True):
            torch.manual_seed(0)
            blocks = [Block(), Block()]
            model = nn.Sequential(*blocks)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            config = {"fsdp": {"activation_checkpointing": recompute}}
            strategy = make_strategy(config, Topology.from_environment(), device)
            prepared = strategy.prepare(model, [optimizer], device)
            with strategy.microbatch_context(prepared, is_last=True):
                model(torch.ones(2, 4)).sum().backward()
            grads = {
                n: p.grad.full_tensor().tolist() for n, p in canonical_parameters(model).items()
            }
            saved = sorted(strategy.model_state_dict(prepared))
            results.append((grads, saved, [block.calls for block in blocks]))
        return results

    (plain, again), (_, other) = run_ranks(body)
    assert plain[0] == again[0]
    assert plain[1] == again[1] == sorted(plain[0])
    assert other[1] == []
    assert (plain[2], again[2]) == ([1, 1], [2, 2])
