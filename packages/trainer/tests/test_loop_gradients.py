"""Gradients do not depend on how batches are cut, and equal those of plain torch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from stretto.core_events import Algorithm, Callback, Event
from stretto.trainer import ComposerClassifier, ComposerModel, DataSpec, Trainer
from stretto.trainer.loop.microbatch import GradientPass
from stretto.trainer.loop.replay import PassStart
from stretto.trainer.microbatching import FixedMicrobatching


def make_data(samples: int, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 6, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 4, (samples,), generator=generator))


def make_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


class KeepGradients(Callback):
    """Copies the gradients of every batch before the optimizer uses them."""

    def __init__(self) -> None:
        self.batches: list[list[torch.Tensor]] = []

    def after_train_batch(self, state, logger):
        self.batches.append([p.grad.clone() for p in state.model.parameters()])


def train(network: nn.Module, data: TensorDataset, **arguments) -> KeepGradients:
    keeper = KeepGradients()
    model = ComposerClassifier(network)
    defaults = {
        "train_dataloader": DataLoader(data, batch_size=5),
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.1),
        "max_duration": "1ep",
        "progress_bar": False,
        "seed": 0,
    }
    callbacks = [keeper, *arguments.pop("callbacks", [])]
    with Trainer(model=model, callbacks=callbacks, **{**defaults, **arguments}) as trainer:
        trainer.fit()
    return keeper


def train_plainly(network: nn.Module, data: TensorDataset) -> list[list[torch.Tensor]]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    gradients = []
    for inputs, labels in DataLoader(data, batch_size=5):
        optimizer.zero_grad()
        functional.cross_entropy(network(inputs), labels).backward()
        gradients.append([p.grad.clone() for p in network.parameters()])
        optimizer.step()
    return gradients


@pytest.mark.parametrize("size", [None, 1, 2, 3, 4, 5, 100])
def test_gradients_of_every_microbatch_size_equal_those_of_plain_torch(size):
    """M5 too: 12 samples in batches of 5 leave a last batch of 2, smaller than the microbatch."""
    data, network = make_data(12), make_network()
    expected = train_plainly(copy.deepcopy(network), data)
    actual = train(network, data, device_train_microbatch_size=size)
    assert len(actual.batches) == len(expected) == 3
    for ours, theirs in zip(actual.batches, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_without_microbatches_training_equals_plain_torch_bit_by_bit():
    data, network = make_data(12), make_network()
    reference = copy.deepcopy(network)
    train_plainly(reference, data)
    train(network, data)
    for a, b in zip(network.parameters(), reference.parameters(), strict=True):
        assert torch.equal(a, b)


class TokenModel(ComposerModel):
    """Predicts labels for tokens; its loss is the mean over tokens that are not ignored."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, batch):
        return self.head(self.embed(batch["input_ids"]))

    def loss(self, outputs, batch, *args, **kwargs):
        return functional.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())


def token_batch(lengths: list[int], width: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, 10, (len(lengths), width), generator=generator)
    labels = torch.randint(0, 10, (len(lengths), width), generator=generator)
    for row, length in enumerate(lengths):
        labels[row, length:] = -100
    return {"input_ids": ids, "labels": labels}


def token_gradients(batch, size, **arguments) -> list[torch.Tensor]:
    keeper = KeepGradients()
    with Trainer(
        model=TokenModel(),
        train_dataloader=[batch],
        max_duration="1ba",
        device_train_microbatch_size=size,
        accumulate_train_batch_on_tokens=True,
        callbacks=keeper,
        progress_bar=False,
        **arguments,
    ) as trainer:
        trainer.fit()
    return keeper.batches[0]


@pytest.mark.parametrize("lengths", [[11, 101], [5, 0, 17]])
def test_token_weighting_makes_gradients_equal_for_sequences_of_unequal_length(lengths):
    """M2: 11 and 101 tokens, microbatches of 1 and 2; and one without tokens beside others."""
    batch = token_batch(lengths, 101)
    model = TokenModel()
    model.loss(model(batch), batch).backward()
    expected = [p.grad for p in model.parameters()]
    for size in (None, 1, 2):
        for a, b in zip(token_gradients(batch, size), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_a_batch_without_loss_bearing_tokens_is_an_error_that_says_so():
    """M2: its mean loss is undefined."""
    with pytest.raises(ValueError, match="no loss-bearing tokens"):
        token_gradients(token_batch([0, 0], 4), None)


class DropHalf(Algorithm):
    """Keeps every other sample, like a method that selects samples by their loss."""

    events = (Event.AFTER_DATALOADER,)

    def apply(self, event, state, logger):
        inputs, labels = state.batch
        state.batch = (inputs[::2], labels[::2])


def test_an_algorithm_that_drops_samples_changes_the_denominator():
    data, network = make_data(5), make_network()
    reference = copy.deepcopy(network)
    inputs, labels = data.tensors[0][::2], data.tensors[1][::2]
    functional.cross_entropy(reference(inputs), labels).backward()
    keeper = train(network, data, algorithms=DropHalf(), device_train_microbatch_size=2)
    for a, p in zip(keeper.batches[0], reference.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


class DictLoss(ComposerClassifier):
    def loss(self, outputs, batch, *args, **kwargs):
        main = functional.cross_entropy(outputs, batch[1])
        return {"main": main, "extra": 0.5 * outputs.square().mean()}


class Total(DictLoss):
    def loss(self, outputs, batch, *args, **kwargs):
        return {
            **super().loss(outputs, batch),
            "total": 2 * functional.cross_entropy(outputs, batch[1]),
        }


class Pair(DictLoss):
    def loss(self, outputs, batch, *args, **kwargs):
        return tuple(super().loss(outputs, batch).values())


@pytest.mark.parametrize("kind", [DictLoss, Total, Pair])
def test_losses_by_name_train_on_their_total(kind):
    data, network = make_data(4), make_network()
    reference = copy.deepcopy(network)
    outputs = reference(data.tensors[0])
    main = functional.cross_entropy(outputs, data.tensors[1])
    expected = 2 * main if kind is Total else main + 0.5 * outputs.square().mean()
    expected.backward()
    keeper = KeepGradients()
    with Trainer(
        model=kind(network),
        train_dataloader=DataLoader(data, batch_size=4),
        max_duration="1ba",
        device_train_microbatch_size=2,
        callbacks=keeper,
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    for a, p in zip(keeper.batches[0], reference.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def make_pass(network: nn.Module, size: int) -> tuple[Trainer, GradientPass, DataSpec]:
    trainer = Trainer(model=ComposerClassifier(network), progress_bar=False, seed=5)
    spec = DataSpec([None])
    microbatching = FixedMicrobatching(spec, size)
    return trainer, GradientPass(trainer.state, trainer.engine, microbatching), spec


def test_a_pass_can_be_made_again_from_where_it_started():
    """Decision 4: the same dropout masks, running statistics counted once, no event twice."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
    trainer, gradients, _ = make_pass(network, 2)
    batch = tuple(make_data(6).tensors)
    start = PassStart.capture(trainer.state.model)
    first = gradients.compute_gradients(batch)
    before = [p.grad.clone() for p in network.parameters()]
    buffers = [b.clone() for b in network.buffers()]
    with torch.no_grad():  # a wrong gradient left over would be added to
        for p in network.parameters():
            p.grad.fill_(1e6)
    second = gradients.compute_gradients(batch, start=start, events=False)
    assert torch.equal(first["total"], second["total"])
    for a, p in zip(before, network.parameters(), strict=True):
        assert torch.equal(a, p.grad)
    for a, b in zip(buffers, network.buffers(), strict=True):
        assert torch.equal(a, b)
    assert int(network[1].num_batches_tracked) == 3
    trainer.close()


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("out of memory, say")
        return self.layer(inputs)


def test_a_pass_that_fails_leaves_no_gradient_and_the_whole_batch():
    network = Fails()
    trainer, gradients, _ = make_pass(network, 2)
    batch = tuple(make_data(4).tensors)
    with pytest.raises(RuntimeError, match="out of memory, say"):
        gradients.compute_gradients(batch)
    assert [p.grad for p in network.parameters()] == [None, None]
    assert trainer.state.batch is batch
    trainer.close()


class ReplacesTarget(Algorithm):
    """Replaces an item of each microbatch, like label smoothing."""

    events = (Event.BEFORE_LOSS,)

    def apply(self, event, state, logger):
        state.batch_set_item(1, torch.zeros_like(state.batch_get_item(1)))


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("size", [None, 2])
def test_replacing_an_item_of_a_microbatch_leaves_the_batch_as_it_was(kind, size):
    batch = kind(make_data(4).tensors)
    labels = batch[1].clone()
    seen = []

    class Watch(Callback):
        def after_train_batch(self, state, logger):
            seen.append(state.batch)

    with Trainer(
        model=ComposerClassifier(make_network()),
        train_dataloader=[batch],
        max_duration="1ba",
        device_train_microbatch_size=size,
        algorithms=ReplacesTarget(),
        callbacks=Watch(),
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    assert seen[0] is batch
    assert torch.equal(batch[1], labels)


class NoDeepCopy(torch.Tensor):
    """A tensor that may not be deep-copied."""

    def __deepcopy__(self, memo):
        raise AssertionError("a batch was deep-copied")


def test_no_batch_is_deep_copied():
    inputs, labels = make_data(4).tensors
    batch = (inputs.as_subclass(NoDeepCopy), labels)
    with Trainer(
        model=ComposerClassifier(make_network()),
        train_dataloader=[batch],
        max_duration="1ba",
        device_train_microbatch_size=2,
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    assert trainer.state.timestamp.batch_count == 1


def test_a_custom_batch_needs_no_splitter_where_nothing_is_split():
    """M7: a splitter was demanded even without microbatching."""

    class Custom:
        def __init__(self, tensors) -> None:
            self.inputs, self.labels = tensors

        def __len__(self) -> int:
            return len(self.inputs)

    class Model(ComposerClassifier):
        def forward(self, batch):
            return self.module(batch.inputs)

        def loss(self, outputs, batch, *args, **kwargs):
            return functional.cross_entropy(outputs, batch.labels)

    def fit(size):
        with Trainer(
            model=Model(make_network()),
            train_dataloader=[Custom(make_data(4).tensors)],
            max_duration="1ba",
            device_train_microbatch_size=size,
            progress_bar=False,
        ) as trainer:
            trainer.fit()
        return trainer.state.timestamp.sample_count

    assert fit(None) == 4
    assert fit(4) == 4
    with pytest.raises(ValueError, match="split_batch"):
        fit(2)
