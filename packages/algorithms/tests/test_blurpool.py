"""BlurPool against closed forms, a slow model in plain Python, and torch's own layers."""

from __future__ import annotations

import copy
import itertools
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from stretto.algorithms import (
    BlurConv2d,
    BlurMaxPool2d,
    BlurPool,
    BlurPool2d,
    NoEffectWarning,
    apply_blurpool,
    blur_2d,
    blurmax_pool2d,
)
from stretto.algorithms.blurpool import binomial_filter
from stretto.algorithms.testing import Loop, LoopState, SmallClassifier, random_batch
from stretto.core_events import Event, Logger, LoggerDestination

TAPS = {
    1: [1],
    2: [1, 1],
    3: [1, 2, 1],
    4: [1, 3, 3, 1],
    5: [1, 4, 6, 4, 1],
    6: [1, 5, 10, 10, 5, 1],
    7: [1, 6, 15, 20, 15, 6, 1],
}


def slow_blur(image: torch.Tensor, taps: list[int], stride: int, mode: str) -> torch.Tensor:
    """Blur one (H, W) image pixel by pixel, looking up what lies outside by hand."""
    height, width = image.shape
    before = (len(taps) - 1) // 2

    def lookup(index: int, size: int) -> int | None:
        if 0 <= index < size:
            return index
        if mode == "zeros":
            return None
        if mode == "replicate" or size <= max(before, len(taps) // 2):
            return min(max(index, 0), size - 1)
        return -index if index < 0 else 2 * (size - 1) - index

    rows = []
    for y in range(0, height, stride):
        row = []
        for x in range(0, width, stride):
            total = 0.0
            for (i, a), (j, b) in itertools.product(enumerate(taps), enumerate(taps)):
                v, u = lookup(y + i - before, height), lookup(x + j - before, width)
                if v is not None and u is not None:
                    total += a * b * float(image[v, u])
            row.append(total / sum(taps) ** 2)
        rows.append(row)
    return torch.tensor(rows)


@pytest.mark.parametrize("size", TAPS)
def test_filters_are_the_binomial_coefficients(size):
    taps = torch.tensor(TAPS[size], dtype=torch.float64)
    expected = torch.outer(taps, taps) / taps.sum() ** 2
    found = binomial_filter(size, dtype=torch.float64)
    assert found.shape == (1, 1, size, size)
    assert torch.equal(found[0, 0], expected)
    assert found.sum() == 1
    assert torch.equal(binomial_filter(size, dtype=torch.bfloat16).double(), found)  # exact


def test_the_usual_filter_has_the_known_values():
    assert binomial_filter()[0, 0].tolist() == [
        [1 / 16, 1 / 8, 1 / 16],
        [1 / 8, 1 / 4, 1 / 8],
        [1 / 16, 1 / 8, 1 / 16],
    ]


@pytest.mark.parametrize("size", [0, 8, -1])
def test_a_filter_of_an_impossible_size_is_refused(size):
    with pytest.raises(ValueError, match="1 to 7"):
        binomial_filter(size)


@given(
    size=st.sampled_from([2, 3, 4, 5, 7]),
    stride=st.integers(1, 3),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    mode=st.sampled_from(["reflect", "replicate", "zeros"]),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_blur_equals_the_slow_model(size, stride, height, width, mode, seed):
    image = torch.randn(height, width, generator=torch.Generator().manual_seed(seed))
    expected = slow_blur(image, TAPS[size], stride, mode)
    found = blur_2d(
        image[None, None], stride=stride, filter=binomial_filter(size), padding_mode=mode
    )
    torch.testing.assert_close(found[0, 0], expected, rtol=1e-5, atol=1e-6)


def test_with_zeros_it_is_a_plain_depthwise_convolution():
    x = torch.randn(2, 6, 9, 7)
    weight = binomial_filter().repeat(6, 1, 1, 1)
    expected = F.conv2d(x, weight, stride=2, padding=1, groups=6)
    torch.testing.assert_close(blur_2d(x, stride=2, padding_mode="zeros"), expected)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 7])
def test_a_constant_image_stays_constant(mode, size):
    ones = torch.ones(1, 3, 8, 8)
    found = blur_2d(ones, stride=2, filter=binomial_filter(size), padding_mode=mode)
    torch.testing.assert_close(found, torch.ones(1, 3, 4, 4))


def test_zeros_darken_the_corners_as_composer_does():
    corner = blur_2d(torch.ones(1, 1, 4, 4), padding_mode="zeros")[0, 0, 0, 0]
    assert corner == 0.5625


def test_padding_is_the_same_where_deterministic_algorithms_are_asked_for():
    x = torch.randn(2, 3, 7, 6, requires_grad=True, dtype=torch.float64)
    weight = torch.randn(2, 3, 7, 6, dtype=torch.float64)
    results = []
    for mode, size in itertools.product(["reflect", "replicate"], [3, 4, 5]):
        for deterministic in (False, True):
            torch.use_deterministic_algorithms(deterministic)
            try:
                y = blur_2d(x, filter=binomial_filter(size), padding_mode=mode)
                (gradient,) = torch.autograd.grad((y * weight).sum(), x)
            finally:
                torch.use_deterministic_algorithms(False)
            results.append((y, gradient))
        for fast, slow in zip(*results[-2:], strict=True):
            torch.testing.assert_close(fast, slow)


def test_the_blurs_arguments_are_checked():
    x = torch.randn(1, 4, 5, 5)
    with pytest.raises(ValueError, match="channels=3"):
        blur_2d(x, channels=3)
    with pytest.raises(ValueError, match="filter has the shape"):
        blur_2d(x, filter=torch.ones(3, 1, 3, 3))
    with pytest.raises(ValueError, match="padding_mode='circular'"):
        BlurPool2d(padding_mode="circular")


@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    ceil=st.booleans(),
    height=st.integers(7, 13),
    width=st.integers(7, 13),
)
@settings(max_examples=120, deadline=None)
def test_pooled_shapes_are_those_of_the_plain_pooling(
    kernel, stride, padding, dilation, ceil, height, width
):
    padding = min(padding, kernel // 2)
    x = torch.randn(1, 2, height, width)
    plain = F.max_pool2d(x, kernel, stride, padding, dilation, ceil)
    blurred = blurmax_pool2d(x, kernel, stride, padding, dilation, ceil)
    assert blurred.shape == plain.shape
    assert blurred.isfinite().all()


@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.booleans(),
    dilation=st.integers(1, 2),
    seed=st.integers(0, 999),
    channels_last=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_fast_maximum_without_gradients_equals_torchs(
    kernel, padding, dilation, seed, channels_last
):
    x = torch.randn(2, 3, 11, 10, generator=torch.Generator().manual_seed(seed))
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    pads = tuple(k // 2 for k in kernel) if padding else (0, 0)
    dense = F.max_pool2d(x, kernel, 1, pads, dilation)
    one = binomial_filter(1)
    assert torch.equal(blurmax_pool2d(x, kernel, 1, pads, dilation, filter=one), dense)
    with_gradient = x.clone().requires_grad_()
    assert torch.equal(blurmax_pool2d(with_gradient, kernel, 1, pads, dilation, filter=one), dense)


def test_max_pooling_propagates_nan_on_both_paths():
    x = torch.randn(1, 1, 6, 6)
    x[0, 0, 2, 3] = float("nan")
    plain = blurmax_pool2d(x.clone().requires_grad_(), 2, 2)
    assert torch.equal(plain.isnan(), blurmax_pool2d(x, 2, 2).isnan())


def test_pooling_is_maximum_then_blur():
    x = torch.randn(2, 3, 8, 8)
    expected = blur_2d(F.max_pool2d(x, 3, 1, 1), stride=2)
    torch.testing.assert_close(BlurMaxPool2d(3, 2, 1)(x), expected)
    torch.testing.assert_close(blurmax_pool2d(x, 3, 2, 1), expected)


CONVOLUTIONS = [(2, 2, 0), (3, 2, 1), (3, 2, 0), (3, 3, 1), (1, 2, 0), (7, 2, 3), (5, 4, 2)]


@pytest.mark.parametrize("blur_first", [True, False])
@pytest.mark.parametrize(("kernel", "stride", "padding"), CONVOLUTIONS)
@pytest.mark.parametrize("size", [12, 13])
def test_convolutions_keep_their_shape_and_compose(kernel, stride, padding, size, blur_first):
    conv = nn.Conv2d(4, 6, kernel, stride, padding)
    layer = BlurConv2d.from_conv2d(conv, blur_first=blur_first)
    x = torch.randn(2, 4, size, size)
    if blur_first:
        expected = conv(blur_2d(x))
    else:
        dense = F.conv2d(x, conv.weight, conv.bias, 1, padding)
        expected = blur_2d(dense, stride=stride)
    torch.testing.assert_close(layer(x), expected)
    assert layer(x).shape == conv(x).shape
    assert layer(x[0]).shape == conv(x[0]).shape  # a single image


def test_all_settings_of_the_convolution_are_kept():
    conv = nn.Conv2d(
        4, 8, (3, 5), (2, 3), (1, 2), (2, 1), groups=4, bias=False, padding_mode="reflect"
    )
    layer = BlurConv2d.from_conv2d(conv)
    x = torch.randn(2, 4, 12, 15)
    torch.testing.assert_close(layer(x), conv(blur_2d(x)))
    assert isinstance(layer, nn.Conv2d)
    assert layer.padding_mode == "reflect"
    assert layer.bias is None


def test_an_axis_that_is_not_subsampled_is_not_blurred():
    conv = nn.Conv2d(4, 4, 3, stride=(2, 1), padding=1)
    vertical = binomial_filter((3, 1))
    x = torch.randn(1, 4, 8, 8)
    torch.testing.assert_close(
        BlurConv2d.from_conv2d(conv)(x), conv(blur_2d(x, filter=vertical, padding=(1, 0)))
    )


def test_a_layer_made_with_stride_one_blurs_as_its_name_says():
    x = torch.randn(1, 2, 6, 6)
    torch.testing.assert_close(BlurMaxPool2d(2, 1)(x), blur_2d(F.max_pool2d(x, 2, 1)))


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),  # too few channels
        nn.MaxPool2d(3, 1, 1),  # stride 1
        nn.Conv2d(16, 16, 3, padding=1),  # stride 1
        nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.MaxPool2d(2),
        nn.ModuleList([nn.MaxPool2d(2, return_indices=True)]),
    )


def kinds(model: nn.Sequential) -> list[str]:
    return [type(module).__name__ for module in model]


def test_only_strided_layers_without_indices_are_replaced():
    model = network()
    pool = model[5][0]
    report = apply_blurpool(model)
    assert kinds(model)[:5] == ["Conv2d", "MaxPool2d", "Conv2d", "BlurConv2d", "BlurMaxPool2d"]
    assert model[5][0] is pool
    assert [r.path for r in report.replaced] == ["3", "4"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"replace_convs": False}, ["4"]),
        ({"replace_maxpools": False}, ["3"]),
        ({"min_channels": 3}, ["0", "3", "4"]),
        ({"min_channels": 17}, ["4"]),
    ],
)
def test_arguments_choose_what_is_replaced(arguments, expected):
    report = apply_blurpool(network(), **arguments)
    assert [r.path for r in report.replaced] == expected


def test_subclasses_with_a_forward_of_their_own_stay():
    class Standardized(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    class Named(nn.Conv2d):
        pass

    model = nn.Sequential(Standardized(16, 16, 3, 2), Named(16, 16, 3, 2))
    apply_blurpool(model)
    assert kinds(model) == ["Standardized", "BlurConv2d"]


def test_nothing_to_do_warns_once_and_doing_it_twice_does_not():
    with pytest.warns(NoEffectWarning):
        apply_blurpool(nn.Sequential(nn.Conv2d(16, 16, 3)))
    with pytest.warns(NoEffectWarning, match="will change nothing"):
        BlurPool(replace_convs=False, replace_maxpools=False)
    model = network()
    apply_blurpool(model)
    once = [type(module) for module in model.modules()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply_blurpool(model)
    assert [type(module) for module in model.modules()] == once


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types_devices_modes_and_frozen_weights_stay(dtype):
    model = network().to(dtype).eval()
    model[3].weight.requires_grad_(False)
    apply_blurpool(model)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model[3].blur.blur_filter.dtype is dtype
    assert model[4].blur.blur_filter.dtype is dtype
    assert not any(module.training for module in model.modules())
    assert not model[3].weight.requires_grad
    assert model[3].bias.requires_grad
    assert model[3](torch.randn(1, 16, 6, 6, dtype=dtype)).dtype is dtype


def test_no_random_number_is_drawn():
    model = network()
    before = torch.get_rng_state()
    apply_blurpool(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_state_dicts_are_those_of_the_plain_model():
    plain = network()
    weights = copy.deepcopy(plain.state_dict())
    blurred = network()
    apply_blurpool(blurred)
    assert list(blurred.state_dict()) == list(weights)
    assert str(blurred.load_state_dict(weights)) == "<All keys matched successfully>"
    assert str(plain.load_state_dict(blurred.state_dict())) == "<All keys matched successfully>"


def test_composers_state_dicts_load():
    model = nn.Sequential(nn.Conv2d(16, 8, 3, 2), nn.MaxPool2d(2))
    apply_blurpool(model)
    theirs = {
        "0.conv.weight": torch.randn(8, 16, 3, 3),
        "0.conv.bias": torch.randn(8),
        "0.blur_filter": torch.zeros(16, 1, 3, 3),
        "1.blur_filter": torch.zeros(1, 1, 3, 3),
    }
    assert str(model.load_state_dict(theirs)) == "<All keys matched successfully>"
    assert torch.equal(model[0].weight, theirs["0.conv.weight"])
    assert torch.equal(model[0].blur.blur_filter, binomial_filter())
    with pytest.raises(RuntimeError, match=r"0\.surprise"):
        model.load_state_dict({**theirs, "0.surprise": torch.zeros(1)})


@pytest.mark.parametrize("make", [BlurPool2d, lambda **k: BlurMaxPool2d(2, **k)])
def test_the_filter_survives_to_empty(make):
    layer = make(device="meta")
    layer.to_empty(device="cpu")
    blur = layer if isinstance(layer, BlurPool2d) else layer.blur
    assert torch.equal(blur.blur_filter, binomial_filter())


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_training_resumes_with_a_stateful_optimizer(optimizer):
    """K19: the optimizer made before surgery goes on, saves, and loads."""
    torch.manual_seed(0)
    model = SmallClassifier()
    steps = optimizer(model.parameters(), lr=0.01, weight_decay=0.1)
    images, target = random_batch(0)
    for _ in range(2):
        steps.zero_grad()
        F.cross_entropy(model(images), target).backward()
        steps.step()
    states = {id(p): s for p, s in steps.state.items()}
    apply_blurpool(model, optimizers=steps)
    assert {id(p): s for p, s in steps.state.items()} == states
    twin = SmallClassifier()
    apply_blurpool(twin)
    twin.load_state_dict(model.state_dict())
    resumed = optimizer(twin.parameters(), lr=0.01, weight_decay=0.1)
    resumed.load_state_dict(copy.deepcopy(steps.state_dict()))
    for some_model, some_steps in ((model, steps), (twin, resumed)):
        some_steps.zero_grad()
        F.cross_entropy(some_model(images), target).backward()
        some_steps.step()
    for one, two in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, two)


class Records(LoggerDestination):
    def __init__(self) -> None:
        self.hyperparameters: dict[str, object] = {}

    def log_hyperparameters(self, hyperparameters):
        self.hyperparameters.update(hyperparameters)


def test_function_and_algorithm_give_the_same_model():
    """G10."""
    torch.manual_seed(0)
    one, two = SmallClassifier(), SmallClassifier()
    two.load_state_dict(one.state_dict())
    apply_blurpool(one, min_channels=3, blur_first=False, filter_size=5, padding_mode="replicate")
    records = Records()
    algorithm = BlurPool(min_channels=3, blur_first=False, filter_size=5, padding_mode="replicate")
    Loop(model=two, algorithms=[algorithm], destinations=[records])
    images = random_batch(0)[0]
    assert torch.equal(one(images), two(images))
    assert str(one) == str(two)
    assert len(algorithm.report.replaced) == 2
    assert records.hyperparameters == {
        "blurpool/num_blurconv_layers": 1,
        "blurpool/num_blurpool_layers": 1,
    }


def test_it_acts_at_init_only_and_must_be_there_when_weights_load():
    algorithm = BlurPool()
    assert [event for event in Event if algorithm.match(event, None)] == [Event.INIT]
    assert BlurPool.required_on_load()


def test_bad_arguments_are_refused_at_construction():
    with pytest.raises(ValueError, match="padding_mode='mirror'"):
        BlurPool(padding_mode="mirror")
    with pytest.raises(ValueError, match="9 taps"):
        BlurPool(filter_size=9)


def test_a_state_without_optimizers_is_fine():
    model = SmallClassifier()
    state = LoopState(model)
    BlurPool().apply(Event.INIT, state, Logger(state))
    assert isinstance(model.layers[2], BlurConv2d)


def test_shifted_inputs_give_more_similar_outputs():
    """What the paper is about: the plain pooling of a shifted image differs more."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 1, 33, 33, generator=generator)
    one, two = x[..., :32, :32], x[..., 1:, 1:]

    def change(pool: nn.Module) -> float:
        return float((pool(one) - pool(two)).square().mean() / pool(one).var())

    assert change(BlurMaxPool2d(2)) < 0.6 * change(nn.MaxPool2d(2))


@pytest.mark.slow
def test_layers_export():
    model = nn.Sequential(nn.Conv2d(16, 8, 3, 2), nn.MaxPool2d(2)).eval()
    apply_blurpool(model)
    x = torch.randn(1, 16, 16, 16)
    exported = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), model(x))
