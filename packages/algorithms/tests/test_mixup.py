"""MixUp against torch.lerp, its distribution's moments, and the loss mixed by hand."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from stretto.algorithms import BatchFormatError, MixUp, mixup_batch
from stretto.algorithms.mixup import draw_mixing, mix_samples
from stretto.algorithms.scratch import Scratch
from stretto.algorithms.testing import Loop, LoopState, SmallClassifier, random_batch
from stretto.algorithms.testing import split as split_batch
from stretto.core_events import Algorithm, Event, Logger


class Spy(Algorithm):
    """Notes what the batch holds at some events."""

    run_after = ("MixUp",)

    def __init__(self, *events: Event, key: int = 1) -> None:
        self.events = events
        self.key = key
        self.seen: dict[Event, list[torch.Tensor]] = {event: [] for event in events}

    def apply(self, event, state, logger):
        self.seen[event].append(state.batch_get_item(self.key))


# --- the function --------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_samples_are_torchs_lerp(share):
    x, y = random_batch(0)
    permutation = torch.randperm(8)
    mixed, partners, used = mixup_batch(x, y, mixing=share, indices=permutation)
    torch.testing.assert_close(mixed, torch.lerp(x, x[permutation], share))
    assert torch.equal(partners, y[permutation])
    assert used == share


def test_a_share_for_each_sample():
    x, y = random_batch(0)
    permutation = torch.randperm(8)
    shares = torch.rand(8)
    mixed, _, _ = mixup_batch(x, y, mixing=shares, indices=permutation)
    torch.testing.assert_close(mixed, torch.lerp(x, x[permutation], shares.view(-1, 1, 1, 1)))


def test_the_share_is_drawn_as_a_plain_number_that_mixes_losses():
    x, y = random_batch(0)
    _, partners, share = mixup_batch(x, y, alpha=0.2)
    assert isinstance(share, float)
    assert 0 <= share <= 0.5
    assert sorted(partners.tolist()) == sorted(y.tolist())


def test_a_generator_makes_it_repeatable_and_leaves_the_global_one_alone():
    x, y = random_batch(0)
    before = torch.get_rng_state()
    one, two = (
        mixup_batch(x, y, alpha=1.0, generator=torch.Generator().manual_seed(5)) for _ in range(2)
    )
    assert torch.equal(one[0], two[0])
    assert one[2] == two[2]
    assert torch.equal(before, torch.get_rng_state())


def test_moments_of_the_uniform_share():
    shares = draw_mixing(200_000, 1.0, torch.Generator().manual_seed(0))
    assert float(shares.mean()) == pytest.approx(0.25, abs=1e-3)  # min(U, 1-U): U(0, 1/2)
    assert float(shares.var()) == pytest.approx(1 / 48, rel=0.01)
    assert float(shares.max()) <= 0.5


@pytest.mark.parametrize("alpha", [0.2, 0.4, 2.0])
def test_moments_of_other_shares(alpha):
    """t(1-t) = l(1-l), whose mean under Beta(a, a) is a / (2 (2a + 1))."""
    shares = draw_mixing(200_000, alpha, torch.Generator().manual_seed(0))
    found = float((shares * (1 - shares)).mean())
    assert found == pytest.approx(alpha / (2 * (2 * alpha + 1)), rel=0.01)


@pytest.mark.parametrize("alpha", [1e-8, 1e-5, 1e-3])
def test_a_tiny_alpha_mixes_nothing_rather_than_nan(alpha):
    shares = draw_mixing(10_000, alpha, torch.Generator().manual_seed(0))
    assert shares.isfinite().all()
    assert float(shares.mean()) < 1e-2


def test_no_alpha_no_mixing():
    assert draw_mixing(3, 0.0).tolist() == [0.0, 0.0, 0.0]
    assert [event for event in Event if MixUp(alpha=0.0).match(event, None)] == []


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3),
    "batch not first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "strided": lambda x: x[:, :, ::2],
    "one sample": lambda x: x[:1],
    "flat": lambda x: x[:, 0, 0, 0],
    "half": lambda x: x.half(),
    "double": lambda x: x.double(),
}


@pytest.mark.parametrize("change", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("per_sample", [True, False])
@pytest.mark.parametrize("large_rows", [True, False])
def test_every_way_to_mix_gives_the_same(change, per_sample, large_rows, monkeypatch):
    monkeypatch.setattr("stretto.algorithms.mixup._LARGE_ROW_BYTES", 0 if large_rows else 1 << 40)
    x = change(torch.randn(8, 3, 6, 4))
    before = x.clone()
    indices = torch.randperm(len(x))
    shares = torch.rand(len(x)) if per_sample else 0.3
    for scratch in (None, Scratch()):
        mixed = mix_samples(x, indices, shares, scratch)
        weight = shares.view(-1, *(1,) * (x.dim() - 1)).to(x.dtype) if per_sample else shares
        torch.testing.assert_close(mixed, torch.lerp(x, x[indices], weight))
        assert mixed.dtype is x.dtype
        assert torch.equal(x, before)
        assert mixed.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    if x.is_contiguous(memory_format=torch.channels_last) and x.dim() == 4:
        assert mixed.is_contiguous(memory_format=torch.channels_last)


def test_inputs_that_want_a_gradient_get_one():
    x = random_batch(0)[0].requires_grad_()
    indices = torch.arange(8).roll(1)
    mixed = mix_samples(x, indices, 0.25, Scratch())
    mixed.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x))


def test_bytes_become_floats_and_token_ids_are_refused():
    x = torch.tensor([[10], [20]], dtype=torch.uint8)
    y = torch.tensor([0, 1])
    mixed, _, _ = mixup_batch(x, y, mixing=0.5, indices=torch.tensor([1, 0]))
    assert mixed.tolist() == [[15.0], [15.0]]
    with pytest.raises(BatchFormatError, match="token ids"):
        mixup_batch(x.long(), y)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(4), "same number of samples"),
        (torch.zeros(()), torch.zeros(()), "same number of samples"),
        ([1, 2], torch.zeros(2), "list and Tensor"),
    ],
)
def test_unequal_batches_are_refused(x, y, message):
    with pytest.raises(BatchFormatError, match=message):
        mixup_batch(x, y)


def test_bad_arguments_are_refused_at_construction():
    for alpha in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="alpha="):
            MixUp(alpha)
    with pytest.raises(ValueError, match="one number for a microbatch"):
        MixUp(interpolate_loss=True, per_sample=True)
    with pytest.raises(TypeError, match=r"input_key=1\.5 is no key"):
        MixUp(input_key=1.5)
    with pytest.raises(TypeError, match="target_key=None is no key"):
        MixUp(target_key=None)


# --- scratch memory ------------------------------------------------------------------------------


def test_memory_is_used_again_only_when_nobody_holds_it():
    scratch = Scratch()
    first = scratch.take(1000, torch.float32)
    address = first.data_ptr()
    view = first[10:20].view(2, 5).detach()
    second = scratch.take(1000, torch.float32)
    assert second.data_ptr() != address
    del first
    assert scratch.take(1000, torch.float32).data_ptr() != address  # the view still holds it
    del view, second
    addresses = {scratch.take(size, torch.float32).data_ptr() for size in (1000, 10, 700)}
    assert len(addresses) <= 2


def test_memory_that_a_graph_has_saved_is_not_given_away():
    scratch = Scratch()
    weight = torch.randn(100, requires_grad=True)
    first = scratch.take(100, torch.float32).copy_(torch.arange(100.0))
    product = first * weight
    address = first.data_ptr()
    del first
    others = [scratch.take(100, torch.float32).zero_() for _ in range(3)]
    assert address not in {other.data_ptr() for other in others}
    product.sum().backward()
    assert torch.equal(weight.grad, torch.arange(100.0))


@pytest.mark.parametrize("keep", [True, False])
def test_a_batch_that_somebody_keeps_is_never_overwritten(keep):
    spy = Spy(Event.BEFORE_FORWARD, key=0)
    loop = Loop(model=SmallClassifier(), algorithms=[MixUp(1.0), spy], microbatch_size=4)
    copies = []
    addresses = set()
    for index in range(6):
        loop.train_batch(random_batch(index))
        images = spy.seen[Event.BEFORE_FORWARD]
        addresses.update(image.data_ptr() for image in images[-2:])
        copies.extend(image.clone() for image in images[-2:])
        if not keep:
            images.clear()
    for image, at_the_time in zip(spy.seen[Event.BEFORE_FORWARD], copies, strict=keep):
        assert torch.equal(image, at_the_time)
    if not keep:
        assert len(addresses) <= 4  # two blocks take turns, two microbatches each


# --- in a run ------------------------------------------------------------------------------------


def partners_of(loop: Loop, index: int = 0):
    """Draw what the method draws, through its public parts."""
    from stretto.algorithms.randomness import keyed_generator

    generator = keyed_generator(seed=loop.seed, batch=index, method="MixUp")
    return torch.randperm(8, generator=generator), draw_mixing(8, 1.0, generator).float()


@pytest.mark.parametrize("microbatch_size", [8, 3, 1])
def test_loss_and_gradients_are_those_mixed_by_hand(microbatch_size):
    torch.manual_seed(0)
    model = SmallClassifier()
    loop = Loop(model=model, algorithms=[MixUp(alpha=1.0)], microbatch_size=microbatch_size)
    images, target = random_batch(0)
    found = loop.gradients((images, target))
    permutation, shares = partners_of(loop)
    mixed = torch.lerp(images, images[permutation], shares.view(-1, 1, 1, 1))
    logits = model(mixed)
    losses = torch.lerp(
        F.cross_entropy(logits, target, reduction="none"),
        F.cross_entropy(logits, target[permutation], reduction="none"),
        shares,
    )
    assert found == pytest.approx(float(losses.mean().detach()), rel=1e-5)
    expected = torch.autograd.grad(losses.mean(), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    assert float(shares.std()) > 0.05  # a share for each sample


@pytest.mark.parametrize("microbatch_size", [8, 2])
def test_mixing_losses_equals_mixing_targets(microbatch_size):
    """Cross entropy is linear in the target; and what is logged is what is used (G4)."""
    losses, gradients = [], []
    for interpolate in (False, True):
        torch.manual_seed(0)
        method = MixUp(1.0, interpolate_loss=interpolate, per_sample=False)
        loop = Loop(model=SmallClassifier(), algorithms=[method], microbatch_size=microbatch_size)
        losses.append(loop.gradients(random_batch(0)))
        gradients.append([p.grad for p in loop.model.parameters()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def interleaved(batch, size):
    count = -(-len(batch[0]) // size)
    return [tuple(part[start::count] for part in batch) for start in range(count)]


def shuffled_copies(batch, size):
    order = torch.randperm(len(batch[0]))
    return split_batch(tuple(part[order] for part in batch), size)


@pytest.mark.parametrize("splitter", [interleaved, shuffled_copies])
def test_any_way_to_cut_the_batch_carries_the_right_targets(splitter):
    torch.manual_seed(0)
    plain = Loop(model=SmallClassifier(), algorithms=[MixUp(1.0)])
    other = Loop(
        model=SmallClassifier(), algorithms=[MixUp(1.0)], microbatch_size=2, splitter=splitter
    )
    other.model.load_state_dict(plain.model.state_dict())
    batch = random_batch(0)
    assert plain.gradients(batch) == pytest.approx(other.gradients(batch), rel=1e-5)
    for one, two in zip(plain.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-6)


def test_who_sees_which_target():
    events = (
        Event.AFTER_DATALOADER,
        Event.BEFORE_FORWARD,
        Event.BEFORE_LOSS,
        Event.BEFORE_BACKWARD,
        Event.BATCH_END,
    )
    spy = Spy(*events)
    loop = Loop(model=SmallClassifier(), algorithms=[spy, MixUp(1.0)], microbatch_size=4)
    images, target = random_batch(0)
    loop.train_batch((images, target))
    seen = spy.seen
    assert seen[Event.AFTER_DATALOADER][0] is target  # it comes before: the order is reversed
    for event in (Event.BEFORE_FORWARD, Event.BEFORE_BACKWARD):
        assert torch.equal(torch.cat(seen[event]), target)
    mixed = torch.cat(seen[Event.BEFORE_LOSS])
    assert mixed.shape == (8, 5)
    torch.testing.assert_close(mixed.sum(1), torch.ones(8))
    assert torch.equal(seen[Event.BATCH_END][0], target)


def test_batch_transforms_come_first():
    class Doubles(Algorithm):
        events = (Event.AFTER_DATALOADER,)
        tags = ("batch_transform",)

        def apply(self, event, state, logger):
            state.batch_set_item(0, state.batch_get_item(0) * 2)

    seen = []
    for methods in ([MixUp(1.0), Doubles()], [Doubles(), MixUp(1.0)]):
        spy = Spy(Event.BEFORE_FORWARD, key=0)
        Loop(model=SmallClassifier(), algorithms=[*methods, spy]).gradients(random_batch(0))
        seen.append(spy.seen[Event.BEFORE_FORWARD][0])
    loop = Loop(model=SmallClassifier())
    permutation, shares = partners_of(loop)
    images = random_batch(0)[0] * 2
    for found in seen:
        torch.testing.assert_close(
            found, torch.lerp(images, images[permutation], shares.view(-1, 1, 1, 1))
        )


def test_every_batch_rank_and_seed_draws_differently_and_the_same_again():
    def images(seed: int, batches: int) -> torch.Tensor:
        spy = Spy(Event.BEFORE_FORWARD, key=0)
        loop = Loop(model=SmallClassifier(), algorithms=[MixUp(1.0), spy], seed=seed)
        loop.state.timestamp = loop.state.timestamp.copy(batch=batches)
        loop.gradients(random_batch(0))
        return spy.seen[Event.BEFORE_FORWARD][0]

    assert torch.equal(images(3, 7), images(3, 7))
    assert not torch.equal(images(3, 7), images(3, 8))
    assert not torch.equal(images(3, 7), images(4, 7))


def test_adding_another_method_does_not_change_what_is_drawn():
    class Noise(Algorithm):
        events = (Event.BATCH_START,)

        def apply(self, event, state, logger):
            torch.rand(1)
            random.random()

    seen = []
    for extra in ([], [Noise()]):
        spy = Spy(Event.BEFORE_FORWARD, key=0)
        loop = Loop(model=SmallClassifier(), algorithms=[*extra, MixUp(1.0), spy])
        for index in range(3):
            loop.train_batch(random_batch(index))
        seen.append(torch.cat(spy.seen[Event.BEFORE_FORWARD]))
    assert torch.equal(*seen)


def test_the_same_microbatch_may_be_run_again():
    """As after running out of memory: from the device batch, with other sizes."""
    loop = Loop(model=SmallClassifier(), algorithms=[MixUp(1.0)])
    state = loop.state
    state.batch = random_batch(0)
    loop.run(Event.AFTER_DATALOADER)
    whole = state.batch
    results = []
    for size in (8, 2):
        targets = []
        for microbatch in split_batch(whole, size):
            for _ in range(2):
                state.batch = microbatch
                loop.run(Event.BEFORE_FORWARD)
                loop.run(Event.BEFORE_FORWARD)
                state.outputs = torch.zeros(len(state.batch[0]), 5)
                loop.run(Event.BEFORE_LOSS)
                mixed = state.batch[1]
                loop.run(Event.AFTER_LOSS)
            targets.append(mixed)
        results.append(torch.cat(targets))
    assert torch.equal(*results)


def test_a_target_that_somebody_replaced_in_between_is_an_error():
    class Replaces(Algorithm):
        events = (Event.BATCH_START,)

        def apply(self, event, state, logger):
            state.batch_set_item(1, torch.zeros(8, dtype=torch.int64))

    loop = Loop(model=SmallClassifier(), algorithms=[MixUp(1.0), Replaces()])
    with pytest.raises(BatchFormatError, match="did not put there"):
        loop.gradients(random_batch(0))


def test_a_loop_that_leaves_events_out_is_told():
    state = LoopState(SmallClassifier())
    state.batch = random_batch(0)
    with pytest.raises(BatchFormatError, match="both events"):
        MixUp().apply(Event.BEFORE_FORWARD, state, Logger(state))
    with pytest.raises(BatchFormatError, match="BEFORE_FORWARD to run"):
        MixUp().apply(Event.BEFORE_LOSS, state, Logger(state))


class DictClassifier(SmallClassifier):
    def forward(self, batch):
        return {"logits": super().forward(batch["pixels"])}

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs["logits"], batch["labels"])


def test_named_batches_and_outputs():
    def cut(batch, size):
        return [
            {"pixels": x, "labels": y}
            for x, y in split_batch((batch["pixels"], batch["labels"]), size)
        ]

    images, target = random_batch(0)
    method = MixUp(1.0, input_key="pixels", target_key="labels")
    model = DictClassifier()
    state = LoopState(model)
    state.batch = {"pixels": images, "labels": target}
    given_batch, logger = state.batch, Logger(state)
    method.apply(Event.AFTER_DATALOADER, state, logger)
    assert given_batch["labels"] is target  # the user's own dictionary is not written to
    for microbatch in cut(state.batch, 4):
        state.batch = microbatch
        method.apply(Event.BEFORE_FORWARD, state, logger)
        state.outputs = model(state.batch)
        method.apply(Event.BEFORE_LOSS, state, logger)
        assert state.batch["labels"].shape == (4, 5)
        model.loss(state.outputs, state.batch).backward()
        method.apply(Event.AFTER_LOSS, state, logger)
        assert state.batch["labels"].shape == (4,)


@pytest.mark.parametrize("kind", ["probabilities", "one_hot_int", "regression", "masks"])
def test_other_targets(kind):
    images, indices = random_batch(0)
    targets = {
        "probabilities": torch.rand(8, 5).softmax(1),
        "one_hot_int": F.one_hot(indices, 5),
        "regression": torch.randn(8, 2),
        "masks": torch.randint(5, (8, 4, 4)),
    }
    target = targets[kind]
    outputs = torch.randn(8, 5, 4, 4) if kind == "masks" else torch.randn(8, 5)
    if kind == "masks":
        target[0, 0, 0] = -100
    method, state = MixUp(1.0), LoopState(SmallClassifier())
    logger = Logger(state)
    state.batch = (images, target)
    method.apply(Event.AFTER_DATALOADER, state, logger)
    method.apply(Event.BEFORE_FORWARD, state, logger)
    assert state.batch[1] is target
    state.outputs = None if kind == "regression" else outputs
    method.apply(Event.BEFORE_LOSS, state, logger)
    found = state.batch[1]
    permutation, shares = partners_of(Loop(model=SmallClassifier()))
    rest = (1,) * (found.dim() - 1)
    if kind == "masks":
        dense = F.one_hot(target.clamp_min(0), 5).movedim(-1, 1) * (target >= 0).unsqueeze(1)
    else:
        dense = target
    dense = dense.float()
    torch.testing.assert_close(found, torch.lerp(dense, dense[permutation], shares.view(-1, *rest)))
    method.apply(Event.AFTER_LOSS, state, logger)
    assert state.batch[1] is target


def test_several_losses_are_mixed_each():
    class Two(SmallClassifier):
        def loss(self, outputs, batch):
            loss = super().loss(outputs, batch)
            return {"one": loss, "rest": [loss * 2, loss * 3]}

    model = Two()
    state = LoopState(model)
    method, logger = MixUp(1.0, interpolate_loss=True), Logger(state)
    state.batch = random_batch(0)
    method.apply(Event.INIT, state, logger)
    method.apply(Event.AFTER_DATALOADER, state, logger)
    method.apply(Event.BEFORE_FORWARD, state, logger)
    state.outputs = model(state.batch)
    state.loss = model.loss(state.outputs, state.batch)
    method.apply(Event.BEFORE_BACKWARD, state, logger)
    one = state.loss["one"]
    torch.testing.assert_close(state.loss["rest"], [one * 2, one * 3])


def test_a_model_without_a_loss_is_found_at_init():
    with pytest.raises(TypeError, match="Sequential has no such method"):
        Loop(model=nn.Sequential(nn.Linear(1, 1)), algorithms=[MixUp(interpolate_loss=True)])


def test_the_second_loss_has_the_first_ones_precision():
    class Precision:
        def forward_context(self):
            return torch.autocast("cpu", torch.bfloat16)

    kinds = []

    class Notes(SmallClassifier):
        def loss(self, outputs, batch):
            kinds.append(torch.is_autocast_enabled("cpu"))
            return super().loss(outputs, batch)

    loop = Loop(
        model=Notes(),
        algorithms=[MixUp(1.0, interpolate_loss=True)],
        autocast=torch.bfloat16,
    )
    loop.state.precision = Precision()
    loop.gradients(random_batch(0))
    assert kinds == [True, True]


@given(count=st.integers(1, 9), size=st.integers(1, 9))
@settings(max_examples=20, deadline=None)
def test_batches_of_every_size_cut_in_every_size(count, size):
    loop = Loop(model=SmallClassifier(), algorithms=[MixUp(1.0)], microbatch_size=size)
    images, target = random_batch(0, count)
    loop.gradients((images, target))
    assert torch.equal(torch.cat(loop.targets), target)
