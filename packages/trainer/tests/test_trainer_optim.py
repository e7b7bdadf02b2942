"""Schedules against their closed forms, and the default optimizer against the textbook."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stretto.core_events import Callback, State
from stretto.trainer import ComposerClassifier, DataSpec, Trainer
from stretto.trainer.optim import (
    ComposerScheduler,
    ConstantScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWithWarmupScheduler,
    DecoupledSGDW,
    LinearScheduler,
    LinearWithWarmupScheduler,
    compile_composer_scheduler,
)

RATE = 0.4


class Rates(Callback):
    """Notes the rate that each batch is trained with."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def batch_start(self, state, logger):
        self.values.append(state.optimizers[0].param_groups[0]["lr"])


def make_data(samples: int = 20) -> TensorDataset:
    return TensorDataset(torch.randn(samples, 4), torch.randint(0, 3, (samples,)))


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(4), 1


def make_trainer(scheduler, *, loader=None, rates=None, **arguments) -> Trainer:
    model = ComposerClassifier(nn.Linear(4, 3))
    defaults = {
        "train_dataloader": DataLoader(make_data(), batch_size=4) if loader is None else loader,
        "optimizers": torch.optim.SGD(model.parameters(), lr=RATE),
        "max_duration": "2ep",
        "callbacks": rates,
        "progress_bar": False,
    }
    return Trainer(model=model, schedulers=scheduler, **{**defaults, **arguments})


def rates_of(scheduler, **arguments) -> list[float]:
    rates = Rates()
    with make_trainer(scheduler, rates=rates, **arguments) as trainer:
        trainer.fit()
        rates.values.append(trainer.state.optimizers[0].param_groups[0]["lr"])
    return [rate / RATE for rate in rates.values]


def linear(k, warmup, end, start=1.0, final=0.0):
    if k < warmup:
        return start * k / warmup
    done = min(1.0, (k - warmup) / (end - warmup)) if end > warmup else float(k > warmup)
    return start + (final - start) * done


def cosine(k, warmup, end, final=0.0):
    if k < warmup:
        return k / warmup
    done = min(1.0, (k - warmup) / (end - warmup)) if end > warmup else float(k > warmup)
    return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2


BATCHES = range(11)


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        (ConstantScheduler(), [1.0 for _ in BATCHES]),
        (ConstantScheduler(0.25), [0.25 for _ in BATCHES]),
        (LinearScheduler(), [linear(k, 0, 10) for k in BATCHES]),
        (LinearScheduler(0.5, 0.1, "8ba"), [linear(k, 0, 8, 0.5, 0.1) for k in BATCHES]),
        (LinearWithWarmupScheduler("4ba"), [linear(k, 4, 10) for k in BATCHES]),
        (
            LinearWithWarmupScheduler("0.2dur", 2.0, 0.5, "1ep"),
            [linear(k, 2, 5, 2.0, 0.5) for k in BATCHES],
        ),
        (CosineAnnealingScheduler(alpha_f=0.1), [cosine(k, 0, 10, 0.1) for k in BATCHES]),
        (CosineAnnealingWithWarmupScheduler("1ep"), [cosine(k, 5, 10) for k in BATCHES]),
        (
            CosineAnnealingWithWarmupScheduler("3ba", "0.9dur", 0.2),
            [cosine(k, 3, 9, 0.2) for k in BATCHES],
        ),
        ([LinearScheduler(), ConstantScheduler(0.5)], [0.5 * linear(k, 0, 10) for k in BATCHES]),
        (lambda state, ssr: 1 / (1 + state.timestamp.batch_count), [1 / (1 + k) for k in BATCHES]),
    ],
)
def test_rates_follow_the_closed_form_batch_by_batch(scheduler, expected):
    """T6: one value a batch, not one an epoch."""
    assert rates_of(scheduler) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [LinearWithWarmupScheduler, CosineAnnealingWithWarmupScheduler])
def test_a_warm_up_as_long_as_the_run_ends_at_the_full_rate(kind):
    """T1: it divided by zero on the last step."""
    assert rates_of(kind("4ba"), max_duration="4ba") == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])


def test_fractions_of_the_run_need_no_dataloader_length():
    """T2: '1dur' with a duration in batches demanded one."""
    loader = DataLoader(Endless(), batch_size=4)
    rates = rates_of(LinearWithWarmupScheduler("0.2dur"), loader=loader, max_duration="10ba")
    assert rates == pytest.approx([linear(k, 2, 10) for k in BATCHES])


@pytest.mark.parametrize(("duration", "unit"), [("40sp", 4), ("200tok", 20)])
def test_schedules_follow_samples_and_tokens(duration, unit):
    loader = DataSpec(
        DataLoader(make_data(), batch_size=4), get_num_tokens_in_batch=lambda b: 5 * len(b[0])
    )
    end = int(duration[:2]) if duration.endswith("sp") else 200
    rates = rates_of(LinearWithWarmupScheduler("0.2dur"), loader=loader, max_duration=duration)
    assert rates == pytest.approx([linear(k * unit, 0.2 * end, end) for k in BATCHES])


def test_times_that_cannot_be_compared_are_an_error_at_construction():
    """T4: incompatible units failed only when reached."""
    with pytest.raises(ValueError, match=r"t_warmup=1ep and t_max=1.0dur"):
        make_trainer(LinearWithWarmupScheduler("1ep"), max_duration="100tok")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearWithWarmupScheduler("10sec"), "seconds"),
        (lambda: ConstantScheduler(t_max="10sec"), "seconds"),
        (lambda: LinearScheduler(t_max="-1ep"), "negative"),
        (lambda: CosineAnnealingScheduler(t_max="1 week"), "1 week"),
    ],
)
def test_a_wrong_time_is_an_error_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("warmup", ["2ba", "0.2dur"])
def test_the_ratio_leaves_the_warm_up_alone_in_every_unit_unless_told(warmup):
    """T5: it scaled a warm-up in 'dur' but not the same one in 'ba'."""
    rates = rates_of(
        LinearWithWarmupScheduler(warmup), max_duration="10ba", scale_schedule_ratio=0.5
    )
    assert rates == pytest.approx([linear(k, 2, 5) for k in range(6)])
    scaled = rates_of(
        LinearWithWarmupScheduler(warmup, scale_warmup=True),
        max_duration="10ba",
        scale_schedule_ratio=0.5,
    )
    assert scaled == pytest.approx([linear(k, 1, 5) for k in range(6)])


def test_an_absolute_end_is_scaled_too():
    rates = rates_of(LinearScheduler(t_max="8ba"), max_duration="10ba", scale_schedule_ratio=0.5)
    assert rates == pytest.approx([linear(k, 0, 4) for k in range(6)])


def test_schedulers_step_once_for_each_optimizer_step():
    """T11: stepped once a microbatch, the rate decays too fast."""
    rates = rates_of(LinearScheduler(), device_train_microbatch_size=1)
    assert rates == pytest.approx([linear(k, 0, 10) for k in BATCHES])


def test_torch_schedulers_step_every_epoch_unless_told_otherwise():
    def run(**arguments):
        rates = Rates()
        model = ComposerClassifier(nn.Linear(4, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with Trainer(
            model=model,
            train_dataloader=DataLoader(make_data(8), batch_size=4),
            optimizers=optimizer,
            schedulers=torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
            max_duration="2ep",
            callbacks=rates,
            progress_bar=False,
            **arguments,
        ) as trainer:
            trainer.fit()
        return rates.values

    assert run() == [1.0, 1.0, 0.5, 0.5]
    assert run(step_schedulers_every_batch=True) == [1.0, 0.5, 0.25, 0.125]
    assert rates_of(LinearScheduler(), step_schedulers_every_batch=False)[:6] == pytest.approx(
        [1.0] * 5 + [0.5]
    )


def test_schedules_wait_for_a_duration_that_only_fit_knows():
    rates = Rates()
    with make_trainer(LinearScheduler(), rates=rates, max_duration=None) as trainer:
        trainer.fit(duration="5ba")
    assert [r / RATE for r in rates.values] == pytest.approx([linear(k, 0, 5) for k in range(5)])


def test_schedulers_given_to_fit_replace_those_of_the_trainer():
    rates = Rates()
    with make_trainer(ConstantScheduler(), rates=rates, max_duration="2ba") as trainer:
        trainer.fit()
        trainer.fit(duration="2ba", schedulers=ConstantScheduler(0.5))
    assert [r / RATE for r in rates.values] == pytest.approx([1, 1, 0.5, 0.5])


def test_every_optimizer_follows_the_schedule():
    model = ComposerClassifier(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)))
    first = torch.optim.SGD(model.module[0].parameters(), lr=1.0)
    second = torch.optim.SGD(model.module[1].parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    with Trainer(
        model=model,
        train_dataloader=DataLoader(make_data(), batch_size=4),
        optimizers=[first, second],
        schedulers=LinearScheduler(),
        max_duration="1ep",
        progress_bar=False,
    ) as trainer:
        trainer.fit(duration="4ba")
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert first.param_groups[0]["lr"] == pytest.approx(0.0)
    assert second.param_groups[0]["lr"] == pytest.approx(0.0)


def test_a_schedule_is_anything_that_maps_the_state_to_a_number():
    assert isinstance(LinearScheduler(), ComposerScheduler)
    state = State(run_name="r", max_duration="10ba")
    state.timestamp = state.timestamp.copy(batch=4)
    assert LinearScheduler()(state) == pytest.approx(0.6)


def test_the_ratio_must_be_above_zero():
    with make_trainer(None) as trainer:
        for ratio in (0.0, -1.0, float("nan")):
            with pytest.raises(ValueError, match="scale_schedule_ratio must be above 0"):
                compile_composer_scheduler(LinearScheduler(), trainer.state, ratio)


def textbook(weights, gradients, lr, initial, momentum, dampening, decay, nesterov):
    """Loshchilov and Hutter 2017, algorithm 1, in plain Python on one number."""
    buffer = None
    for gradient, rate in zip(gradients, lr, strict=True):
        direction = gradient
        if momentum:
            buffer = gradient if buffer is None else momentum * buffer + (1 - dampening) * gradient
            direction = gradient + momentum * buffer if nesterov else buffer
        weights = weights * (1 - decay * rate / initial) - rate * direction
    return weights


@given(
    momentum=st.sampled_from([0.0, 0.9]),
    dampening=st.sampled_from([0.0, 0.3]),
    decay=st.sampled_from([0.0, 0.01]),
    nesterov=st.booleans(),
    gradients=st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_decoupled_sgd_equals_the_textbook(momentum, dampening, decay, nesterov, gradients):
    if nesterov and (momentum == 0 or dampening):
        nesterov = False
    weight = nn.Parameter(torch.tensor([1.5, -0.5], dtype=torch.float64))
    optimizer = DecoupledSGDW([weight], 0.2, momentum, dampening, decay, nesterov)
    rates = [0.2 / (1 + k) for k in range(len(gradients))]
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
    for start, end in zip([1.5, -0.5], weight.tolist(), strict=True):
        expected = textbook(start, gradients, rates, 0.2, momentum, dampening, decay, nesterov)
        assert end == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    "arguments",
    [
        {"lr": -1.0},
        {"lr": 0.1, "momentum": -1.0},
        {"lr": 0.1, "weight_decay": -1.0},
        {"lr": 0.1, "nesterov": True},
    ],
)
def test_decoupled_sgd_refuses_values_out_of_range(arguments):
    with pytest.raises(ValueError, match=r"must not be negative|needs a momentum"):
        DecoupledSGDW([nn.Parameter(torch.zeros(1))], **arguments)


def test_the_default_optimizer_is_decoupled_sgd_at_a_tenth():
    with Trainer(model=ComposerClassifier(nn.Linear(4, 3)), progress_bar=False) as trainer:
        (optimizer,) = trainer.state.optimizers
        assert type(optimizer) is DecoupledSGDW
        assert optimizer.param_groups[0]["lr"] == 0.1
