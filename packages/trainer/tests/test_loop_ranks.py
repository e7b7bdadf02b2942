"""Several ranks train like one: same gradients, same resumption, for every microbatch size."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional


def gradients_on_ranks(parallel, size, shares, drop):
    import torch
    from torch import nn

    from stretto.core_events import Algorithm, Callback, Event
    from stretto.trainer import ComposerClassifier, Trainer, dist

    rank = dist.get_global_rank()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 4, generator=generator)
    labels = torch.randint(0, 3, (12,), generator=generator)
    batches, start = [], 0
    for share in shares:  # what each rank has of each batch
        mine = slice(start + sum(share[:rank]), start + sum(share[: rank + 1]))
        batches.append((inputs[mine], labels[mine]))
        start += sum(share)
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    model = ComposerClassifier(network)
    seen = []

    def whole(tensor):
        tensor = tensor.detach()
        return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).tolist()

    class Watch(Callback):
        def after_train_batch(self, state, logger):
            seen.append([whole(p.grad) for p in state.model.parameters()])

    class Drop(Algorithm):
        events = (Event.AFTER_DATALOADER,)

        def apply(self, event, state, logger):
            if state.topology.global_rank == 0:
                state.batch = tuple(column[:1] for column in state.batch)

    trainer = Trainer(
        model=model,
        train_dataloader=batches,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="1ep",
        device_train_microbatch_size=size,
        parallelism_config=parallel,
        algorithms=[Drop()] if drop else None,
        callbacks=Watch(),
        progress_bar=False,
        run_directory="run",
    )
    trainer.fit()
    weights = [whole(p) for p in trainer.state.model.parameters()]
    trainer.close()
    return seen, weights


def expected(shares, drop):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 4, generator=generator)
    labels = torch.randint(0, 3, (12,), generator=generator)
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    seen, start = [], 0
    for first, second in shares:
        rows = list(range(start, start + first + second))
        if drop:
            rows = [start, *range(start + first, start + first + second)]
        start += first + second
        optimizer.zero_grad()
        functional.cross_entropy(network(inputs[rows]), labels[rows]).backward()
        seen.append([p.grad.tolist() for p in network.parameters()])
        optimizer.step()
    return seen, [p.tolist() for p in network.parameters()]


@pytest.mark.parametrize("size", [None, 1, 2])
@pytest.mark.parametrize("parallel", [None, {"fsdp": {}}], ids=["ddp", "fsdp"])
@pytest.mark.parametrize(
    ("shares", "drop"),
    [([(3, 3), (3, 3)], False), ([(4, 1), (2, 3)], False), ([(3, 3), (3, 3)], True)],
    ids=["even", "uneven", "dropped by an algorithm"],
)
def test_two_ranks_have_the_gradients_of_one_process(run_ranks, parallel, size, shares, drop):
    """Decision 5: sums over one global denominator, under DDP and FSDP2, for every size."""
    wanted = expected(shares, drop)
    for found in run_ranks(
        gradients_on_ranks, parallel=parallel, size=size, shares=shares, drop=drop
    ):
        for ours, theirs in zip(found, wanted, strict=True):
            flat = torch.utils._pytree.tree_leaves(ours)
            assert flat == pytest.approx(torch.utils._pytree.tree_leaves(theirs), abs=1e-6)


def resumed_on_ranks(stop, parallel):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from stretto.core_events import Callback
    from stretto.trainer import ComposerClassifier, Trainer, dist

    generator = torch.Generator().manual_seed(0)
    numbers = torch.arange(16.0).unsqueeze(1)
    inputs = torch.cat([numbers, torch.randn(16, 4, generator=generator)], dim=1)
    data = TensorDataset(inputs, torch.randint(0, 3, (16,), generator=generator))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.4)
            self.head = nn.Linear(4, 3)

        def forward(self, inputs):
            return self.head(self.drop(inputs[:, 1:]))

    class Watch(Callback):
        def __init__(self):
            self.samples, self.losses = [], []

        def after_loss(self, state, logger):
            self.samples.append([int(i) for i in state.batch[0][:, 0]])
            self.losses.append(float(state.loss.detach()))

    def train(folder, duration, load=None, seed=3):
        torch.manual_seed(2)
        model = ComposerClassifier(Network())
        watch = Watch()
        trainer = Trainer(
            model=model,
            train_dataloader=DataLoader(
                data, batch_size=2, sampler=dist.get_sampler(data, shuffle=True)
            ),
            optimizers=torch.optim.AdamW(model.parameters(), lr=0.1),
            max_duration="3ep",
            callbacks=watch,
            save_folder=folder,
            save_interval="1ba",
            load_path=load,
            parallelism_config=parallel,
            progress_bar=False,
            seed=seed,
            run_directory="run",
        )
        trainer.fit(duration=duration) if duration else trainer.fit()
        weights = [
            (p.full_tensor() if hasattr(p, "full_tensor") else p).tolist()
            for p in trainer.state.model.parameters()
        ]
        trainer.close()
        return watch.samples, watch.losses, weights

    folder = "../shared"
    samples, losses, weights = train(folder + "/straight", None)
    first = train(folder + "/cut", f"{stop}ba")
    torch.manual_seed(99)
    rest = train(folder + "/cut", None, load=folder + "/cut/latest-rank0.pt", seed=50)
    return (
        first[0] + rest[0] == samples,
        first[1] + rest[1] == losses,
        rest[2] == weights,
        losses,
    )


@pytest.mark.parametrize("parallel", [None, {"fsdp": {}}], ids=["ddp", "fsdp"])
@pytest.mark.parametrize("stop", [2, 4])
def test_ranks_resume_each_with_their_own_random_numbers(run_ranks, stop, parallel):
    """K20: every rank went on with rank 0's."""
    results = run_ranks(resumed_on_ranks, stop=stop, parallel=parallel)
    for samples, losses, weights, _ in results:
        assert samples
        assert losses
        assert weights
    assert results[0][3] != results[1][3]


def samples_of(folder, duration, batch_size, load):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from stretto.core_events import Callback
    from stretto.trainer import ComposerClassifier, Trainer, dist

    inputs = torch.arange(24.0).unsqueeze(1)
    data = TensorDataset(inputs, torch.zeros(24).long())
    seen = []

    class Watch(Callback):
        def after_dataloader(self, state, logger):
            seen.extend(int(i) for i in state.batch[0][:, 0])

    sampler = dist.get_sampler(data, shuffle=True)
    trainer = Trainer(
        model=ComposerClassifier(nn.Linear(1, 2)),
        train_dataloader=DataLoader(data, batch_size=batch_size, sampler=sampler),
        max_duration=duration,
        callbacks=Watch(),
        load_path=load,
        progress_bar=False,
        run_directory="run",
    )
    trainer.fit()
    trainer.save_checkpoint(folder + "/saved.pt")
    timestamp = trainer.state.timestamp.state_dict()
    trainer.close()
    return seen, timestamp


@pytest.mark.parametrize("batch_size", [3, 2, 6])
def test_another_number_of_ranks_goes_on_with_the_samples_that_are_left(
    run_ranks, tmp_path, batch_size
):
    """Decision 6: the position counts samples of all ranks."""
    folder = str(tmp_path / "saved")
    first = run_ranks(samples_of, folder=folder, duration="2ba", batch_size=3, load=None)
    assert {timestamp["sample_in_epoch"] for _, timestamp in first} == {12}
    before = [sample for seen, _ in first for sample in seen]
    after, timestamp = samples_of(folder, "1ep", batch_size, folder + "/saved.pt")
    assert sorted(before + after) == list(range(24))
    assert timestamp["epoch"] == 1
    assert timestamp["sample"] == 24
