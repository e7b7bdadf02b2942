"""Label smoothing against torch's cross entropy and the closed form."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from stretto.algorithms import BatchFormatError, LabelSmoothing, smooth_labels
from stretto.algorithms.testing import Loop, LoopState, SmallClassifier, random_batch
from stretto.core_events import Event, Logger

SHAPES = {"plain": (6, 4), "image": (3, 4, 5, 2), "volume": (2, 4, 3, 2, 2), "signal": (3, 4, 7)}


def draw(shape: tuple[int, ...], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits (N, C, …) that want a gradient, and indices (N, …)."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=generator, requires_grad=True)
    return logits, torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@given(smoothing=st.floats(0, 1), seed=st.integers(0, 999))
@settings(max_examples=15, deadline=None)
def test_loss_and_gradient_equal_torchs_own_smoothing(shape, smoothing, seed):
    logits, target = draw(shape, seed)
    ours = F.cross_entropy(logits, smooth_labels(logits, target, smoothing))
    expected = F.cross_entropy(logits, target, label_smoothing=smoothing)
    torch.testing.assert_close(ours, expected)
    (mine,) = torch.autograd.grad(ours, logits)
    (theirs,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(("smoothing", "loss"), [(0.0, 0.407606), (0.1, 0.507606), (0.2, 0.607606)])
def test_the_known_losses_of_three_classes(smoothing, loss):
    logits, target = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])
    found = F.cross_entropy(logits, smooth_labels(logits, target, smoothing))
    assert float(found) == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize(("classes", "on", "off"), [(10, 0.91, 0.01), (1000, 0.9001, 0.0001)])
def test_the_known_targets(classes, on, off):
    row = smooth_labels(torch.zeros(1, classes), torch.tensor([3]), 0.1)[0]
    assert float(row[3]) == pytest.approx(on)
    assert torch.allclose(row[[0, 1, 2, 4]], torch.tensor(off))
    assert float(row.sum()) == pytest.approx(1.0)


def test_the_smallest_loss_of_ten_classes():
    row = smooth_labels(torch.zeros(1, 10), torch.tensor([0]), 0.1)
    assert float(F.cross_entropy(row.log(), row)) == pytest.approx(0.500288, abs=1e-5)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("ignore_index", [-100, -1, 2])
def test_ignored_rows_have_no_loss_and_no_gradient(shape, ignore_index):
    logits, target = draw(shape)
    target[0] = ignore_index
    smoothed = smooth_labels(logits, target, 0.1, ignore_index=ignore_index)
    counted = target != ignore_index
    loss = F.cross_entropy(logits, smoothed, reduction="sum")
    expected = F.cross_entropy(
        logits, target, label_smoothing=0.1, ignore_index=ignore_index, reduction="sum"
    )
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert not gradient.movedim(1, -1)[~counted].any()
    # The sum over the target is the number that a mean should divide by, as torch's does.
    mean = F.cross_entropy(logits, target, label_smoothing=0.1, ignore_index=ignore_index)
    torch.testing.assert_close(loss / smoothed.sum(), mean)


def test_a_batch_of_ignored_rows_only_is_all_zeros():
    logits, target = draw((3, 4))
    assert not smooth_labels(logits, target.fill_(-100), 0.3).any()


def test_language_models_have_their_classes_last():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 5, 7, generator=generator)
    target = torch.randint(7, (2, 5), generator=generator)
    target[0, 1] = -100
    smoothed = smooth_labels(logits, target, 0.1)
    flat = smooth_labels(logits.flatten(0, 1), target.flatten(), 0.1)
    assert torch.equal(smoothed.flatten(0, 1), flat)


def test_where_both_axes_would_do_torchs_convention_holds_unless_told():
    logits, target = torch.zeros(2, 3, 3), torch.tensor([[0, 0, 0], [0, 0, 0]])
    assert torch.equal(smooth_labels(logits, target, 0.0)[0, 0], torch.ones(3))
    last = smooth_labels(logits, target, 0.0, class_dim=-1)
    assert torch.equal(last[0, :, 0], torch.ones(3))


def test_probabilities_are_smoothed_as_torch_does():
    logits, _ = draw((6, 4))
    target = torch.rand(6, 4).softmax(1)
    found = F.cross_entropy(logits, smooth_labels(logits, target, 0.3))
    torch.testing.assert_close(found, F.cross_entropy(logits, target, label_smoothing=0.3))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64, torch.bfloat16])
def test_one_hot_targets_of_any_type_are_probabilities(dtype):
    logits, target = draw((6, 4))
    one_hot = F.one_hot(target, 4).to(dtype)
    torch.testing.assert_close(
        smooth_labels(logits, one_hot, 0.1), smooth_labels(logits, target, 0.1)
    )


@given(smoothing=st.floats(0, 1), share=st.floats(0, 1), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_smoothing_commutes_with_mixing_also_with_ignored_rows(smoothing, share, seed):
    logits, one = draw((6, 4), seed)
    two = one.flip(0)
    one[0] = -100
    rows = [smooth_labels(logits, target, 0.0) for target in (one, two)]
    mixed = smooth_labels(logits, torch.lerp(*rows, share), smoothing)
    smoothed = [smooth_labels(logits, target, smoothing) for target in (one, two)]
    torch.testing.assert_close(mixed, torch.lerp(*smoothed, share), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_probabilities_have_thirty_two_bits_whatever_the_logits_have(dtype):
    logits = torch.zeros(2, 1000, dtype=dtype)
    smoothed = smooth_labels(logits, torch.tensor([0, 1]), 0.1)
    assert smoothed.dtype is torch.float32
    assert float(smoothed[0].sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int16])
def test_indices_of_other_types_work(dtype):
    logits, target = draw((6, 4))
    assert torch.equal(
        smooth_labels(logits, target.to(dtype), 0.1), smooth_labels(logits, target, 0.1)
    )


def test_the_target_and_the_memory_format_stay():
    logits, target = draw((3, 4, 5, 2))
    before = target.clone()
    smoothed = smooth_labels(logits.to(memory_format=torch.channels_last), target)
    assert torch.equal(target, before)
    assert smoothed.is_contiguous(memory_format=torch.channels_last)
    assert not smoothed.requires_grad


@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64), "do not belong together"),
        (torch.zeros(3, 4), torch.zeros(3, 5), "give class indices"),
        (torch.zeros(3), torch.zeros(3), "no class axis"),
        (torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64), "one class"),
    ],
)
def test_what_does_not_belong_together_is_refused(logits, target, message):
    with pytest.raises(ValueError, match=message):
        smooth_labels(logits, target)


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, float("nan")])
def test_an_impossible_smoothing_is_refused(smoothing):
    with pytest.raises(ValueError, match="from 0"):
        LabelSmoothing(smoothing)
    with pytest.raises(ValueError, match="from 0"):
        smooth_labels(torch.zeros(1, 2), torch.tensor([0]), smoothing)


def test_in_a_run_the_loss_is_torchs_and_the_target_the_users():
    loop = Loop(model=SmallClassifier(), algorithms=[LabelSmoothing(0.2)], microbatch_size=4)
    images, target = random_batch(0)
    logits = loop.model(images)
    loss = loop.gradients((images, target))
    expected = F.cross_entropy(logits, target, label_smoothing=0.2)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert torch.equal(torch.cat(loop.targets), target)


BATCHES = {
    "names": ({"x": 1, "labels": None}, "labels"),
    "list": ([1, None], 1),
    "last": ((1, 2, None), -1),
    "pair": (
        SimpleNamespace(y=None),
        (lambda b: b.y, lambda b, value: SimpleNamespace(y=value)),
    ),
}


@pytest.mark.parametrize(("batch", "key"), BATCHES.values(), ids=list(BATCHES))
def test_every_kind_of_key_and_output(batch, key):
    logits, target = draw((6, 4))
    state = LoopState(SmallClassifier())
    state.batch = batch
    state.batch_set_item(key, target) if batch is not None else None
    method, logger = LabelSmoothing(0.1, key), Logger(state)
    for outputs in (logits, {"logits": logits}, SimpleNamespace(logits=logits)):
        state.outputs = outputs
        method.apply(Event.BEFORE_LOSS, state, logger)
        assert torch.equal(state.batch_get_item(key), smooth_labels(logits, target, 0.1))
        method.apply(Event.AFTER_LOSS, state, logger)
        assert state.batch_get_item(key) is target


def test_a_getter_that_makes_a_new_tensor_each_time_is_restored_too():
    logits, target = draw((6, 4))
    state = LoopState(SmallClassifier())
    state.batch = {"y": target.float()}
    key = (lambda b: b["y"] * 1, lambda b, value: {"y": value})
    state.outputs = logits
    method, logger = LabelSmoothing(0.1, (lambda b: key[0](b).long(), key[1])), Logger(state)
    method.apply(Event.BEFORE_LOSS, state, logger)
    assert state.batch["y"].shape == logits.shape
    method.apply(Event.AFTER_LOSS, state, logger)
    assert torch.equal(state.batch["y"], target)


def test_outputs_without_logits_are_refused():
    state = LoopState(SmallClassifier())
    state.batch, state.outputs = (None, torch.tensor([0])), {"scores": torch.zeros(1, 2)}
    with pytest.raises(BatchFormatError, match="no logits"):
        LabelSmoothing().apply(Event.BEFORE_LOSS, state, Logger(state))
