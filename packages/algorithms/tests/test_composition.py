"""Methods together: the same result in every order of the list."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

from stretto.algorithms import BlurPool, GradientClipping, LabelSmoothing, MixUp
from stretto.algorithms.mixup import draw_mixing
from stretto.algorithms.randomness import keyed_generator
from stretto.algorithms.testing import Loop, SmallClassifier, random_batch
from stretto.core_events import Event

ORDERS = [("mixup", "smoothing"), ("smoothing", "mixup")]


def masked_cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Divide by what counts: indices that are not ignored, or the mass of the probabilities."""
    if target.is_floating_point():
        return -(target * logits.log_softmax(1)).sum() / target.sum()
    return F.cross_entropy(logits, target)


class Masked(SmallClassifier):
    def loss(self, outputs, batch):
        return masked_cross_entropy(outputs, batch[1])


def build(order, interpolate: bool, **options) -> Loop:
    torch.manual_seed(0)
    methods = {
        "mixup": MixUp(1.0, interpolate_loss=interpolate),
        "smoothing": LabelSmoothing(0.1),
    }
    return Loop(model=Masked(), algorithms=[methods[name] for name in order], **options)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("interpolate", [False, True])
@pytest.mark.parametrize("microbatch_size", [8, 4])
@pytest.mark.parametrize("dense", [False, True])
def test_mixup_and_smoothing_in_either_order(order, interpolate, microbatch_size, dense):
    """G5: with mixed losses too, both terms are smoothed."""
    images, indices = random_batch(0)
    target = F.one_hot(indices, 5).float() if dense else indices
    loop = build(order, interpolate, microbatch_size=microbatch_size)
    found = loop.gradients((images, target))
    generator = keyed_generator(seed=17, batch=0, method="MixUp")
    permutation = torch.randperm(8, generator=generator)
    shares = draw_mixing(1 if interpolate else 8, 1.0, generator).float().expand(8)
    logits = loop.model(torch.lerp(images, images[permutation], shares.view(-1, 1, 1, 1)))
    one, two = (
        F.cross_entropy(logits, t, label_smoothing=0.1, reduction="none")
        for t in (indices, indices[permutation])
    )
    expected = torch.lerp(one, two, shares).mean()
    assert found == pytest.approx(float(expected), rel=1e-5)
    gradients = torch.autograd.grad(expected, list(loop.model.parameters()))
    for parameter, gradient in zip(loop.model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    assert torch.equal(torch.cat(loop.targets), target)
    assert torch.equal(loop.state.batch_get_item(1), target)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("interpolate", [False, True])
def test_ignored_samples_take_no_part(order, interpolate):
    images, target = random_batch(0)
    target[[1, 4]] = -100
    loop = build(order, interpolate)
    found = loop.gradients((images, target))
    generator = keyed_generator(seed=17, batch=0, method="MixUp")
    permutation = torch.randperm(8, generator=generator)
    shares = draw_mixing(1 if interpolate else 8, 1.0, generator).float().expand(8)
    logits = loop.model(torch.lerp(images, images[permutation], shares.view(-1, 1, 1, 1)))
    total, mass = 0.0, 0.0
    for t, weight in ((target, 1 - shares), (target[permutation], shares)):
        losses = F.cross_entropy(logits, t, label_smoothing=0.1, reduction="none")
        total += float((losses * weight).sum())
        mass += float(((t >= 0) * weight).sum())
    assert found == pytest.approx(total / mass, rel=1e-5)


def test_all_four_in_every_order_train_the_same():
    results = []
    methods = {
        "blurpool": BlurPool,
        "mixup": lambda: MixUp(0.2),
        "smoothing": lambda: LabelSmoothing(0.05),
        "clipping": lambda: GradientClipping("norm", 1.0),
    }
    for order in itertools.permutations(methods):
        torch.manual_seed(0)
        loop = Loop(
            model=SmallClassifier(),
            algorithms=[methods[name]() for name in order],
            microbatch_size=4,
        )
        for index in range(2):
            loop.train_batch(random_batch(index))
        results.append(torch.cat([p.detach().flatten() for p in loop.model.parameters()]))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("first", [LabelSmoothing, MixUp])
def test_targets_go_back_whichever_method_restores_first(first):
    loop = build(["mixup", "smoothing"], interpolate=False)
    state, logger = loop.state, loop.engine.logger
    mixup, smoothing = loop.algorithms
    state.batch = random_batch(0)
    target = state.batch[1]
    mixup.apply(Event.AFTER_DATALOADER, state, logger)
    mixup.apply(Event.BEFORE_FORWARD, state, logger)
    state.outputs = torch.zeros(8, 5)
    mixup.apply(Event.BEFORE_LOSS, state, logger)
    smoothing.apply(Event.BEFORE_LOSS, state, logger)
    restore = [mixup, smoothing] if first is MixUp else [smoothing, mixup]
    for method in restore:
        method.apply(Event.AFTER_LOSS, state, logger)
    assert state.batch[1] is target


def test_the_class_axis_of_a_language_model_is_handed_from_mixup_to_smoothing():
    generator = torch.Generator().manual_seed(0)
    embedded = torch.randn(4, 6, 3, generator=generator)
    target = torch.randint(5, (4, 6), generator=generator)
    target[0, :2] = -100
    loop = build(["smoothing", "mixup"], interpolate=False)
    state = loop.state
    state.batch = (embedded, target)
    state.outputs = torch.randn(4, 6, 5, generator=generator)
    loop.run(Event.AFTER_DATALOADER, Event.BEFORE_FORWARD, Event.BEFORE_LOSS)
    found = state.batch[1]
    assert found.shape == (4, 6, 5)
    mass = found.sum(-1)
    assert ((mass > -1e-6) & (mass < 1 + 1e-5)).all()
    counted = mass > 0.999
    torch.testing.assert_close(found[counted].amin(-1), torch.full((int(counted.sum()),), 0.1 / 5))
