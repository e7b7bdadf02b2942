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


def time_on_ranks():
    import time

    import torch
    from torch import nn

    from stretto.trainer import ComposerClassifier, Trainer

    class Slow(nn.Linear):
        def forward(self, inputs):
            time.sleep(0.1)
            return super().forward(inputs)

    trainer = Trainer(
        model=ComposerClassifier(Slow(4, 3)),
        train_dataloader=[(torch.ones(2, 4), torch.tensor([0, 1]))],
        max_duration="1sec",
        progress_bar=False,
        device="cpu",
        run_directory="run",
    )
    # Twice as many batches as can be needed, so that a clock that stands still ends too.
    started = time.perf_counter()
    trainer.state.max_duration = "1sec"
    from stretto.core_events import Callback

    class Guard(Callback):
        def batch_start(self, state, logger):
            assert state.timestamp.batch_count < 20, state.timestamp.total_wct

    trainer.state.callbacks.append(Guard())
    trainer.engine.rebuild()
    trainer.fit()
    return time.perf_counter() - started, trainer.state.timestamp.total_wct.total_seconds()


def test_the_last_batch_of_an_epoch_counts_for_the_time_of_several_ranks(run_ranks):
    """With one batch an epoch none was counted, and a duration in seconds never ended."""
    for took, counted in run_ranks(time_on_ranks):
        assert 1.0 <= counted <= took + 0.01


def test_a_checkpoints_epoch_goes_on_with_a_loader_given_to_fit():
    def scheduled(**arguments):
        torch.manual_seed(0)
        model = ComposerClassifier(nn.Linear(4, 3), num_classes=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
        return make_trainer(model=model, optimizers=optimizer, schedulers=schedule, **arguments)

    trainer, straight = scheduled(save_folder="saved", save_interval="1ba")
    trainer.fit()
    trainer.close()
    wanted = trainer.state.optimizers[0].param_groups[0]["lr"]
    trainer, rest = scheduled(train_dataloader=None, load_path="saved/ep1-ba9-rank0.pt")
    trainer.fit(train_dataloader=make_loader())
    trainer.close()
    assert rest.samples == straight.samples[9:]
    assert trainer.state.optimizers[0].param_groups[0]["lr"] == pytest.approx(wanted)
    assert trainer.state.schedulers[0].last_epoch == 3


class Tokens(ComposerModel):
    """A mean over its own labels only, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, batch):
        return self.layer(batch["x"])

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch["labels"])  # 0 / 0 without labels


def test_a_microbatch_without_labels_leaves_the_weights_finite():
    batch = {
        "input_ids": torch.zeros(3, 1, dtype=torch.long),
        "x": torch.arange(12.0).reshape(3, 4),
        "labels": torch.tensor([1, -100, 2]),
    }
    weights = []
    for size in (None, 1):
        trainer, _ = make_trainer(
            model=Tokens(),
            train_dataloader=[batch],
            max_duration="1ba",
            device_train_microbatch_size=size,
            accumulate_train_batch_on_tokens=True,
        )
        trainer.state.callbacks.clear()
        trainer.engine.rebuild()
        trainer.fit()
        weights.append(trainer.state.model.layer.weight.detach().clone())
    torch.testing.assert_close(weights[0], weights[1])


def labels_on_ranks(parallel, size):
    import torch
    from torch import nn

    from stretto.trainer import ComposerModel, Trainer, dist

    class Tokens(ComposerModel):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 3)

        def forward(self, batch):
            return self.layer(batch["x"])

        def loss(self, outputs, batch):
            return nn.functional.cross_entropy(outputs, batch["labels"])

    labels = [[1, -100], [-100, -100]][dist.get_global_rank()]
    batch = {
        "input_ids": torch.zeros(2, 1, dtype=torch.long),
        "x": torch.arange(8.0).reshape(2, 4),
        "labels": torch.tensor(labels),
    }
    model = Tokens()
    trainer = Trainer(
        model=model,
        train_dataloader=[batch],
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="1ba",
        device_train_microbatch_size=size,
        accumulate_train_batch_on_tokens=True,
        parallelism_config=parallel,
        progress_bar=False,
        device="cpu",
        run_directory="run",
    )
    trainer.fit()
    weight = trainer.state.model.layer.weight.detach()
    return (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).tolist()


@pytest.mark.parametrize("size", [None, 1])
@pytest.mark.parametrize("parallel", [None, {"fsdp": {}}], ids=["ddp", "fsdp"])
def test_a_rank_without_labels_adds_nothing_to_the_gradients(run_ranks, parallel, size):
    layer = Tokens().layer
    inputs = torch.arange(8.0).reshape(2, 4)[:1]
    nn.functional.cross_entropy(layer(inputs), torch.tensor([1])).backward()
    wanted = (layer.weight - 0.1 * layer.weight.grad).detach()
    for found in run_ranks(labels_on_ranks, parallel=parallel, size=size):
        torch.testing.assert_close(torch.tensor(found), wanted)


def metrics_on_ranks():
    import torch
    from torch import nn

    from stretto.core_events import Callback
    from stretto.trainer import ComposerClassifier, Trainer, dist

    samples = [6, 2][dist.get_global_rank()]
    seen = {"forward": 0}

    class Count(Callback):
        def after_forward(self, state, logger):
            seen["forward"] += 1

        def batch_end(self, state, logger):
            metric = state.train_metrics["MulticlassAccuracy"]
            seen["counted"] = int((metric.tp + metric.fn).sum())

    trainer = Trainer(
        model=ComposerClassifier(nn.Sequential(nn.Linear(4, 3)), num_classes=3),
        train_dataloader=[(torch.ones(samples, 4), torch.arange(samples) % 3)],
        max_duration="1ba",
        device_train_microbatch_size=2,
        parallelism_config={"fsdp": {}},
        callbacks=Count(),
        progress_bar=False,
        device="cpu",
        run_directory="run",
    )
    trainer.fit()
    return seen


def test_passes_made_for_other_ranks_are_not_seen_by_metrics_and_callbacks(run_ranks):
    assert run_ranks(metrics_on_ranks) == [
        {"forward": 3, "counted": 6},
        {"forward": 1, "counted": 2},
    ]


@pytest.mark.parametrize(("size", "again"), [(2, 0), (8, 4)])
def test_other_batch_sizes_on_resume_neither_skip_nor_hide_a_repetition(caplog, size, again):
    straight = fit(save_folder="saved", save_interval="1ba", max_duration="1ep")
    with caplog.at_level(logging.WARNING):
        rest = fit(
            train_dataloader=make_loader(size),
            load_path="saved/ep0-ba3-rank0.pt",
            max_duration="1ep",
        )
    first = [i for batch in straight[:3] for i in batch]
    order = [i for batch in straight for i in batch]
    assert [i for batch in rest for i in batch] == order[len(first) - again :]
    assert ("trained on again" in caplog.text) == (again > 0)


def test_a_standalone_evaluation_leaves_evaluators_and_the_trainers_metrics_alone():
    given = Evaluator(label="eval", dataloader=DataLoader(DATA, 4), metric_names=["CrossEntropy"])
    trainer, watch = make_trainer(eval_dataloader=DataLoader(DATA, 4), max_duration="2ep")
    own = trainer.state.eval_metrics["eval"]
    assert len(own) > 1
    trainer.eval(given, subset_num_batches=2)
    assert watch.evaluated == 2
    assert given.eval_interval is None
    assert given.subset_num_batches is None
    assert trainer.state.eval_metrics["eval"] is own
    trainer.fit(eval_dataloader=given, eval_interval=1)
    assert watch.evaluated == 2 + 2 * 6


@pytest.mark.parametrize(
    "wrong",
    [
        {"duration": "nonsense"},
        {"duration": "0ba"},
        {"precision": "fp7"},
        {"device_train_microbatch_size": 0},
        {"schedulers": 3},
        {"train_subset_num_batches": 0},
        {"scale_schedule_ratio": -1.0, "duration": "1ep"},
    ],
    ids=str,
)
def test_fit_changes_nothing_when_an_argument_is_wrong(wrong):
    trainer, _ = make_trainer(max_duration="3ba")
    trainer.fit()
    loader, evaluators = trainer.state.train_dataloader, trainer.state.evaluators
    with pytest.raises((ValueError, TypeError)):
        trainer.fit(train_dataloader=make_loader(8), eval_dataloader=DataLoader(DATA, 4), **wrong)
    assert trainer.state.train_dataloader is loader
    assert trainer.state.evaluators is evaluators
    assert trainer.state.timestamp.batch_in_epoch_count == 3
    assert str(trainer.state.max_duration) == "3ba"


def test_fit_refuses_a_ratio_that_would_change_nothing():
    trainer, _ = make_trainer()
    with pytest.raises(ValueError, match="scale_schedule_ratio"):
        trainer.fit(scale_schedule_ratio=0.5)


def test_an_evaluation_reads_no_batch_past_its_number():
    read = []

    class Source:
        def __iter__(self):
            for place in range(6):
                read.append(place)
                yield DATA[4 * place : 4 * place + 4]

    trainer, watch = make_trainer()
    trainer.eval(Source(), subset_num_batches=2)
    assert watch.evaluated == 2
    assert read == [0, 1]


@pytest.mark.parametrize("seed", ["a", 1.5, True])
def test_a_seed_of_the_wrong_kind_is_named(seed):
    with pytest.raises(TypeError, match="seed must be"):
        make_trainer(seed=seed)
