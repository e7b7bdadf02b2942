"""What the trainer adds to a bare loop, per step, in the same process.

    python packages/trainer/benchmarks/bench_step.py [--smoke]

An MLP 32-32-10 on batches of 32, no callbacks, no progress bar, no training metrics. Short
stretches of every loop take turns, so that a busy machine is busy for all; medians over steps. The
limit is held in CPU time of the training thread, which other work on the machine disturbs least;
wall-clock time stands beside it and is the same on a quiet machine.
Lightning, Fabric and Composer are measured beside us where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Step:
    """The median step of one stretch, in microseconds."""

    wall: float
    cpu: float


class Stamps:
    """An iterable of batches that notes when each is asked for."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self.wall: list[int] = []
        self.cpu: list[int] = []

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            self._note()
            yield batch
        self._note()

    def __len__(self) -> int:
        return len(self.batches)

    def _note(self) -> None:
        self.wall.append(time.perf_counter_ns())
        self.cpu.append(time.thread_time_ns())

    def step(self) -> Step:
        """Return the median step, without the first ones."""
        return Step(_median_gap(self.wall), _median_gap(self.cpu))


def _median_gap(times: list[int]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(times[WARM_UP:])) / 1e3


def run_bare(batches: list[Batch]) -> Step:
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    stamps = Stamps(batches)
    for inputs, labels in stamps:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    return stamps.step()


def run_stretto(batches: list[Batch]) -> Step:
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
    return stamps.step()


def run_fabric(batches: list[Batch]) -> Step:
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
    return stamps.step()


def run_lightning(batches: list[Batch]) -> Step:
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)

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
    return stamps.step()


def run_composer(batches: list[Batch]) -> Step:
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
    return stamps.step()


PEERS: dict[str, tuple[str, Callable[[list[Batch]], Step]]] = {
    "Fabric": ("lightning", run_fabric),
    "Lightning": ("lightning", run_lightning),
    "Composer": ("composer", run_composer),
}


def measure(rounds: int, steps: int) -> dict[str, list[Step]]:
    """Let the loops take turns; return the median step of each in each round."""
    batches = make_batches(steps + WARM_UP)
    loops: dict[str, Callable[[list[Batch]], Step]] = {
        "bare loop": run_bare,
        "Stretto": run_stretto,
    }
    for name, (module, run) in PEERS.items():
        if importlib.util.find_spec(module) is not None:
            loops[name] = run
    found: dict[str, list[Step]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, run in loops.items():
            found[name].append(run(batches))
    return found


def over_bare(own: list[Step], bare: list[Step], kind: str) -> tuple[float, float, float]:
    """Return the median step, its excess over the bare loop's, and the ratio of the two.

    A round's stretches ran next to each other, so they are compared within the round.
    """
    pairs = [(getattr(o, kind), getattr(b, kind)) for o, b in zip(own, bare, strict=True)]
    return (
        statistics.median(o for o, _ in pairs),
        statistics.median(o - b for o, b in pairs),
        statistics.median(o / b for o, b in pairs),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, limit not enforced")
    smoke = parser.parse_args().smoke
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = measure(1, 60) if smoke else measure(ROUNDS, STEPS)
        os.chdir("/")
    heads = ("step", "over bare", "ratio")
    print(f"{'':<11}{'CPU time, us':>30}{'wall clock, us':>33}")
    print(f"{'loop':<11}" + "".join(f"{head:>11}" for head in heads * 2))
    overheads: dict[str, float] = {}
    for name, own in found.items():
        cpu, wall = (over_bare(own, found["bare loop"], kind) for kind in ("cpu", "wall"))
        overheads[name] = cpu[1]
        cells = [f"{a:>11.1f}{b:>11.1f}{c:>11.2f}" for a, b, c in (cpu, wall)]
        print(f"{name:<11}" + "".join(cells))
    ours = overheads["Stretto"]
    print(f"\nover bare {ours:.1f} us; limit {LIMIT_US:.0f}: {ours / LIMIT_US:.2f} of it", end="")
    print(f"; aim {AIM_US:.0f}: {ours / AIM_US:.2f} of it")
    for name in PEERS:
        if name not in overheads:
            print(f"{name} is not installed")
    return int(not smoke and ours > LIMIT_US)


if __name__ == "__main__":
    sys.exit(main())
