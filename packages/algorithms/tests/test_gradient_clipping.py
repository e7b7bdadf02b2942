"""Gradient clipping against torch's own functions and the papers' numbers."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stretto.algorithms import GradientClipping, apply_gradient_clipping
from stretto.algorithms.testing import Loop, SmallClassifier, random_batch
from stretto.core_events import Event, LoggerDestination

TYPES = ["norm", "value", "adaptive"]


def with_gradients(seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float32):
    """Return a model whose gradients are random, and one of whose parameters has none."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(4, 5)).to(dtype)
    model.register_parameter("unused", nn.Parameter(torch.ones(3, dtype=dtype)))
    for name, parameter in model.named_parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
        if name != "unused":
            values = torch.randn(parameter.shape, generator=generator) * scale
            parameter.grad = values.to(dtype)
    return model


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def twin(model: nn.Module) -> nn.Module:
    other = copy.deepcopy(model)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        two.grad = None if one.grad is None else one.grad.clone()
    return other


@given(
    seed=st.integers(0, 999),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    threshold=st.sampled_from([0.1, 1.0, 50.0]),
)
@settings(max_examples=30, deadline=None)
def test_norm_equals_torchs(seed, scale, threshold):
    ours = with_gradients(seed, scale)
    theirs = twin(ours)
    found = apply_gradient_clipping(ours, "norm", threshold)
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), threshold)
    torch.testing.assert_close(found, expected)
    for one, two in zip(gradients(ours), gradients(theirs), strict=True):
        torch.testing.assert_close(one, two)
    assert ours.unused.grad is None


@given(seed=st.integers(0, 999), threshold=st.sampled_from([0.01, 0.5, 10.0]))
@settings(max_examples=20, deadline=None)
def test_value_equals_torchs(seed, threshold):
    ours = with_gradients(seed)
    theirs = twin(ours)
    assert apply_gradient_clipping(ours, "value", threshold) is None
    nn.utils.clip_grad_value_(theirs.parameters(), threshold)
    assert all(
        torch.equal(one, two) for one, two in zip(gradients(ours), gradients(theirs), strict=True)
    )


def linear(weight: list[list[float]], gradient: list[list[float]]) -> nn.Linear:
    layer = nn.Linear(2, len(weight), bias=False)
    layer.weight = nn.Parameter(torch.tensor(weight))
    layer.weight.grad = torch.tensor(gradient)
    return layer


def test_adaptive_gives_the_papers_numbers():
    layer = linear([[3.0, 4.0], [6.0, 8.0]], [[0.3, 0.4], [0.03, 0.04]])
    total = apply_gradient_clipping(layer, "adaptive", 0.01)
    expected = torch.tensor([[0.03, 0.04], [0.03, 0.04]])
    torch.testing.assert_close(layer.weight.grad, expected)
    assert float(total) == pytest.approx(math.sqrt(0.5**2 + 0.05**2))


def test_adaptive_lets_weights_that_are_zero_move():
    layer = linear([[0.0, 0.0]], [[3.0, 4.0]])
    apply_gradient_clipping(layer, "adaptive", 0.01)
    torch.testing.assert_close(layer.weight.grad, torch.tensor([[6e-6, 8e-6]]))


def slow_adaptive(parameter: nn.Parameter, threshold: float) -> torch.Tensor:
    """One unit after the other, in double precision."""
    weight, gradient = parameter.detach().double(), parameter.grad.double().clone()
    units = [(weight, gradient)] if weight.dim() <= 1 else zip(weight, gradient, strict=True)
    for w, g in units:
        largest = threshold * max(float(w.norm()), 1e-3)
        if float(g.norm()) > largest:
            g *= largest / float(g.norm())
    return gradient


@given(seed=st.integers(0, 999), threshold=st.sampled_from([1e-3, 0.05, 2.0]))
@settings(max_examples=20, deadline=None)
def test_adaptive_equals_the_slow_model(seed, threshold):
    model = with_gradients(seed)
    expected = [slow_adaptive(p, threshold) for p in model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    found = apply_gradient_clipping(model, "adaptive", threshold)
    torch.testing.assert_close(found, norm)
    for one, two in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", TYPES)
def test_small_gradients_stay_as_they_are(kind):
    model = with_gradients(scale=1e-6)
    before = gradients(model)
    apply_gradient_clipping(model, kind, 1e2)
    assert all(torch.equal(a, b) for a, b in zip(before, gradients(model), strict=True))


@pytest.mark.parametrize("kind", TYPES)
def test_a_model_without_gradients_is_fine(kind):
    result = apply_gradient_clipping(nn.Linear(2, 2), kind, 1.0)
    assert result is None or float(result) == 0.0


def test_zero_gradients_stay_zero():
    for kind in TYPES:
        layer = linear([[1.0, 2.0]], [[0.0, 0.0]])
        apply_gradient_clipping(layer, kind, 0.1)
        assert layer.weight.grad.tolist() == [[0.0, 0.0]]


def test_the_norm_of_sixteen_bits_does_not_overflow():
    layer = nn.Linear(100, 100, bias=False).half()
    layer.weight.grad = torch.full((100, 100), 6e3, dtype=torch.float16)
    total = apply_gradient_clipping(layer, "norm", 1.0)
    assert float(total) == pytest.approx(6e5, rel=1e-3)
    assert float(layer.weight.grad.float().norm()) == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_keep_theirs(kind, dtype):
    model = with_gradients(dtype=dtype)
    reference = with_gradients()
    apply_gradient_clipping(model, kind, 0.1)
    apply_gradient_clipping(reference, kind, 0.1)
    for one, two in zip(gradients(model), gradients(reference), strict=True):
        assert one.dtype is dtype
        torch.testing.assert_close(one.float(), two, rtol=0.02, atol=1e-3)


BAD = [float("inf"), float("-inf"), float("nan")]


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_element_makes_all_gradients_zero_under_norm(bad):
    model = with_gradients()
    model[2].weight.grad[1, 2] = bad
    total = apply_gradient_clipping(model, "norm", 1.0)
    assert not total.isfinite()
    assert all(not g.any() for g in gradients(model))


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_unit_becomes_zero_under_adaptive_and_the_others_are_clipped(bad):
    model = with_gradients()
    model[2].weight.grad[1, 2] = bad
    model[2].bias.grad[0] = bad
    expected = [slow_adaptive(p, 0.01) for p in model[2].parameters()]
    apply_gradient_clipping(model, "adaptive", 0.01)
    weight, bias = (p.grad for p in model[2].parameters())
    assert not weight[1].any()
    assert not bias.any()
    others = [0, 2, 3, 4]
    torch.testing.assert_close(weight[others].double(), expected[0][others], rtol=1e-4, atol=1e-7)


def test_bad_elements_under_value():
    layer = linear([[1.0, 1.0], [1.0, 1.0]], [[float("inf"), float("-inf")], [float("nan"), 0.05]])
    apply_gradient_clipping(layer, "value", 0.1)
    torch.testing.assert_close(layer.weight.grad, torch.tensor([[0.1, -0.1], [0.0, 0.05]]))


@pytest.mark.parametrize("kind", ["norm", "adaptive"])
def test_keep_leaves_bad_gradients_to_whoever_looks_for_them(kind):
    model = with_gradients()
    model[2].weight.grad[1, 2] = float("inf")
    before = model[2].weight.grad[1].clone()
    apply_gradient_clipping(model, kind, 0.01, non_finite="keep")
    assert torch.equal(model[2].weight.grad[1], before)


@pytest.mark.parametrize("kind", TYPES)
def test_raise_raises(kind):
    model = with_gradients()
    apply_gradient_clipping(model, kind, 0.01, non_finite="raise")
    model[2].weight.grad[1, 2] = float("nan")
    with pytest.raises(RuntimeError, match=r"not finite\. Look for"):
        apply_gradient_clipping(model, kind, 0.01, non_finite="raise")


@pytest.mark.parametrize("kind", TYPES)
def test_excluded_parameters_are_neither_clipped_nor_counted(kind):
    model = with_gradients(scale=100.0)
    head = model[2].weight.grad.clone()
    rest = nn.utils.get_total_norm([p.grad for p in model[:2].parameters()])
    total = apply_gradient_clipping(model, kind, 0.01, exclude=("2",))
    assert torch.equal(model[2].weight.grad, head)
    assert model[0].weight.grad.abs().max() < 1
    if total is not None:
        torch.testing.assert_close(total, rest)


def test_bad_arguments_are_refused():
    model = with_gradients()
    for arguments, message in [
        (("length", 1.0), "clipping_type='length'"),
        (("norm", 0.0), "clipping_threshold=0.0"),
        (("norm", float("nan")), "clipping_threshold=nan"),
        (("norm", -1.0), "clipping_threshold=-1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            apply_gradient_clipping(model, *arguments)
        with pytest.raises(ValueError, match=message):
            GradientClipping(*arguments)
    with pytest.raises(ValueError, match="non_finite='ignore'"):
        GradientClipping("norm", 1.0, non_finite="ignore")
    with pytest.raises(ValueError, match=r"exclude names 'fc', .* The model has unused, 0\.weight"):
        apply_gradient_clipping(model, "norm", 1.0, exclude="fc")


def test_a_wrong_name_is_found_at_init():
    with pytest.raises(ValueError, match="exclude names 'fc'"):
        Loop(model=SmallClassifier(), algorithms=[GradientClipping("norm", 1.0, exclude="fc")])


def test_flat_parameters_of_the_first_fsdp_are_refused():
    layer = linear([[1.0, 1.0]], [[1.0, 1.0]])
    layer.weight._is_flat_param = True
    with pytest.raises(ValueError, match="first version of FSDP"):
        apply_gradient_clipping(layer, "norm", 1.0, fsdp_enabled=True)


def test_composers_call_works():
    ours, theirs = with_gradients(), with_gradients()
    apply_gradient_clipping(
        model=ours, clipping_type="norm", clipping_threshold=0.1, fsdp_enabled=True
    )
    nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
    for one, two in zip(gradients(ours), gradients(theirs), strict=True):
        torch.testing.assert_close(one, two)


class Records(LoggerDestination):
    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def log_metrics(self, metrics, step=None):
        self.metrics.append(dict(metrics))


@pytest.mark.parametrize("microbatch_size", [8, 2])
def test_in_a_run_the_gradients_of_all_microbatches_are_clipped_once(microbatch_size):
    records = Records()
    loop = Loop(
        model=SmallClassifier(),
        algorithms=[GradientClipping("norm", 0.01)],
        microbatch_size=microbatch_size,
        destinations=[records],
    )
    plain = copy.deepcopy(loop.model)
    batch = random_batch(0)
    loop.gradients(batch)
    loop.engine.logger.flush()
    plain.loss(plain(batch), batch).backward()
    expected = nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
    (metrics,) = records.metrics
    assert metrics["gradient_clipping/total_norm"] == pytest.approx(float(expected), rel=1e-4)
    for one, two in zip(gradients(loop.model), gradients(plain), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-7)


def test_zero_initialised_parameters_learn_under_adaptive_clipping():
    model = SmallClassifier()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    loop = Loop(model=model, algorithms=[GradientClipping("adaptive", 0.01)])
    for index in range(4):
        loop.train_batch(random_batch(index))
    assert model.head.weight.abs().min() > 0
    assert model.head.bias.abs().min() > 0


def test_it_acts_after_the_whole_batch():
    events = [e for e in Event if GradientClipping("norm", 1.0).match(e, None)]
    assert events == [Event.INIT, Event.AFTER_TRAIN_BATCH]
