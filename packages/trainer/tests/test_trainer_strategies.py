"""The whole trainer under every strategy: same fit, and checkpoints that cross between them.

The oracle is a plain torch loop over the global batches.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

STRATEGIES = {"single": (1, None), "ddp": (2, None), "fsdp": (2, {"fsdp": {}})}


def fit(config, jobs, **arguments):
    """Run trainers one after another; each job is (keywords of fit, keywords of Trainer)."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from torchmetrics.classification import MulticlassAccuracy

    from stretto.trainer import ComposerClassifier, Trainer, dist

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 9), nn.Linear(9, 6)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(self.norm(x))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inward = nn.Linear(4, 6)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            x = self.inward(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 4, generator=generator)
    data = TensorDataset(x, x[:, :3].argmax(1))

    def loader(length=32):
        part = torch.utils.data.Subset(data, range(length))
        return DataLoader(
            part, batch_size=8 // dist.get_world_size(), sampler=dist.get_sampler(part)
        )

    results = []
    for during_fit, keywords in jobs:
        torch.manual_seed(5)
        model = ComposerClassifier(
            Net(), train_metrics=MulticlassAccuracy(3), val_metrics=MulticlassAccuracy(3)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
        trainer = Trainer(
            model=model,
            train_dataloader=loader(),
            eval_dataloader=loader(13),
            optimizers=optimizer,
            max_duration="3ep",
            parallelism_config=config,
            progress_bar=False,
            seed=1,
            run_directory="run",
            **{**arguments, **keywords},
        )
        trainer.fit(**during_fit)

        def whole(value):
            return value.full_tensor() if hasattr(value, "full_tensor") else value

        results.append(
            {
                "weights": {
                    n: whole(p).detach().clone() for n, p in model.module.named_parameters()
                },
                "moments": [
                    whole(optimizer.state[p]["exp_avg_sq"]).clone() for p in model.parameters()
                ],
                "steps": {float(optimizer.state[p]["step"]) for p in model.parameters()},
                "batch": trainer.state.timestamp.batch_count,
                "accuracy": float(
                    trainer.state.eval_metrics["eval"]["MulticlassAccuracy"].compute()
                ),
                "saved": [path.rpartition("/")[2] for path in trainer.saved_checkpoints],
            }
        )
        trainer.close()
    return results


def plain_loop(batches=12):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 9), nn.Linear(9, 6)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(self.norm(x))))

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 4, generator=generator)
    y = x[:, :3].argmax(1)
    torch.manual_seed(5)
    parts = {"inward": nn.Linear(4, 6), "blocks": nn.ModuleList([Block(), Block()])}
    model = nn.ModuleDict({**parts, "head": nn.Linear(6, 3)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)

    def forward(rows):
        hidden = model["inward"](rows)
        for block in model["blocks"]:
            hidden = block(hidden)
        return model["head"](hidden)

    for number in range(batches):
        rows = slice(8 * (number % 4), 8 * (number % 4) + 8)
        optimizer.zero_grad()
        nn.functional.cross_entropy(forward(x[rows]), y[rows]).backward()
        optimizer.step()
    right = forward(x[:13]).argmax(1) == y[:13]
    recalls = [right[y[:13] == kind].float().mean() for kind in range(3)]
    return {
        "weights": {name: p.detach() for name, p in model.named_parameters()},
        "moments": [optimizer.state[p]["exp_avg_sq"] for p in model.parameters()],
        "accuracy": float(torch.stack(recalls).mean()),
    }


@pytest.fixture(scope="module")
def expected():
    return plain_loop()


def assert_like(result, expected, *, rtol=1e-4, atol=1e-5):
    assert result["batch"] == 12
    assert result["steps"] == {12.0}
    assert result["weights"].keys() == expected["weights"].keys()
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(result["weights"][name], weight, rtol=rtol, atol=atol, msg=name)
    for ours, theirs in zip(result["moments"], expected["moments"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=10 * rtol, atol=atol)
    assert result["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_fits_like_a_plain_loop(run_ranks, strategy, expected):
    n, config = STRATEGIES[strategy]
    jobs = [({}, {"device_train_microbatch_size": size}) for size in (None, 1, 3)]
    for results in run_ranks(fit, n=n, config=config, jobs=jobs):
        for result in results:
            assert_like(result, expected)


@pytest.fixture(scope="module")
def folders(_rank_server, tmp_path_factory):
    """Under each strategy, checkpoints after 4 batches (all of an epoch) and 6 (half of one)."""
    base = tmp_path_factory.mktemp("strategies")
    for name, (n, config) in STRATEGIES.items():
        jobs = [({"duration": "6ba"}, {"save_folder": str(base / name), "save_interval": "2ba"})]
        arguments = {"config": config, "jobs": jobs}
        _rank_server.run(fit, n, base / f"run-{name}", timeout=90, env={}, arguments=arguments)
    return base


@pytest.mark.slow
@pytest.mark.parametrize("resumer", STRATEGIES)
def test_a_run_goes_on_under_any_strategy(run_ranks, folders, resumer, expected):
    n, config = STRATEGIES[resumer]
    names = ("ep0-ba4-rank0.pt", "latest-rank0.pt")
    paths = [str(folders / saver / name) for saver, name in itertools.product(STRATEGIES, names)]
    jobs = [({}, {"load_path": path}) for path in paths]
    for results in run_ranks(fit, n=n, config=config, jobs=jobs, timeout=120):
        for result in results:
            assert_like(result, expected)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_resuming_in_an_epoch_is_identical_to_not_stopping(run_ranks, tmp_path, strategy):
    """Bit for bit, on two ranks."""
    n, config = STRATEGIES[strategy]
    folder = str(tmp_path / "saved")
    jobs = [
        ({}, {}),
        ({"duration": "7ba"}, {"save_folder": folder, "save_interval": "7ba"}),
        ({}, {"save_folder": folder, "load_path": f"{folder}/latest-rank0.pt"}),
    ]
    for straight, _, resumed in run_ranks(fit, n=n, config=config, jobs=jobs):
        assert resumed["batch"] == straight["batch"] == 12
        for name, weight in straight["weights"].items():
            assert torch.equal(resumed["weights"][name], weight), name
        for ours, theirs in zip(resumed["moments"], straight["moments"], strict=True):
            assert torch.equal(ours, theirs)
        assert resumed["saved"] == ["ep2-ba8-rank0.pt", "ep3-ba12-rank0.pt"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bf16_fits_under_every_strategy(run_ranks, strategy, expected):
    n, config = STRATEGIES[strategy]
    jobs = [({}, {"precision": "amp_bf16"})]
    for (result,) in run_ranks(fit, n=n, config=config, jobs=jobs):
        assert_like(
            {**result, "accuracy": expected["accuracy"], "moments": []},
            {**expected, "moments": []},
            rtol=0.2,
            atol=0.05,
        )
        weight = result["weights"]["head.weight"]
        assert weight.dtype is torch.float32
        assert not torch.equal(weight, expected["weights"]["head.weight"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [None, {"fsdp": {}}, {"fsdp": {"data_parallel_shard_degree": 2}}],
    ids=["ddp", "fsdp", "hybrid"],
)
def test_four_ranks_fit_and_go_on_from_two(run_ranks, folders, config, expected):
    jobs = [({}, {"device_train_microbatch_size": 1})]
    jobs += [({}, {"load_path": str(folders / name / "latest-rank0.pt")}) for name in STRATEGIES]
    for results in run_ranks(fit, n=4, config=config, jobs=jobs, timeout=180):
        for result in results:
            assert_like(result, expected)
