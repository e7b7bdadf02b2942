"""Learn to read real handwritten digits while the run directory is mirrored to a store.

    python examples/digits.py
    python examples/digits.py --store s3://bucket/runs --max-duration 5ep
    stretto -n 2 --run_directory runs/two examples/digits.py --parallel ddp
    python examples/digits.py --resume

The data are scikit-learn's 1,797 scans of 8x8 pixels. Four methods of stretto-algorithms take
part: one changes the model, one the batch, one the loss and one the gradients.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rundir_uploader import RunDirectoryUploader
from stretto.algorithms import BlurPool, GradientClipping, LabelSmoothing, MixUp
from stretto.core_events import Callback, Logger
from stretto.run_directory import find_latest_run, get_run_directory, set_run_directory
from stretto.trainer import ComposerClassifier, DataSpec, State, Trainer, dist
from stretto.trainer.loggers import FileLogger, InMemoryLogger
from stretto.trainer.optim import CosineAnnealingWithWarmupScheduler

SEED = 17
GLOBAL_BATCH_SIZE = 64
ACCURACY = "metrics/eval/MulticlassAccuracy"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", default="store", help="URL or folder to mirror the run to")
    parser.add_argument("--max-duration", default="12ep", help="such as 12ep, 500ba or 60sec")
    parser.add_argument("--run-directory", help="where the run keeps its files")
    parser.add_argument("--parallel", choices=("none", "ddp", "fsdp"), default="none")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    return parser.parse_args()


def settle_run_directory(arguments: argparse.Namespace) -> tuple[Path, str | None]:
    """Return the run directory and, when resuming, the checkpoint to start from."""
    directory = arguments.run_directory
    if arguments.resume and directory is None and dist.get_world_size() > 1:
        directory = os.environ["STRETTO_RUN_DIRECTORY"]  # the launcher has settled it
        if not Path(directory, "checkpoints").is_dir():
            raise SystemExit(
                f"--resume: {directory} holds no checkpoint; name the run to go on with by the "
                "launcher's --run_directory"
            )
    elif arguments.resume and directory is None:
        directory = find_latest_run()
        if directory is None:
            raise SystemExit(
                "--resume: no run with a checkpoint under ./runs; name --run-directory"
            )
        print(f"resuming {directory}")
    run_directory = Path(set_run_directory(directory))
    latest = run_directory / "checkpoints" / "latest-rank0.pt"
    if arguments.resume and not latest.exists():
        print(f"no checkpoint in {latest.parent} yet: starting from the beginning")
    return run_directory, str(latest) if arguments.resume and latest.exists() else None


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Return the training set and the held-out fifth; images are (1, 8, 8) in [0, 1]."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, held_out = train_test_split(
        torch.arange(len(labels)), test_size=0.2, random_state=SEED, stratify=labels
    )
    return (
        TensorDataset(images[train], labels[train]),
        TensorDataset(images[held_out], labels[held_out]),
    )


def make_dataloader(dataset: TensorDataset, *, train: bool) -> DataLoader[Any]:
    """Return this rank's loader; the batch of all ranks together is always the same size."""
    world_size = dist.get_world_size()
    if world_size == 1:
        generator = torch.Generator().manual_seed(SEED)
        return DataLoader(dataset, GLOBAL_BATCH_SIZE, shuffle=train, generator=generator)
    sampler = dist.get_sampler(dataset, shuffle=train, seed=SEED)
    return DataLoader(dataset, GLOBAL_BATCH_SIZE // world_size, sampler=sampler)


def make_model() -> ComposerClassifier:
    """Return a small convolutional network for (N, 1, 8, 8) images and ten classes."""

    def block(channels_in: int, channels_out: int, stride: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
        )

    torch.manual_seed(SEED)
    network = nn.Sequential(
        block(1, 32, 1),
        block(32, 64, 2),
        block(64, 64, 1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 2 * 2, 10),
    )
    return ComposerClassifier(network, num_classes=10)


class Curves(Callback[State]):
    """Keeps loss and accuracy of every epoch, through resumption too, and draws them at the end."""

    def __init__(self, metrics: InMemoryLogger, path: Path) -> None:
        self.metrics = metrics
        self.path = path
        self.rows: dict[int, tuple[float, float]] = {}

    def _latest(self, name: str) -> float:
        values = self.metrics.get_timeseries(name)[name]
        return float(values[-1]) if len(values) else float("nan")

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Read what this epoch logged, in time for its checkpoint."""
        logger.flush()
        row = (self._latest("loss/train/total"), self._latest(ACCURACY))
        self.rows[state.timestamp.epoch_count] = row

    def state_dict(self) -> dict[str, Any]:
        """Return the rows so far."""
        return {"rows": dict(self.rows)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the rows of the run that is resumed."""
        self.rows = dict(state["rows"])

    def fit_end(self, state: State, logger: Logger) -> None:
        """Draw the curves before the last upload."""
        if state.topology.is_rank_zero and self.rows:
            self.draw()

    def draw(self) -> None:
        """Write the picture."""
        from matplotlib.figure import Figure

        epochs = sorted(self.rows)
        figure = Figure(figsize=(7, 3), layout="constrained")
        for place, (title, column) in enumerate((("training loss", 0), ("accuracy", 1))):
            axes = figure.add_subplot(1, 2, place + 1)
            axes.plot(epochs, [self.rows[epoch][column] for epoch in epochs], marker=".")
            axes.set(title=title, xlabel="epoch")
        figure.savefig(self.path)


def report(rows: dict[str, str], command: str) -> None:
    """Print one line a fact, then the command that checks the result, alone on its line."""
    width = max(map(len, rows))
    print()
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
    print(f"\ncheck it with:\n{command}")


def main() -> None:
    """Train, mirror, report."""
    arguments = parse_arguments()
    started = time.perf_counter()
    torch.set_num_threads(1)  # threads cost more than they bring with a network this small
    run_directory, load_path = settle_run_directory(arguments)
    train, held_out = load_digits()
    uploader = RunDirectoryUploader(arguments.store)
    metrics = InMemoryLogger()
    curves = Curves(metrics, Path(get_run_directory()) / "curves.png")
    model = make_model()
    trainer = Trainer(
        model=model,
        train_dataloader=make_dataloader(train, train=True),
        eval_dataloader=DataSpec(make_dataloader(held_out, train=False)),
        max_duration=arguments.max_duration,
        optimizers=torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-2),
        schedulers=CosineAnnealingWithWarmupScheduler(t_warmup="0.1dur"),
        algorithms=[
            BlurPool(),
            MixUp(alpha=0.2),
            LabelSmoothing(0.05),
            GradientClipping("norm", 1.0),
        ],
        callbacks=[curves, uploader],
        loggers=[metrics, FileLogger()],
        parallelism_config={"fsdp": {}} if arguments.parallel == "fsdp" else None,
        run_directory=str(run_directory),
        save_folder="{run_directory}/checkpoints",
        load_path=load_path,
        seed=SEED,
    )
    trainer.fit()
    if "eval" not in trainer.state.metric_values:  # resumed when there was nothing left to do
        trainer.eval()
    accuracy = float(trainer.state.metric_values["eval"]["MulticlassAccuracy"])
    trainer.close()
    if not trainer.state.topology.is_rank_zero:
        return
    url = uploader.url
    rows = {
        "accuracy": f"{accuracy:.4f}",
        "seconds": f"{time.perf_counter() - started:.1f}",
        "run directory": str(run_directory),
        "store": url,
        "files stored": str(uploader.status().stored),
    }
    script = shutil.which("rundir-uploader") or Path(sys.executable).with_name("rundir-uploader")
    report(rows, f"{script} verify {run_directory} {url}")


if __name__ == "__main__":
    main()
