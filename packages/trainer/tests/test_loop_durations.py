"""Training lasts as long as asked, in every unit, and says how far it has come."""

from __future__ import annotations

import datetime
import time

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stretto.core_events import Callback, LoggerDestination, Time
from stretto.trainer import ComposerClassifier, DataSpec, Trainer


def make_data(samples: int = 10) -> TensorDataset:
    return TensorDataset(torch.randn(samples, 4), torch.randint(0, 3, (samples,)))


def make_trainer(dataloader=None, **arguments) -> Trainer:
    defaults = {
        "model": ComposerClassifier(nn.Linear(4, 3)),
        "train_dataloader": DataLoader(make_data(), batch_size=4)
        if dataloader is None
        else dataloader,
        "progress_bar": False,
    }
    return Trainer(**{**defaults, **arguments})


class Endless(IterableDataset):
    """Never ends and has no length."""

    def __iter__(self):
        while True:
            yield torch.randn(4), 1


def endless_loader() -> DataLoader:
    return DataLoader(Endless(), batch_size=4)


def with_tokens(dataloader) -> DataSpec:
    return DataSpec(dataloader, get_num_tokens_in_batch=lambda batch: 5 * len(batch[0]))


@pytest.mark.parametrize(
    ("duration", "batches"),
    [
        (2, 6),
        ("2ep", 6),
        (Time(1, "ep"), 3),
        ("4ba", 4),
        ("6ba", 6),
        ("12sp", 4),  # batches of 4, 4, 2, 4
        ("11sp", 4),
        ("50tok", 3),  # five tokens a sample
        ("51tok", 4),
    ],
    ids=str,
)
def test_every_unit_ends_the_training_after_the_batch_that_reaches_it(duration, batches):
    """T10: other units than epochs were refused in parts of the code."""
    loader = with_tokens(DataLoader(make_data(), batch_size=4))
    with make_trainer(loader, max_duration=duration) as trainer:
        trainer.fit()
        assert trainer.state.timestamp.batch_count == batches


@pytest.mark.parametrize("duration", ["0.3sec", datetime.timedelta(seconds=0.3)], ids=str)
def test_seconds_end_the_training_by_the_clock(duration):
    class Slow(Callback):
        def batch_start(self, state, logger):
            time.sleep(0.02)

    with make_trainer(endless_loader(), max_duration=duration, callbacks=Slow()) as trainer:
        started = time.perf_counter()
        trainer.fit()
        assert 0.3 <= time.perf_counter() - started < 30
        assert trainer.state.timestamp.total_wct >= datetime.timedelta(seconds=0.3)
        assert trainer.state.timestamp.batch_count <= 15


@pytest.mark.parametrize(("duration", "batches"), [("10ba", 10), ("40sp", 10), ("90tok", 5)])
def test_a_loader_without_a_length_trains_in_every_unit_but_epochs(duration, batches):
    """M13: unsized and infinite datasets."""
    with make_trainer(with_tokens(endless_loader()), max_duration=duration) as trainer:
        trainer.fit()
        assert trainer.state.timestamp.batch_count == batches
        assert trainer.state.timestamp.epoch_count == 0


def test_epochs_of_a_loader_without_a_length_are_refused_with_the_units_that_work():
    """M13: refused clearly, unless the length of an epoch is given."""
    trainer = make_trainer(endless_loader(), max_duration="2ep")
    with pytest.raises(ValueError, match=r"2ep is in epochs.*ba, sp, tok or sec"):
        trainer.fit()
    with make_trainer(endless_loader(), max_duration="2ep", train_subset_num_batches=3) as trainer:
        trainer.fit()
        assert trainer.state.timestamp.batch_count == 6
        assert trainer.state.timestamp.epoch_count == 2


def test_a_stream_with_an_end_runs_through_its_epochs_in_batches():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from make_data(8)

    with make_trainer(DataLoader(Stream(), batch_size=4), max_duration="5ba") as trainer:
        trainer.fit()
        assert trainer.state.timestamp.batch_count == 5
        assert trainer.state.timestamp.epoch_count == 2


def test_a_subset_of_batches_makes_shorter_epochs():
    with make_trainer(max_duration="2ep", train_subset_num_batches=2) as trainer:
        trainer.fit()
        assert trainer.state.timestamp.batch_count == 4
        assert trainer.state.dataloader_len == 2
        trainer.fit(duration="1ep", train_subset_num_batches=-1)
        assert trainer.state.timestamp.batch_count == 7


def test_elapsed_duration_moves_with_every_batch():
    elapsed = []

    class Watch(Callback):
        def batch_end(self, state, logger):
            elapsed.append(state.get_elapsed_duration().value)

    with make_trainer(max_duration="2ep", callbacks=Watch()) as trainer:
        trainer.fit()
    assert elapsed == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])


def test_a_duration_given_to_fit_is_added_to_where_the_run_is():
    with make_trainer() as trainer:
        trainer.fit(duration="1ep")
        trainer.fit(duration="2ba")
        trainer.fit(duration=1)
        assert trainer.state.timestamp.epoch_count == 2
        trainer.fit(duration="1ba", reset_time=True)
        assert trainer.state.timestamp.batch_count == 1


def test_the_scale_schedule_ratio_stretches_the_duration():
    with make_trainer(max_duration="4ep", scale_schedule_ratio=0.5) as trainer:
        trainer.fit()
        assert trainer.state.timestamp.epoch_count == 2


def test_new_training_data_in_the_middle_of_an_epoch_begin_the_next_one():
    with make_trainer(max_duration="2ba") as trainer:
        trainer.fit()
        trainer.fit(train_dataloader=[(torch.randn(7, 4), torch.zeros(7).long())], duration="1ba")
        assert trainer.state.timestamp.epoch_count == 2
        assert trainer.state.timestamp.sample_count == 4 + 4 + 7


class Keep(LoggerDestination):
    def __init__(self) -> None:
        self.entries: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics, step=None):
        self.entries.append((step, dict(metrics)))


def test_progress_loss_and_microbatch_size_are_logged_with_every_batch_and_at_the_end():
    """T8: the last token count was not logged when the duration is in epochs."""
    keep = Keep()
    loader = with_tokens(DataLoader(make_data(), batch_size=4))
    with make_trainer(
        loader, max_duration="2ep", loggers=keep, device_train_microbatch_size=3
    ) as trainer:
        losses = []

        class Watch(Callback):
            def after_loss(self, state, logger):
                losses.append((len(state.batch[0]), float(state.loss.detach())))

        trainer.state.callbacks.append(Watch())
        trainer.engine.rebuild()
        trainer.fit()
    steps = [(step, m) for step, m in keep.entries if "loss/train/total" in m]
    assert [step for step, _ in steps] == list(range(6))
    assert [m["time/batch"] for _, m in steps] == list(range(6))
    assert [m["time/batch_in_epoch"] for _, m in steps] == [0, 1, 2, 0, 1, 2]
    assert [m["time/sample"] for _, m in steps] == [0, 4, 8, 10, 14, 18]
    assert all(m["trainer/device_train_microbatch_size"] == 3 for _, m in steps)
    first = (3 * losses[0][1] + losses[1][1]) / 4
    assert steps[0][1]["loss/train/total"] == pytest.approx(first)
    assert all(type(m["loss/train/total"]) is float for _, m in steps)
    step, last = keep.entries[-1]
    assert step == 6
    assert last["time/epoch"] == 2
    assert last["time/batch"] == 6
    assert last["time/token"] == 100


def test_losses_by_name_are_logged_by_name():
    class Two(ComposerClassifier):
        def loss(self, outputs, batch, *args, **kwargs):
            return {"a": outputs.mean(), "b": outputs.square().mean()}

    keep = Keep()
    with make_trainer(model=Two(nn.Linear(4, 3)), max_duration="1ba", loggers=keep) as trainer:
        trainer.fit()
    logged = keep.entries[0][1]
    assert logged["loss/train/total"] == pytest.approx(
        logged["loss/train/a"] + logged["loss/train/b"]
    )


def test_losses_wait_for_the_flush_instead_of_stopping_every_step(monkeypatch):
    """Decision 4: no host sync in the step path; ten batches are resolved in one call."""
    from stretto.trainer.loop import batch as batch_module

    keep, calls = Keep(), []
    monkeypatch.setattr(batch_module, "FLUSH_SECONDS", 1e9)
    trainer = make_trainer(endless_loader(), max_duration="25ba", loggers=keep)
    resolve = trainer.logger._resolve

    def count(values):
        calls.append(len(values))
        return resolve(values)

    trainer.logger._resolve = count
    trainer.fit()
    trainer.close()
    assert calls == [10, 10, 5]
    assert len([m for _, m in keep.entries if "loss/train/total" in m]) == 25


class NoReads(TorchDispatchMode):
    """Refuses to read a tensor's value on the host, which would stop a device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default):
            raise AssertionError(f"{func} reads a value in the middle of a step")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("size", [None, 2])
def test_no_value_is_read_between_the_start_and_the_end_of_a_step(monkeypatch, size):
    """Decision 4, with losses logged and training metrics kept."""
    from stretto.trainer.loop import batch as batch_module

    monkeypatch.setattr(batch_module, "FLUSH_SECONDS", 1e9)
    keep, mode, steps = Keep(), NoReads(), []

    class Guard(Callback):
        def after_dataloader(self, state, logger):
            mode.__enter__()

        def batch_end(self, state, logger):
            mode.__exit__(None, None, None)
            steps.append(state.timestamp.batch_count)

    with make_trainer(
        model=ComposerClassifier(nn.Linear(4, 3), num_classes=3),
        max_duration="1ep",
        device_train_microbatch_size=size,
        loggers=keep,
        callbacks=Guard(),
    ) as trainer:
        trainer.fit()
    assert steps == [1, 2, 3]
    with pytest.raises(AssertionError, match="reads a value"), NoReads():
        torch.ones(()).item()


def test_a_slow_run_is_flushed_by_time(monkeypatch):
    from stretto.trainer.loop import batch as batch_module

    monkeypatch.setattr(batch_module, "FLUSH_SECONDS", 0.0)
    keep, seen = Keep(), []

    class Watch(Callback):
        def before_dataloader(self, state, logger):
            seen.append(len(keep.entries))

    with make_trainer(max_duration="1ep", loggers=keep, callbacks=Watch()) as trainer:
        trainer.fit()
    # Each batch's loss is there before the next is fetched; the epoch has a line of its own too.
    assert seen == [0, 1, 2, 3]


def train_on_ranks(duration, uneven):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from stretto.core_events import LoggerDestination
    from stretto.trainer import ComposerClassifier, Trainer, dist

    class Keep(LoggerDestination):
        def __init__(self):
            self.losses = []

        def log_metrics(self, metrics, step=None):
            if "loss/train/total" in metrics:
                self.losses.append(metrics["loss/train/total"])

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 4, generator=generator)
    data = TensorDataset(inputs, torch.randint(0, 3, (12,), generator=generator))
    torch.manual_seed(0)
    model = ComposerClassifier(nn.Linear(4, 3))
    rank = dist.get_global_rank()
    loader = DataLoader(data, batch_size=3, sampler=dist.get_sampler(data))
    if uneven:
        loader = list(loader)[: 2 - rank]
    keep = Keep()
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration=duration,
        loggers=[keep] if rank == 0 else None,
        progress_bar=False,
        run_directory="run",
    )
    trainer.fit()
    weights = [p.detach().tolist() for p in model.parameters()]
    timestamp = trainer.state.timestamp.state_dict()
    trainer.close()
    return weights, timestamp, keep.losses


def test_ranks_agree_on_progress_and_log_the_loss_over_all(run_ranks):
    (weights, timestamp, losses), (other_weights, other_timestamp, other_losses) = run_ranks(
        train_on_ranks, duration="2ep", uneven=False
    )
    assert weights == other_weights
    assert timestamp == other_timestamp
    assert timestamp["batch"] == 4
    assert timestamp["sample"] == 24
    assert other_losses == []
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 4, generator=generator)
    labels = torch.randint(0, 3, (12,), generator=generator)
    torch.manual_seed(0)
    network = ComposerClassifier(nn.Linear(4, 3)).module
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    expected = []
    for part in [slice(0, 6), slice(6, 12)] * 2:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(inputs[part]), labels[part])
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    assert losses == pytest.approx(expected, rel=1e-5)
    for ours, theirs in zip(weights, network.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(ours), theirs.detach())


def test_an_epoch_ends_on_all_ranks_when_one_has_no_batch_left(run_ranks):
    results = run_ranks(train_on_ranks, duration="4ba", uneven=True)
    assert [timestamp["batch"] for _, timestamp, _ in results] == [4, 4]
    assert [timestamp["epoch"] for _, timestamp, _ in results] == [4, 4]


def test_seconds_end_the_training_on_all_ranks_after_the_same_batch(run_ranks):
    (_, timestamp, _), (_, other, _) = run_ranks(train_on_ranks, duration="0.2sec", uneven=False)
    assert timestamp == other
    assert timestamp["total_wct"] >= 0.2
