"""Events, an algorithm, a callback and a mirrored run directory in a plain PyTorch loop.

    python examples/own_loop.py [STORE]

Needs stretto-algorithms and rundir-uploader. STORE is a folder or a URL such as s3://bucket/runs.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rundir_uploader import RunDirectoryUploader
from stretto.algorithms import GradientClipping
from stretto.core_events import Callback, Engine, Event, Logger, State
from stretto.run_directory import create_run_directory


class ModelState(State):
    """The state of the run, with what GradientClipping asks of it."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        super().__init__(**settings)
        self.model, self.loss = model, 0.0


class LossCurve(Callback[ModelState]):
    """Writes the loss of every epoch into the run directory."""

    def epoch_end(self, state: ModelState, logger: Logger) -> None:
        """Add a line."""
        with (folder / "loss.csv").open("a") as file:
            file.write(f"{state.timestamp.epoch_count},{state.loss:.4f}\n")


if __name__ == "__main__":
    folder = Path(create_run_directory())
    torch.manual_seed(0)
    inputs = torch.randn(512, 16)
    targets = (inputs @ torch.randn(16, 4)).argmax(dim=1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    uploader = RunDirectoryUploader(sys.argv[1] if len(sys.argv) > 1 else "store")

    state = ModelState(model, run_name="own-loop", max_duration="5ep", dataloader_len=16)
    plugins = {"algorithms": [GradientClipping("norm", 1.0)], "callbacks": [LossCurve(), uploader]}
    with Engine[ModelState](state, Logger(state), **plugins) as engine:
        engine.run_event(Event.INIT)
        engine.run_event(Event.FIT_START)
        while state.timestamp < state.max_duration:
            engine.run_event(Event.EPOCH_START)
            for x, y in zip(inputs.split(32), targets.split(32), strict=True):
                engine.run_event(Event.BATCH_START)
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                engine.run_event(Event.AFTER_TRAIN_BATCH)  # clips the gradients
                optimizer.step()
                state.loss = loss.item()
                state.timestamp = state.timestamp.to_next_batch(samples=len(x))
                engine.run_event(Event.BATCH_END)
            state.timestamp = state.timestamp.to_next_epoch()
            engine.run_event(Event.EPOCH_END)
        torch.save(model.state_dict(), folder / "model.pt")
        engine.run_event(Event.FIT_END)
    print("run directory", folder)
    print("stored", uploader.get_uri_for_uploaded_file(folder / "model.pt"))
