"""A checkpoint saved under one strategy loads under every other: weights, moments and steps."""

from __future__ import annotations

import pytest
import torch

STRATEGIES = {
    "single": (1, None),
    "ddp": (2, None),
    "fsdp": (2, {"fsdp": {}}),
    "fsdp alone": (1, {"fsdp": {}}),
}


def body(config, save_to=None, load_from=()):
    """Train two steps and save, or load files and return what comes out again."""
    import copy

    import torch
    from torch import nn

    from stretto.core_events import Timestamp
    from stretto.trainer.checkpoint import load_checkpoint, save_checkpoint
    from stretto.trainer.devices import DeviceCPU
    from stretto.trainer.distributed import Topology, initialize_dist
    from stretto.trainer.parallel import make_strategy

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 6)
            self.blocks = nn.ModuleList(
                [nn.Sequential(nn.Sequential(nn.Linear(6, 5)), nn.Linear(5, 6)) for _ in range(2)]
            )
            self.norm = nn.BatchNorm1d(6)
            self.head = nn.Linear(6, 11)
            self.head.weight = self.embed.weight
            self.frozen = nn.Linear(3, 3).requires_grad_(False)

        def forward(self, x):
            x = self.embed(x)
            for block in self.blocks:
                x = x + block(x)
            return self.head(self.norm(x))

    class State:
        run_name = "portable"
        timestamp = Timestamp(epoch=1, batch=2)

        def __init__(self, seed):
            device = DeviceCPU()
            torch.manual_seed(seed)
            self.model = Net()
            self.topology = Topology.from_environment()
            decay = [p for n, p in self.model.named_parameters() if n.endswith("weight")]
            rest = [p for n, p in self.model.blocks.named_parameters() if n.endswith("bias")]
            # Some parameters belong to no optimizer, some get no gradient.
            self.optimizers = [
                torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}], lr=0.01 * seed),
                torch.optim.SGD([{"params": rest}], lr=0.01 * seed, momentum=0.9),
            ]
            self.strategy = make_strategy(config, self.topology, device)
            self.prepared = self.strategy.prepare(self.model, self.optimizers, device)

        def model_state_dict(self):
            return self.strategy.model_state_dict(self.prepared)

        def load_model_state_dict(self, state_dict, *, strict=True):
            return self.strategy.load_model_state_dict(self.prepared, state_dict, strict=strict)

        def state_dict(self):
            return {
                "model": self.model_state_dict(),
                "optimizers": [
                    self.strategy.optimizer_state_dict(self.prepared, n) for n in range(2)
                ],
            }

        def load_state_dict(self, state, *, strict=True):
            self.load_model_state_dict(state["model"], strict=strict)
            for n in range(2):
                self.strategy.load_optimizer_state_dict(self.prepared, n, state["optimizers"][n])

        def train(self, steps):
            generator = torch.Generator().manual_seed(3)
            for _ in range(steps):
                x = torch.randint(0, 11, (8,), generator=generator)
                with self.strategy.microbatch_context(self.prepared, is_last=True):
                    self.prepared.module(x).square().sum().backward()
                for optimizer in self.optimizers:
                    optimizer.step()
                    optimizer.zero_grad()

    initialize_dist("cpu", timeout=20)
    if save_to is not None:
        state = State(seed=1)
        state.train(2)
        return save_checkpoint(state, save_to)
    results = []
    for path in load_from:
        state = State(seed=2)
        before = copy.deepcopy(state.state_dict())
        load_checkpoint(state, path)
        after = copy.deepcopy(state.state_dict())
        # It must also go on training.
        state.train(1)
        kept = [sorted(str(k) for k in o.param_groups[0]) for o in state.optimizers]
        results.append((before, after, kept))
    return results


@pytest.fixture(scope="module")
def files(_rank_server, tmp_path_factory):
    """One file by each strategy."""
    folder = tmp_path_factory.mktemp("portable")
    paths = {}
    for name, (n, config) in STRATEGIES.items():
        paths[name] = str(folder / f"{name.replace(' ', '-')}.pt")
        arguments = {"config": config, "save_to": paths[name]}
        where = folder / f"save-{name}"
        _rank_server.run(body, n, where, timeout=60, env={}, arguments=arguments)
    return paths


def assert_same(one, other, path="state"):
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for place, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{path}/{place}")
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=0, atol=0, msg=path)
    else:
        assert one == other, path


@pytest.mark.parametrize("loader", STRATEGIES)
def test_every_strategy_loads_the_files_of_every_other(files, loader, run_ranks):
    n, config = STRATEGIES[loader]
    ranks = run_ranks(body, n=n, config=config, load_from=list(files.values()))
    for name, (before, after, _) in zip(files, ranks[0], strict=True):
        saved = torch.load(files[name], weights_only=True)["state"]
        assert_same(after, saved, name)
        assert not torch.equal(before["model"]["head.bias"], after["model"]["head.bias"])


def test_files_of_all_strategies_hold_the_same_names_and_steps(files):
    contents = {name: torch.load(path, weights_only=True) for name, path in files.items()}
    plain = contents["single"]["state"]
    for name, content in contents.items():
        state = content["state"]
        assert state["model"].keys() == plain["model"].keys(), name
        for ours, theirs in zip(state["optimizers"], plain["optimizers"], strict=True):
            assert ours["state"].keys() == theirs["state"].keys(), name
            assert ours["param_groups"] == theirs["param_groups"], name
        adam = state["optimizers"][0]["state"]
        assert {float(values["step"]) for values in adam.values()} == {2.0}
        assert adam["embed.weight"]["exp_avg"].shape == (11, 6)
        assert len(content["rng"]) == STRATEGIES[name][0]


def test_names_are_plain_torch_names(files):
    content = torch.load(files["fsdp"], weights_only=True)
    assert "blocks.1.0.0.weight" in content["state"]["model"]
    assert content["state"]["optimizers"][1]["param_groups"][0]["params"][:2] == [
        "blocks.0.0.0.bias",
        "blocks.0.1.bias",
    ]
    # Tied weights are stored once.
    model = content["state"]["model"]
    assert model["embed.weight"].data_ptr() == model["head.weight"].data_ptr()
