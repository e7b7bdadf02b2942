"""Evaluation counts every sample once and leaves the training as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from stretto.core_events import Callback, Event, LoggerDestination
from stretto.trainer import ComposerClassifier, DataSpec, Evaluator, Trainer


class Keep(LoggerDestination):
    """Keeps all metrics that are logged."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, str, float]] = []

    def log_metrics(self, metrics, step=None):
        self.entries += [(step, name, value) for name, value in metrics.items()]

    def of(self, name: str) -> list[tuple[int, float]]:
        return [(step, value) for step, found, value in self.entries if found == name]


def make_data(samples: int, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 4, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 3, (samples,), generator=generator))


def make_model() -> ComposerClassifier:
    torch.manual_seed(0)
    return ComposerClassifier(nn.Linear(4, 3), num_classes=3)


def expected_values(model, data) -> dict[str, float]:
    inputs, labels = data.tensors
    with torch.no_grad():
        logits = model.module(inputs)
    accuracy = (logits.argmax(1) == labels).float().mean()
    return {
        "CrossEntropy": float(functional.cross_entropy(logits, labels)),
        "MulticlassAccuracy": float(accuracy),
    }


@pytest.mark.parametrize("batch_size", [1, 4, 7, 30])
@pytest.mark.parametrize("microbatch", [None, 2])
def test_metrics_equal_those_over_the_whole_data_set(batch_size, microbatch):
    data, model = make_data(13), make_model()
    evaluator = Evaluator(
        label="test",
        dataloader=DataLoader(data, batch_size=batch_size),
        device_eval_microbatch_size=microbatch,
    )
    with Trainer(model=model, eval_dataloader=evaluator, progress_bar=False) as trainer:
        trainer.eval()
        assert trainer.state.metric_values["test"] == pytest.approx(expected_values(model, data))


def test_evaluation_metrics_are_logged_once_under_the_label():
    """L3: they were logged twice."""
    data, keep = make_data(8), Keep()
    with Trainer(
        model=make_model(),
        train_dataloader=DataLoader(data, batch_size=4),
        eval_dataloader=DataLoader(data, batch_size=4),
        max_duration="2ep",
        loggers=keep,
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    assert [step for step, _ in keep.of("metrics/eval/CrossEntropy")] == [2, 4]
    assert [step for step, _ in keep.of("metrics/eval/MulticlassAccuracy")] == [2, 4]


def test_the_state_is_what_it_was_before_an_evaluation():
    seen = []

    class Watch(Callback):
        def eval_start(self, state, logger):
            seen.append((state.dataloader_label, state.dataloader_len, state.model.training))

        def batch_checkpoint(self, state, logger):
            seen.append((state.dataloader_label, state.dataloader_len, state.model.training))
            seen.append(len(state.batch[0]))

    with Trainer(
        model=make_model(),
        train_dataloader=DataLoader(make_data(8), batch_size=4),
        eval_dataloader=DataLoader(make_data(6), batch_size=2),
        eval_interval="1ba",
        max_duration="1ba",
        callbacks=Watch(),
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    assert seen == [("eval", 3, False), ("train", 2, True), 4]


def test_modules_that_were_in_evaluation_mode_stay_there():
    model = make_model()
    model.frozen = nn.BatchNorm1d(4)

    class Freeze(Callback):
        def batch_start(self, state, logger):
            model.frozen.eval()

    with Trainer(
        model=model,
        train_dataloader=DataLoader(make_data(8), batch_size=4),
        eval_dataloader=DataLoader(make_data(8), batch_size=4),
        max_duration="1ep",
        callbacks=Freeze(),
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    assert model.training
    assert not model.frozen.training


@pytest.mark.parametrize(
    ("interval", "batches"),
    [
        (1, [3, 6]),
        (2, [6]),
        (0, []),
        ("2ba", [2, 4, 6]),
        ("4ba", [4, 6]),
        ("1ep", [3, 6]),
        ("0.5dur", [3, 6]),
        ("8sp", [2, 4, 6]),
        (lambda state, event: event is Event.BATCH_END and state.timestamp.batch_count == 5, [5]),
    ],
    ids=str,
)
def test_evaluations_run_when_the_interval_says(interval, batches):
    at = []

    class Watch(Callback):
        def eval_start(self, state, logger):
            at.append(state.timestamp.batch_count)

    with Trainer(
        model=make_model(),
        train_dataloader=DataLoader(make_data(12), batch_size=4),
        eval_dataloader=DataLoader(make_data(4), batch_size=4),
        eval_interval=interval,
        max_duration="2ep",
        callbacks=Watch(),
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    assert at == batches


def test_each_evaluator_may_have_its_own_interval_subset_and_metrics():
    data = make_data(12)
    loader = DataLoader(data, batch_size=4)
    batches = {}

    class Watch(Callback):
        def eval_end(self, state, logger):
            label = state.dataloader_label
            batches.setdefault(label, []).append(state.eval_timestamp.batch_count)

    with Trainer(
        model=make_model(),
        train_dataloader=loader,
        eval_dataloader=[
            Evaluator(label="all", dataloader=loader),
            Evaluator(label="some", dataloader=loader, subset_num_batches=1, eval_interval="1ba"),
            Evaluator(label="one", dataloader=loader, metric_names=["CrossEntropy"]),
        ],
        eval_subset_num_batches=2,
        max_duration="1ep",
        callbacks=Watch(),
        progress_bar=False,
    ) as trainer:
        trainer.fit()
        assert set(trainer.state.metric_values["one"]) == {"CrossEntropy"}
    assert batches == {"all": [2], "some": [1, 1, 1], "one": [2]}


def test_loaders_and_evaluators_may_be_mixed_in_a_list():
    """M12: a mixed list crashed late."""
    loader = DataLoader(make_data(4), batch_size=4)
    with Trainer(
        model=make_model(),
        eval_dataloader=[loader, Evaluator(label="named", dataloader=loader)],
        progress_bar=False,
    ) as trainer:
        trainer.eval()
        assert set(trainer.state.metric_values) == {"eval", "named"}


def test_two_loaders_in_a_list_get_names_of_their_own():
    loader = DataLoader(make_data(4), batch_size=4)
    with Trainer(
        model=make_model(), eval_dataloader=[loader, DataSpec(loader)], progress_bar=False
    ) as trainer:
        assert [e.label for e in trainer.state.evaluators] == ["eval_0", "eval_1"]


def test_a_list_of_batches_is_one_loader():
    batches = list(DataLoader(make_data(6), batch_size=3))
    model = make_model()
    with Trainer(model=model, progress_bar=False) as trainer:
        trainer.eval([tuple(batch) for batch in batches])
        assert trainer.state.metric_values["eval"] == pytest.approx(
            expected_values(model, make_data(6))
        )


def test_a_subset_given_to_eval_limits_the_batches():
    data, model = make_data(12), make_model()
    with Trainer(model=model, progress_bar=False) as trainer:
        trainer.eval(DataLoader(data, batch_size=4), 2)
        first = TensorDataset(*(column[:8] for column in data.tensors))
        assert trainer.state.metric_values["eval"] == pytest.approx(expected_values(model, first))
        assert trainer.state.eval_timestamp.batch_count == 2


@pytest.mark.parametrize("label", ["train", "my data"])
def test_training_metrics_are_those_of_the_epoch_and_logged_under_the_label(label):
    keep, data = Keep(), make_data(12)
    model = make_model()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.extra = nn.Parameter(torch.zeros(()))
    with Trainer(
        model=model,
        train_dataloader=DataLoader(data, batch_size=5),
        optimizers=torch.optim.SGD([model.extra], lr=0.0),
        train_dataloader_label=label,
        max_duration="1ep",
        loggers=keep,
        progress_bar=False,
        callbacks=RequiresGrad(),
    ) as trainer:
        trainer.fit()
    accuracy = expected_values(model, data)["MulticlassAccuracy"]
    assert keep.of(f"metrics/{label}/MulticlassAccuracy") == [(3, pytest.approx(accuracy))]


class RequiresGrad(Callback):
    """Lets a loss without trainable inputs go backward."""

    def after_loss(self, state, logger):
        state.loss = state.loss + 0.0 * state.model.extra


def distributed_evaluation(samples, batch_size, microbatch, parallel):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from stretto.core_events import Callback
    from stretto.trainer import ComposerClassifier, Evaluator, Trainer, dist

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 4, generator=generator)
    data = TensorDataset(inputs, torch.randint(0, 3, (samples,), generator=generator))
    torch.manual_seed(0)
    model = ComposerClassifier(nn.Linear(4, 3), num_classes=3)
    counted = []

    class Watch(Callback):
        def eval_end(self, state, logger):
            counted.append(state.eval_timestamp.sample_count)

    loader = DataLoader(data, batch_size=batch_size, sampler=dist.get_sampler(data))
    trainer = Trainer(
        model=model,
        eval_dataloader=Evaluator(
            label="eval", dataloader=loader, device_eval_microbatch_size=microbatch
        ),
        callbacks=Watch(),
        parallelism_config=parallel,
        progress_bar=False,
        run_directory="run",
    )
    trainer.eval()
    values = trainer.state.metric_values["eval"]
    trainer.close()
    return counted, values


@pytest.mark.parametrize("parallel", [None, {"fsdp": {}}], ids=["ddp", "fsdp"])
@pytest.mark.parametrize(("samples", "batch_size", "microbatch"), [(5, 2, None), (7, 3, 2)])
def test_padding_of_the_sampler_does_not_count(
    run_ranks, parallel, samples, batch_size, microbatch
):
    """M11: 5 samples on 2 ranks, each counted once."""
    expected = expected_values(make_model(), make_data(samples))
    results = run_ranks(
        distributed_evaluation,
        samples=samples,
        batch_size=batch_size,
        microbatch=microbatch,
        parallel=parallel,
    )
    for counted, values in results:
        assert counted == [samples]
        assert values == pytest.approx(expected)


def uneven_evaluation(parallel):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from stretto.trainer import ComposerClassifier, Evaluator, Trainer, dist

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(7, 4, generator=generator)
    labels = torch.randint(0, 3, (7,), generator=generator)
    torch.manual_seed(0)
    model = ComposerClassifier(nn.Linear(4, 3), num_classes=3)

    class Own(torch.utils.data.IterableDataset):
        def __iter__(self):
            mine = slice(0, 6) if dist.get_global_rank() == 0 else slice(6, 7)
            yield from TensorDataset(inputs[mine], labels[mine])

    trainer = Trainer(
        model=model,
        eval_dataloader=Evaluator(
            label="eval",
            dataloader=DataLoader(Own(), batch_size=3),
            device_eval_microbatch_size=2,
        ),
        parallelism_config=parallel,
        progress_bar=False,
        run_directory="run",
    )
    trainer.eval()
    values = trainer.state.metric_values["eval"]
    trainer.close()
    return values


@pytest.mark.parametrize("parallel", [None, {"fsdp": {}}], ids=["ddp", "fsdp"])
def test_a_rank_with_fewer_batches_goes_along_without_counting_twice(run_ranks, parallel):
    expected = expected_values(make_model(), make_data(7))
    for values in run_ranks(uneven_evaluation, parallel=parallel):
        assert values == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label": ""}, "label must not be empty"),
        ({"label": "a", "subset_num_batches": 0}, "subset_num_batches must be -1"),
        ({"label": "a", "device_eval_microbatch_size": 0}, "at least 1"),
        ({"label": "a", "eval_interval": "1 epoch"}, "1 epoch"),
    ],
)
def test_a_wrong_evaluator_is_an_error_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        Evaluator(dataloader=DataLoader(make_data(4)), **arguments)


def test_wrong_evaluation_data_is_an_error_at_construction():
    loader = DataLoader(make_data(4))
    with pytest.raises(ValueError, match="nothing to evaluate on"):
        Trainer(model=make_model(), progress_bar=False).eval()
    twice = [Evaluator(label="a", dataloader=loader), Evaluator(label="a", dataloader=loader)]
    with pytest.raises(ValueError, match="two evaluators are called a"):
        Trainer(model=make_model(), eval_dataloader=twice, progress_bar=False)
    unknown = Evaluator(label="a", dataloader=loader, metric_names=["F1"])
    with pytest.raises(ValueError, match="asks for the metrics F1"):
        Trainer(model=make_model(), eval_dataloader=unknown, progress_bar=False)
