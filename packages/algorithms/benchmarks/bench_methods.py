"""What the methods cost on a CPU, against torch's own functions and the usual way to write them.

    python packages/algorithms/benchmarks/bench_methods.py [--smoke]

Ours and the other take turns; the figure is the median of the paired ratios of the processor time
of one thread. Exit status 1 if a limit is missed. With --smoke everything is tiny and no limit
counts.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from stretto.algorithms import (
    BlurConv2d,
    BlurMaxPool2d,
    apply_gradient_clipping,
    smooth_labels,
)
from stretto.algorithms.mixup import mix_samples
from stretto.algorithms.scratch import Scratch

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """One row of the table: `ours` may take at most `limit` times what `other` takes."""

    name: str
    against: str
    ours: Call
    other: Call
    limit: float


def measure(call: Call, repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def run(race: Race, rounds: int) -> tuple[float, float, float]:
    """Return the medians of ours and the other in seconds, and of the paired ratios."""
    for call in (race.ours, race.other):
        call()
    slower = max(measure(race.ours, 1), measure(race.other, 1))
    repeats = max(1, round(0.02 / max(slower, 1e-6)))
    pairs = [(measure(race.ours, repeats), measure(race.other, repeats)) for _ in range(rounds)]
    ours, others = zip(*pairs, strict=True)
    ratio = statistics.median(mine / max(other, 1e-9) for mine, other in pairs)
    return statistics.median(ours), statistics.median(others), ratio


def mixup_races(smoke: bool) -> Iterator[Race]:
    side = 16 if smoke else 224
    for count, size in ((4 if smoke else 128, side), (64, 8 if smoke else 32)):
        images = torch.randn(count, 3, size, size)
        indices, shares = torch.randperm(count), torch.rand(count)
        scratch = Scratch()
        batch = (images, torch.zeros(count))
        name = f"MixUp {count}x3x{size}x{size}"

        def ours(images=images, indices=indices, shares=shares, scratch=scratch) -> object:
            return mix_samples(images, indices, shares, scratch)

        def lerp(images=images, indices=indices) -> object:
            return torch.lerp(images, images[indices], 0.3)

        def copied(batch=batch, indices=indices) -> object:
            images = copy.deepcopy(batch)[0]
            return (1 - 0.3) * images + 0.3 * images[indices]

        big = size > 32
        yield Race(
            name=name, against="lerp(x, x[p], t)", ours=ours, other=lerp, limit=0.35 if big else 1.5
        )
        yield Race(
            name=name,
            against="deepcopy, two products",
            ours=ours,
            other=copied,
            limit=0.2 if big else 0.7,
        )


def smoothing_races(smoke: bool) -> Iterator[Race]:
    shapes = [(8, 10), (1, 5, 8, 8)] if smoke else [(256, 1000), (2, 150, 128, 128)]
    for shape in shapes:
        logits = torch.randn(shape, requires_grad=True)
        target = torch.randint(shape[1], (shape[0], *shape[2:]))

        def ours(logits=logits, target=target) -> object:
            F.cross_entropy(logits, smooth_labels(logits, target, 0.1)).backward()
            logits.grad = None
            return None

        def torchs(logits=logits, target=target) -> object:
            F.cross_entropy(logits, target, label_smoothing=0.1).backward()
            logits.grad = None
            return None

        def one_hot(logits=logits, target=target) -> object:
            dense = F.one_hot(target, logits.size(1)).movedim(-1, 1)
            dense = dense * 0.9 + 0.1 / logits.size(1)
            F.cross_entropy(logits, dense).backward()
            logits.grad = None
            return None

        name = f"smooth_labels + CE {'x'.join(map(str, shape))}"
        yield Race(name=name, against="CE(label_smoothing)", ours=ours, other=torchs, limit=1.3)
        yield Race(name=name, against="int64 one-hot + CE", ours=ours, other=one_hot, limit=0.9)


def training(layer: nn.Module, images: torch.Tensor) -> Call:
    images = images.clone().requires_grad_()

    def call() -> object:
        layer(images).sum().backward()
        images.grad = None
        layer.zero_grad()
        return None

    return call


def evaluating(layer: nn.Module, images: torch.Tensor) -> Call:
    def call() -> object:
        with torch.no_grad():
            return layer(images)

    return call


def blur_races(smoke: bool) -> Iterator[Race]:
    channels, side = (16, 8) if smoke else (64, 56)
    images = torch.randn(8, channels, side, side)
    last = images.to(memory_format=torch.channels_last)
    conv = nn.Conv2d(channels, channels, 3, 2, 1)
    blurred = BlurConv2d.from_conv2d(conv)
    for kind, batch, limit in (("", images, 2.2), (", channels_last", last, 2.2)):
        yield Race(
            name=f"BlurConv2d train{kind}",
            against="Conv2d",
            ours=training(blurred, batch),
            other=training(conv, batch),
            limit=limit,
        )
    pool, smooth = nn.MaxPool2d(3, 2, 1), BlurMaxPool2d(3, 2, 1)
    dense = nn.Sequential(nn.MaxPool2d(3, 1, 1), BlurConv2d(channels, channels, 1, 1).blur)
    for kind, batch in (("", images), (", channels_last", last)):
        yield Race(
            name=f"BlurMaxPool2d eval{kind}",
            against="MaxPool2d",
            ours=evaluating(smooth, batch),
            other=evaluating(pool, batch),
            limit=6.0,
        )
    yield Race(
        name="BlurMaxPool2d eval",
        against="max_pool2d(stride 1), blur",
        ours=evaluating(smooth, images),
        other=evaluating(dense, images),
        limit=0.8,
    )
    yield Race(
        name="BlurMaxPool2d train",
        against="MaxPool2d",
        ours=training(smooth, images),
        other=training(pool, images),
        limit=6.0,
    )


def unit_by_unit(model: nn.Module) -> object:
    """Clip adaptively, one tensor after the other."""
    for parameter in model.parameters():
        gradient = parameter.grad
        dims = tuple(range(1, parameter.dim())) or None
        keep = dims is not None
        weight = parameter.detach().norm(2, dim=dims, keepdim=keep).clamp(min=1e-3) * 0.01
        norm = gradient.norm(2, dim=dims, keepdim=keep)
        clipped = gradient * (weight / norm.clamp(min=1e-6))
        gradient.copy_(torch.where(norm < weight, gradient, clipped))
    return None


def clipping_races(smoke: bool) -> Iterator[Race]:
    width, depth = (8, 2) if smoke else (512, 40)
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(depth)]
    )
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    yield Race(
        name="clipping, norm",
        against="clip_grad_norm_",
        ours=lambda: apply_gradient_clipping(model, "norm", 1.0),
        other=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        limit=1.3,
    )
    yield Race(
        name="clipping, value",
        against="clip_grad_value_",
        ours=lambda: apply_gradient_clipping(model, "value", 1.0),
        other=lambda: nn.utils.clip_grad_value_(model.parameters(), 1.0),
        limit=1.3,
    )
    yield Race(
        name="clipping, adaptive",
        against="tensor by tensor",
        ours=lambda: apply_gradient_clipping(model, "adaptive", 0.01),
        other=lambda: unit_by_unit(model),
        limit=1.0,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, limits not enforced")
    smoke = parser.parse_args().smoke
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        f"{'method':<36} {'against':<28} {'ours ms':>9} {'other ms':>9} {'ratio':>6} {'limit':>6}"
    )
    missed = 0
    for make in (mixup_races, smoothing_races, blur_races, clipping_races):
        for race in make(smoke):
            ours, other, ratio = run(race, rounds=2 if smoke else 7)
            over = ratio > race.limit
            missed += over
            note = "  over the limit" if over and not smoke else ""
            print(
                f"{race.name:<36} {race.against:<28} {ours * 1e3:>9.3f} {other * 1e3:>9.3f} "
                f"{ratio:>6.2f} {race.limit:>6.2f}{note}"
            )
    return 1 if missed and not smoke else 0


if __name__ == "__main__":
    sys.exit(main())
