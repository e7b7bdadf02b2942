"""What a checkpoint holds of a run comes back, part by part."""

from __future__ import annotations

import logging
import typing

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stretto.core_events import Algorithm, Callback, Event, LoggerDestination
from stretto.trainer import ComposerClassifier, Trainer
from stretto.trainer.optim import LinearScheduler


def make_trainer(**arguments) -> Trainer:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(12, 4), torch.randint(0, 3, (12,)))
    model = arguments.pop("model", None) or ComposerClassifier(nn.Linear(4, 3), num_classes=3)
    defaults = {
        "train_dataloader": DataLoader(data, batch_size=4),
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        "max_duration": "2ep",
        "progress_bar": False,
        "seed": 1,
    }
    return Trainer(model=model, **{**defaults, **arguments})


class Counts(Callback):
    def __init__(self) -> None:
        self.batches = 0

    def batch_end(self, state, logger):
        self.batches += 1

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]


class Counting(Algorithm):
    events = (Event.BATCH_END,)

    def __init__(self) -> None:
        self.batches = 0

    def apply(self, event, state, logger):
        self.batches += 1

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]


class Surgery(Algorithm):
    events = (Event.INIT,)

    def apply(self, event, state, logger):
        pass

    @staticmethod
    def required_on_load() -> bool:
        return True


def test_everything_a_run_needs_comes_back():
    arguments = {
        "callbacks": [Counts(), Counts()],
        "algorithms": Counting(),
        "schedulers": LinearScheduler(),
        "run_name": "first",
    }
    with make_trainer(**arguments) as first:
        first.fit(duration="4ba")
        path = first.save_checkpoint("saved.pt")
        saved = first.state.state_dict()
    callbacks, algorithm = [Counts(), Counts()], Counting()
    with make_trainer(
        callbacks=callbacks,
        algorithms=algorithm,
        schedulers=LinearScheduler(),
        load_path=path,
        seed=9,
    ) as second:
        state = second.state
        assert [callback.batches for callback in callbacks] == [4, 4]
        assert algorithm.batches == 4
        assert state.timestamp == first.state.timestamp
        assert state.rank_zero_seed == 1
        rate = first.state.optimizers[0].param_groups[0]["lr"]
        assert state.optimizers[0].param_groups[0]["lr"] == rate
        assert state.schedulers[0].last_epoch == first.state.schedulers[0].last_epoch
        restored = state.state_dict()
        torch.testing.assert_close(restored["model"], saved["model"])
        for ours, theirs in zip(restored["optimizers"], saved["optimizers"], strict=True):
            torch.testing.assert_close(ours["state"], theirs["state"])
            assert ours["param_groups"] == theirs["param_groups"]


def test_metrics_in_the_middle_of_an_epoch_go_on_if_they_are_saved():
    class Watch(Callback):
        def epoch_end(self, state, logger):
            values.append(state.metric_values["train"]["MulticlassAccuracy"])

    def finish(**arguments):
        with make_trainer(callbacks=Watch(), save_metrics=True, **arguments) as trainer:
            trainer.fit(duration="1ba" if arguments else None)

    values: list[float] = []
    with make_trainer(max_duration="1ep", callbacks=Watch()) as straight:
        straight.fit()
    paths = []

    class Save(Callback):
        def batch_checkpoint(self, state, logger):
            paths.append(cut.save_checkpoint("ba{batch}.pt"))

    with make_trainer(save_metrics=True, callbacks=Save()) as cut:
        cut.fit(duration="2ba")
    finish(load_path=paths[-1])
    assert values[0] == values[1]


def test_an_algorithm_that_changed_the_saved_model_must_take_part():
    with make_trainer(algorithms=Surgery()) as first:
        path = first.save_checkpoint("saved.pt")
    with pytest.raises(ValueError, match="model was changed by Surgery"):
        make_trainer(load_path=path)
    make_trainer(load_path=path, algorithms=Surgery()).close()


def test_another_number_of_optimizers_is_an_error():
    with make_trainer() as first:
        path = first.save_checkpoint("saved.pt")
    model = ComposerClassifier(nn.Linear(4, 3))
    weight, bias = model.parameters()
    two = [torch.optim.SGD([weight], lr=0.1), torch.optim.SGD([bias], lr=0.1)]
    with pytest.raises(ValueError, match="holds 1 optimizers, this run has 2"):
        make_trainer(model=model, optimizers=two, load_path=path)


def test_saved_states_without_a_taker_are_named(caplog):
    with make_trainer(callbacks=[Counts()]) as first:
        path = first.save_checkpoint("saved.pt")
    with caplog.at_level(logging.WARNING), make_trainer(load_path=path):
        pass
    assert "callbacks of Counts found no taker" in caplog.text


def test_the_state_is_made_of_four_parts_with_flat_names():
    with make_trainer() as trainer:
        state = trainer.state
        assert state.model is state.model_state.model
        assert state.optimizers is state.model_state.optimizers
        assert state.train_dataloader is state.data_state.train.dataloader
        assert state.device is state.execution.device
        state.batch = (1, 2)
        assert state.batch_state.batch == (1, 2)
        assert state.batch_get_item(1) == 2
        state.batch_set_item(1, 3)
        assert state.batch == (1, 3)
        state.outputs, state.loss = 4, 5
        assert (state.outputs, state.loss) == (4, 5)
        assert state.seed == 1
        assert typing.cast("object", state.precision.precision).value == "fp32"


def test_settings_are_logged_once():
    given = []

    class Keep(LoggerDestination):
        def log_hyperparameters(self, hyperparameters):
            given.append(dict(hyperparameters))

    with make_trainer(loggers=Keep(), algorithms=Counting()):
        pass
    (settings,) = given
    assert settings["rank_zero_seed"] == 1
    assert settings["num_nodes"] == 1
    assert settings["enabled_algorithms/Counting"] is True
    assert settings["strategy"] == "single"


def test_deterministic_mode_lets_torch_use_deterministic_operations_only():
    try:
        with make_trainer(deterministic_mode=True):
            assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_the_precision_decides_the_type_of_the_outputs(precision):
    types = []

    class Watch(Callback):
        def after_forward(self, state, logger):
            types.append(state.outputs.dtype)

    with make_trainer(precision=precision, device="cpu", callbacks=Watch()) as trainer:
        trainer.fit(duration="1ba")
        other = "amp_bf16" if precision == "fp32" else "fp32"
        trainer.fit(duration="1ba", precision=other)
    names = {"fp32": torch.float32, "amp_bf16": torch.bfloat16}
    assert types == [names[precision], names[other]]
