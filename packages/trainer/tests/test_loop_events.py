"""The order in which events fire, held as data and compared with recordings."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stretto.core_events import Event, Time
from stretto.core_events.testing import EventRecorder
from stretto.trainer import ComposerClassifier, DataSpec, Evaluator, Trainer

MICROBATCH = """
    before_forward after_forward before_loss after_loss before_backward after_backward
"""
BATCH = f"""
    before_dataloader after_dataloader batch_start before_train_batch
    {MICROBATCH} {MICROBATCH}
    after_train_batch batch_end
"""
EVAL_BATCH = "eval_batch_start eval_before_forward eval_after_forward eval_batch_end"
EVALUATION = f"eval_start {EVAL_BATCH} {EVAL_BATCH} eval_end"
DUE = f"eval_before_all {EVALUATION} eval_after_all"
EPOCH = f"""
    epoch_start
    {BATCH} batch_checkpoint {BATCH} batch_checkpoint {BATCH} batch_checkpoint
    before_dataloader
    epoch_end {DUE} epoch_checkpoint
"""
BUILD = "init before_load after_load"

WHOLE_RUN = f"{BUILD} fit_start iteration_start {EPOCH} {EPOCH} fit_end"


def make_data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(samples)
    inputs = torch.randn(samples, 4, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 3, (samples,), generator=generator))


def make_trainer(**arguments) -> tuple[Trainer, EventRecorder]:
    recorder = EventRecorder()
    defaults = {
        "model": ComposerClassifier(nn.Linear(4, 3), num_classes=3),
        "train_dataloader": DataLoader(make_data(12), batch_size=4),
        "max_duration": "2ep",
        "device_train_microbatch_size": 2,
        "callbacks": recorder,
        "progress_bar": False,
        "seed": 1,
    }
    return Trainer(**{**defaults, **arguments}), recorder


def eval_loader() -> DataLoader:
    return DataLoader(make_data(8), batch_size=4)


def test_two_epochs_of_three_batches_of_two_microbatches_fire_exactly_these_events():
    trainer, recorder = make_trainer(eval_dataloader=eval_loader())
    trainer.fit()
    assert recorder.events == WHOLE_RUN.split()
    trainer.close()


def test_each_evaluation_microbatch_has_its_own_forward_events():
    forward = "eval_before_forward eval_after_forward"
    batch = f"eval_batch_start {forward} {forward} eval_batch_end"
    evaluator = Evaluator(label="eval", dataloader=eval_loader(), device_eval_microbatch_size=2)
    trainer, recorder = make_trainer(eval_dataloader=evaluator)
    del recorder.events[:]
    trainer.eval()
    expected = f"eval_standalone_start eval_start {batch} {batch} eval_end eval_standalone_end"
    assert recorder.events == expected.split()


def test_an_evaluation_due_after_a_batch_comes_between_batch_end_and_its_checkpoint():
    trainer, recorder = make_trainer(
        eval_dataloader=eval_loader(), eval_interval="2ba", max_duration="3ba"
    )
    trainer.fit()
    expected = f"""
        {BUILD} fit_start iteration_start epoch_start
        {BATCH} batch_checkpoint {BATCH} {DUE} batch_checkpoint {BATCH} batch_checkpoint
        epoch_end epoch_checkpoint fit_end {DUE}
    """
    assert recorder.events == expected.split()


def test_a_run_that_ends_in_the_middle_of_an_epoch_fires_no_epoch_end():
    trainer, recorder = make_trainer(max_duration="2ba")
    trainer.fit()
    expected = f"""
        {BUILD} fit_start iteration_start epoch_start
        {BATCH} batch_checkpoint {BATCH} batch_checkpoint fit_end
    """
    assert recorder.events == expected.split()


def test_going_on_in_the_middle_of_an_epoch_starts_no_epoch_again():
    trainer, recorder = make_trainer(max_duration="2ba")
    trainer.fit()
    del recorder.events[:]
    trainer.fit(duration="1ba")
    expected = f"fit_start {BATCH} batch_checkpoint epoch_end epoch_checkpoint fit_end"
    assert recorder.events == expected.split()


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        ("2ep", "iteration_start epoch_start epoch_start iteration_end iteration_checkpoint " * 2),
        # An iteration of tokens ends with a batch, and the next begins in the middle of an epoch,
        # where ITERATION_START does not fire.
        (
            "20tok",
            "iteration_start " + "epoch_start epoch_start iteration_end iteration_checkpoint " * 2,
        ),
    ],
)
def test_iterations_of_a_given_length_end(length, expected):
    spec = DataSpec(
        DataLoader(make_data(4), batch_size=4), get_num_tokens_in_batch=lambda batch: 10
    )
    trainer, recorder = make_trainer(train_dataloader=spec, max_duration="4ep")
    trainer.state.iteration_length = Time.from_timestring(length)
    trainer.fit()
    names = [name for name in recorder.events if "iteration" in name or name == "epoch_start"]
    assert names == expected.split()
    assert trainer.state.timestamp.iteration_count == 2


def test_an_event_runs_without_a_fit():
    """Seed document 000: trainer.engine.run_event(Event.EPOCH_END)."""
    trainer, recorder = make_trainer()
    _ = trainer.engine.run_event(Event.EPOCH_END)
    assert recorder.events[-1] == "epoch_end"


def test_fit_on_a_finished_run_does_nothing():
    """T9: a rerun of a finished run ends cleanly."""
    trainer, recorder = make_trainer()
    trainer.fit()
    weights = [p.clone() for p in trainer.state.model.parameters()]
    del recorder.events[:]
    trainer.fit()
    assert recorder.events == []
    for before, after in zip(weights, trainer.state.model.parameters(), strict=True):
        assert torch.equal(before, after)


def test_a_second_fit_goes_on_where_the_first_ended():
    trainer, recorder = make_trainer(eval_dataloader=eval_loader(), max_duration="1ep")
    trainer.fit()
    trainer.fit(duration="1ep")
    assert trainer.state.timestamp.epoch == Time(2, "ep")
    expected = f"{BUILD} fit_start iteration_start {EPOCH} fit_end fit_start {EPOCH} fit_end"
    assert recorder.events == expected.split()


def test_stop_training_ends_the_run_after_the_current_batch():
    class Stopper(EventRecorder):
        def run_event(self, event, state, logger):
            super().run_event(event, state, logger)
            if event is Event.BATCH_END and state.timestamp.batch_count == 2:
                state.stop_training()

    stopper = Stopper()
    trainer, _ = make_trainer(callbacks=stopper)
    trainer.fit()
    assert trainer.state.timestamp.batch_count == 2
    assert stopper.events[-2:] == ["batch_checkpoint", "fit_end"]


def test_the_batch_in_an_event_is_the_whole_one_outside_and_the_microbatch_inside():
    sizes: dict[str, set[int]] = {}

    class Sizes(EventRecorder):
        def run_event(self, event, state, logger):
            if state.batch is not None:
                sizes.setdefault(event.value, set()).add(len(state.batch[0]))

    trainer, _ = make_trainer(callbacks=Sizes())
    trainer.fit()
    whole = ("after_dataloader", "batch_start", "before_train_batch", "after_train_batch")
    assert [sizes[name] for name in whole] == [{4}] * 4
    assert [sizes[name] for name in MICROBATCH.split()] == [{2}] * 6
    assert sizes["batch_end"] == {4}
