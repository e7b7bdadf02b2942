"""What the trainer adds to a bare loop, per step, in the same process.

    python packages/trainer/benchmarks/bench_step.py [--smoke]

An MLP 32-32-10 on batches of 32, no callbacks, no progress bar, no training metrics. Short stretches
of every loop take turns, so that a busy machine is busy for all; medians over all steps.
Lightning, Fabric and Composer are measured beside us where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.nn import functional

LIMIT_US = 100.0
AIM_US = 40.0
ROUNDS = 12
STEPS = 400
WARM_UP = 50

Batch = tuple[torch.Tensor, torch.Tensor]


def make_batches(count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(32, 32, generator=generator),
            torch.randint(0, 10, (32,), generator=generator),
        )
        for _ in range(count)
    ]


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


class Stamps:
    """An iterable of batches that notes when each is asked for."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self.times: list[int] = []

    def __iter__(self) -> Iterator[Batch]:
        note, now = self.times.append, time.perf_counter_ns
        for batch in self.batches:
            note(now())
            yield batch
        note(now())

    def __len__(self) -> int:
        return len(self.batches)

    def steps(self) -> list[float]:
        """Return the microseconds between requests, without the first ones."""
        times = self.times[WARM_UP:]
        return [(b - a) / 1e3 for a, b in zip(times, times[1:], strict=False)]


def run_bare(batches: list[Batch]) -> list[float]:
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    stamps = Stamps(batches)
    for inputs, labels in stamps:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    return stamps.steps()


def run_stretto(batches: list[Batch]) -> list[float]:
    from stretto.trainer import ComposerClassifier, Trainer

    model = ComposerClassifier(make_network())
    stamps = Stamps(batches)
    trainer = Trainer(
        model=model,
        train_dataloader=stamps,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        max_duration="1ep",
        progress_bar=False,
        device="cpu",
        seed=0,
    )
    trainer.fit()
    trainer.close()
    return stamps.steps()


def run_fabric(batches: list[Batch]) -> list[float]:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = make_network()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    model.train()
    stamps = Stamps(batches)
    for inputs, labels in stamps:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        fabric.backward(loss)
        optimizer.step()
    return stamps.steps()


def run_lightning(batches: list[Batch]) -> list[float]:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = make_network()

        def training_step(self, batch: Batch, index: int) -> torch.Tensor:
            return functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    stamps = Stamps(batches)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), stamps)
    return stamps.steps()


def run_composer(batches: list[Batch]) -> list[float]:
    from composer import Trainer
    from composer.models import ComposerClassifier

    model = ComposerClassifier(make_network(), num_classes=10)
    model.get_metrics = lambda is_train: {}  # no metrics in any of the loops
    stamps = Stamps(batches)
    trainer = Trainer(
        model=model,
        train_dataloader=stamps,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        max_duration="1ep",
        progress_bar=False,
        device="cpu",
        seed=0,
    )
    trainer.fit()
    trainer.close()
    return stamps.steps()


PEERS: dict[str, tuple[str, Callable[[list[Batch]], list[float]]]] = {
    "Fabric": ("lightning", run_fabric),
    "Lightning": ("lightning", run_lightning),
    "Composer": ("composer", run_composer),
}


def measure(rounds: int, steps: int) -> dict[str, list[float]]:
    """Let the loops take turns; return the median step of each in each round, microseconds."""
    batches = make_batches(steps + WARM_UP)
    loops: dict[str, Callable[[list[Batch]], list[float]]] = {
        "bare loop": run_bare,
        "Stretto": run_stretto,
    }
    for name, (module, run) in PEERS.items():
        if importlib.util.find_spec(module) is not None:
            loops[name] = run
    medians: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, run in loops.items():
            medians[name].append(statistics.median(run(batches)))
    return medians


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, limit not enforced")
    smoke = parser.parse_args().smoke
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        medians = measure(1, 60) if smoke else measure(ROUNDS, STEPS)
        os.chdir("/")
    bare = medians["bare loop"]
    print(f"{'loop':<12}{'step, us':>10}{'over bare, us':>16}{'step / bare':>14}")
    overheads: dict[str, float] = {}
    for name, own in medians.items():
        # Each round's loops ran next to each other, so they are compared within the round.
        over = statistics.median(o - b for o, b in zip(own, bare, strict=True))
        ratio = statistics.median(o / b for o, b in zip(own, bare, strict=True))
        overheads[name] = over
        print(f"{name:<12}{statistics.median(own):>10.1f}{over:>16.1f}{ratio:>14.2f}")
    ours = overheads["Stretto"]
    print(
        f"\nlimit {LIMIT_US:.0f} us over bare, aim {AIM_US:.0f}: {ours / LIMIT_US:.2f} of the limit"
    )
    for name in PEERS:
        if name not in overheads:
            print(f"{name} is not installed; trainers.md measured it on such a machine")
    return int(not smoke and ours > LIMIT_US)


if __name__ == "__main__":
    sys.exit(main())
