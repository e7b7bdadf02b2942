"""An interrupted run sees the same samples and ends with the same weights as a straight one."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stretto.core_events import Callback
from stretto.trainer import ComposerClassifier, Trainer
from stretto.trainer.optim import LinearWithWarmupScheduler

SAMPLES = 22
BATCH_SIZE = 4
BATCHES = 6  # the last one of 2


class Numbered(Dataset):
    """Samples that carry their number and random noise, as an augmentation would."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(SAMPLES, 4, generator=generator)
        self.read: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int):
        self.read.append(index)
        noise = torch.randn(4) + random.random() + float(np.random.rand())
        return torch.cat(
            [torch.tensor([float(index)]), self.inputs[index] + 0.1 * noise]
        ), index % 3


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.head = nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(self.layers(inputs[:, 1:]))


class Watch(Callback):
    """Notes the samples and the loss of every batch."""

    def __init__(self) -> None:
        self.samples: list[list[int]] = []
        self.losses: list[float] = []
        self.evaluations: list[int] = []

    def after_dataloader(self, state, logger):
        self.samples.append([int(i) for i in state.batch[0][:, 0]])

    def after_loss(self, state, logger):
        self.losses.append(float(state.loss.detach()))

    def eval_end(self, state, logger):
        self.evaluations.append(state.eval_timestamp.batch_count)


def make_loader(dataset, generator=None, workers=0):
    return DataLoader(
        dataset, batch_size=BATCH_SIZE, shuffle=True, generator=generator, num_workers=workers
    )


def make_trainer(folder, *, own_generator=False, workers=0, loader=None, **arguments):
    torch.manual_seed(11)
    model = ComposerClassifier(Network(), num_classes=3)
    generator = torch.Generator().manual_seed(5) if own_generator else None
    watch, dataset = Watch(), Numbered()
    trainer = Trainer(
        model=model,
        train_dataloader=make_loader(dataset, generator, workers) if loader is None else loader,
        eval_dataloader=make_loader(Numbered()),
        eval_interval="4ba",
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-2),
        schedulers=LinearWithWarmupScheduler("3ba"),
        max_duration="3ep",
        callbacks=watch,
        progress_bar=False,
        save_folder=str(folder),
        save_interval="1ba",
        seed=23,
        **arguments,
    )
    return trainer, watch, dataset


def weights(trainer):
    return [p.detach().clone() for p in trainer.state.model.parameters()]


def straight(folder, **arguments):
    trainer, watch, _ = make_trainer(folder, **arguments)
    trainer.fit()
    trainer.close()
    return weights(trainer), watch


@pytest.mark.parametrize("own_generator", [False, True], ids=["torch's generator", "its own"])
@pytest.mark.parametrize("stop", [1, 4, 5, 6, 7, 13], ids=lambda stop: f"after {stop}")
def test_resuming_gives_the_identical_run(tmp_path, stop, own_generator):
    """K11, K22: batches, losses, evaluations and weights, from the middle of an epoch too."""
    expected_weights, expected = straight(tmp_path / "straight", own_generator=own_generator)
    first, seen, _ = make_trainer(tmp_path / "cut", own_generator=own_generator)

    class Stop(Callback):
        def batch_checkpoint(self, state, logger):
            if state.timestamp.batch_count == stop:
                raise KeyboardInterrupt

    first.state.callbacks.append(Stop())
    first.engine.rebuild()
    with pytest.raises(KeyboardInterrupt):
        first.fit()
    first.close()
    torch.manual_seed(999)
    random.seed(999)
    np.random.seed(999)
    checkpoint = sorted((tmp_path / "cut").glob(f"ep*-ba{stop}-rank0.pt"))
    second, rest, dataset = make_trainer(
        tmp_path / "cut", own_generator=own_generator, load_path=str(checkpoint[0])
    )
    assert second.state.timestamp.batch_count == stop
    assert dataset.read == []
    second.fit()
    second.close()
    assert seen.samples + rest.samples == expected.samples
    assert seen.losses + rest.losses == expected.losses
    assert seen.evaluations + rest.evaluations == expected.evaluations
    for a, b in zip(weights(second), expected_weights, strict=True):
        assert torch.equal(a, b)


def test_every_sample_of_an_epoch_comes_once_over_an_interruption(tmp_path):
    """K22: shuffled, stopped at 3, resumed: the union of indices is the data set."""
    first, seen, _ = make_trainer(tmp_path / "cut")
    first.fit(duration="3ba")
    first.close()
    latest = tmp_path / "cut" / "latest-rank0.pt"
    second, rest, _ = make_trainer(tmp_path / "cut", load_path=str(latest))
    second.fit(duration="3ba")
    second.close()
    read = [index for batch in seen.samples + rest.samples for index in batch]
    assert sorted(read) == list(range(SAMPLES))


def test_batches_that_were_trained_on_are_not_read_again(tmp_path):
    """K14: resuming replayed the whole dataloader."""
    first, _, _ = make_trainer(tmp_path / "cut")
    first.fit(duration="4ba")
    first.close()
    second, rest, dataset = make_trainer(
        tmp_path / "cut", load_path=str(tmp_path / "cut" / "latest-rank0.pt")
    )
    second.fit(duration="2ba")
    second.close()
    assert dataset.read == [index for batch in rest.samples for index in batch]
    assert len(dataset.read) == SAMPLES - 4 * BATCH_SIZE


@pytest.mark.slow
def test_the_order_is_the_same_with_worker_processes(tmp_path):
    expected = straight(tmp_path / "straight", workers=2)[1]
    first, seen, _ = make_trainer(tmp_path / "cut", workers=2)
    first.fit(duration="8ba")
    first.close()
    second, rest, _ = make_trainer(
        tmp_path / "cut", workers=2, load_path=str(tmp_path / "cut" / "latest-rank0.pt")
    )
    second.fit(duration="6ba")
    second.close()
    assert seen.samples + rest.samples == expected.samples[:14]


class Stream(IterableDataset):
    """Yields the same batches in every epoch, without a length."""

    def __iter__(self):
        data = Numbered()
        yield from (data[i] for i in range(SAMPLES))


def test_a_stream_is_fetched_again_up_to_where_it_was(tmp_path, monkeypatch, caplog):
    """K14: where batches must be fetched again, it is said how far that is."""
    from stretto.trainer.data import resume

    monkeypatch.setattr(resume, "PROGRESS_SECONDS", -1.0)
    loader = DataLoader(Stream(), batch_size=BATCH_SIZE)
    first, seen, _ = make_trainer(tmp_path / "cut", loader=loader, train_subset_num_batches=5)
    first.fit(duration="3ba")
    first.close()
    second, rest, _ = make_trainer(
        tmp_path / "cut",
        loader=DataLoader(Stream(), batch_size=BATCH_SIZE),
        train_subset_num_batches=5,
        load_path=str(tmp_path / "cut" / "latest-rank0.pt"),
    )
    second.fit(duration="2ba")
    second.close()
    read = [index for batch in seen.samples + rest.samples for index in batch]
    assert read == list(range(5 * BATCH_SIZE))
    assert "Fetched 3 of the 3 batches" in caplog.text


class Stateful:
    """A loader that keeps its own position, as torchdata's does."""

    def __init__(self) -> None:
        self.next = 0
        self.asked: list[int] = []

    def __iter__(self):
        while self.next < BATCHES:
            place, self.next = self.next, self.next + 1
            self.asked.append(place)
            yield torch.full((BATCH_SIZE, 5), float(place)), torch.zeros(BATCH_SIZE).long()
        self.next = 0

    def __len__(self) -> int:
        return BATCHES

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def test_a_loader_that_keeps_its_own_position_is_asked_to(tmp_path):
    first, _, _ = make_trainer(tmp_path / "cut", loader=Stateful())
    first.fit(duration="4ba")
    first.close()
    loader = Stateful()
    second, _, _ = make_trainer(
        tmp_path / "cut", loader=loader, load_path=str(tmp_path / "cut" / "latest-rank0.pt")
    )
    second.fit(duration="3ba")
    second.close()
    assert loader.asked == [4, 5, 0]


def test_evaluating_more_often_does_not_change_the_training(tmp_path):
    often, _ = straight(tmp_path / "a")
    trainer, _, _ = make_trainer(tmp_path / "b")
    trainer.state.data_state.evaluators.clear()
    trainer.fit()
    trainer.close()
    for a, b in zip(weights(trainer), often, strict=True):
        assert torch.equal(a, b)
