"""What the documentation promises of checkpoints, ranks and samplers, each promise held to."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stretto.trainer import ComposerClassifier, Trainer


def make_trainer(**arguments):
    """A trainer of one layer on 24 samples in batches of 4."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 4), torch.arange(24) % 3)
    defaults = {
        "model": ComposerClassifier(nn.Linear(4, 3), num_classes=3),
        "train_dataloader": DataLoader(data, batch_size=4),
        "max_duration": "2ep",
        "progress_bar": False,
    }
    return Trainer(**{**defaults, **arguments})


def test_a_load_path_with_a_variable_lies_in_the_save_folder_it_names():
    arguments = {"run_directory": "rd", "save_folder": "{run_directory}/ck"}
    with make_trainer(**arguments) as first:
        first.fit(duration="1ep")
    with make_trainer(**arguments, load_path="{run_directory}/ck/latest-rank0.pt") as second:
        assert second.state.timestamp.batch_count == 6
        second.fit()
        assert second.state.timestamp.batch_count == 12
