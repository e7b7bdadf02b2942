"""What the training loop promises at its edges: ends of epochs, several ranks, empty parts."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stretto.core_events import Callback
from stretto.trainer import ComposerClassifier, ComposerModel, Evaluator, Trainer

SAMPLES = 24
NUMBERS = torch.arange(float(SAMPLES))
DATA = TensorDataset(NUMBERS.unsqueeze(1).repeat(1, 4), torch.arange(SAMPLES) % 3)


class Watch(Callback):
    """Notes the samples of every training batch, and counts evaluation batches."""

    def __init__(self) -> None:
        self.samples: list[list[int]] = []
        self.evaluated = 0

    def batch_start(self, state, logger):
        self.samples.append([int(i) for i in state.batch[0][:, 0]])

    def eval_batch_end(self, state, logger):
        self.evaluated += 1


def make_loader(size=4, seed=5):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return DataLoader(DATA, batch_size=size, shuffle=True, generator=generator)


def make_trainer(**arguments):
    torch.manual_seed(0)
    watch = Watch()
    arguments = {
        "model": ComposerClassifier(nn.Linear(4, 3), num_classes=3),
        "train_dataloader": make_loader(),
        "max_duration": "3ep",
        "progress_bar": False,
        "save_overwrite": True,
        "seed": 1,
        **arguments,
    }
    return Trainer(callbacks=watch, **arguments), watch


def fit(**arguments):
    trainer, watch = make_trainer(**arguments)
    trainer.fit()
    trainer.close()
    return watch.samples


@pytest.mark.parametrize("epochs", [1, 2])
def test_resuming_at_an_epochs_end_goes_on_with_the_loaders_own_generator(epochs):
    """A loader that owns its generator repeated the first epoch's order."""
    straight = fit(save_folder="saved", save_interval="1ep")
    batches = epochs * SAMPLES // 4
    resumed = fit(load_path=f"saved/ep{epochs}-ba{batches}-rank0.pt")
    assert len({str(sorted(b)) for b in straight}) > 6, "the epochs must differ in their order"
    assert resumed == straight[batches:]


def test_saving_again_before_training_keeps_the_generators_state():
    straight = fit(save_folder="saved", save_interval="1ep")
    trainer, _ = make_trainer(load_path="saved/ep1-ba6-rank0.pt")
    trainer.save_checkpoint("again.pt")
    trainer.close()
    assert fit(load_path="again.pt") == straight[6:]
