"""A small plain training loop that runs the events of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from stretto.algorithms.keys import get_item, set_item
from stretto.core_events import Algorithm, Engine, Event, Logger, LoggerDestination, State

__all__ = ["Loop", "LoopState", "SmallClassifier", "random_batch", "split"]

CLASSES = 5


class SmallClassifier(nn.Module):
    """A network with a strided convolution, a pooling and a linear layer, for (N, 3, 16, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(16 * 4 * 4, CLASSES)

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the logits of a batch, or of its images."""
        images = batch if isinstance(batch, torch.Tensor) else batch[0]
        return self.head(self.layers(images))

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        """Return the mean cross entropy with the batch's targets."""
        return nn.functional.cross_entropy(outputs, batch[1])


def random_batch(index: int, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of this number: images (N, 3, 16, 16) and class indices (N,)."""
    generator = torch.Generator().manual_seed(index)
    images = torch.randn(size, 3, 16, 16, generator=generator)
    return images, torch.randint(CLASSES, (size,), generator=generator)


class LoopState(State):
    """A state with everything that the protocols of `stretto.algorithms.state` name."""

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizers: Sequence[Optimizer] = (),
        algorithms: Sequence[Algorithm[Any]] = (),
        seed: int = 17,
    ) -> None:
        super().__init__(run_name="loop", rank_zero_seed=seed, algorithms=algorithms)
        self.model = model
        self.optimizers = tuple(optimizers)
        self.seed = seed
        self.batch: Any = None
        self.outputs: Any = None
        self.loss: Any = None

    def batch_get_item(self, key: Any) -> Any:
        """Return a part of the batch."""
        return get_item(self.batch, key)

    def batch_set_item(self, key: Any, value: Any) -> None:
        """Replace a part of the batch."""
        self.batch = set_item(self.batch, key, value)


Splitter = Callable[[Any, int], Sequence[Any]]


def split(batch: Any, size: int) -> list[Any]:
    """Cut a tuple of tensors into microbatches of at most `size` samples."""
    parts = [part.split(size) for part in batch]
    return list(zip(*parts, strict=True))


@dataclass(kw_only=True)
class Loop:
    """A plain training loop that runs the events of a batch in their order.

    Attributes:
        model: A model with ``loss(outputs, batch)``.
        algorithms: The methods to apply; `Event.INIT` runs at once.
        make_optimizer: Builds the optimizer from the parameters, after `Event.INIT`.
        seed: The rank's seed.
        microbatch_size: Samples in a microbatch. Default: the whole batch.
        splitter: Cuts a batch.
        autocast: The type for `torch.autocast`. Default: none.
        destinations: Loggers.
        state: The state, with what the last batch left there.
        targets: For each microbatch of the last batch, the target after the loss.
    """

    model: nn.Module
    algorithms: Sequence[Algorithm[Any]] = ()
    make_optimizer: Callable[[Iterator[nn.Parameter]], Optimizer] = lambda parameters: (
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    )
    seed: int = 17
    microbatch_size: int | None = None
    splitter: Splitter = split
    autocast: torch.dtype | None = None
    destinations: Sequence[LoggerDestination[Any]] = ()
    state: LoopState = field(init=False)
    targets: list[Any] = field(init=False, default_factory=list[Any])

    def __post_init__(self) -> None:
        self.state = LoopState(self.model, algorithms=self.algorithms, seed=self.seed)
        self.engine = Engine(self.state, Logger(self.state, list(self.destinations)))
        self.run(Event.INIT)
        self.optimizer = self.make_optimizer(self.model.parameters())
        self.state.optimizers = (self.optimizer,)

    def run(self, *events: Event) -> None:
        """Run events."""
        for event in events:
            self.engine.run_event(event)

    def gradients(self, batch: Any) -> float:
        """Compute the gradients of a batch, up to `Event.AFTER_TRAIN_BATCH`; return its loss."""
        state = self.state
        self.optimizer.zero_grad()
        self.run(Event.BEFORE_DATALOADER)
        state.batch = batch
        self.run(Event.AFTER_DATALOADER, Event.BATCH_START, Event.BEFORE_TRAIN_BATCH)
        whole = state.batch
        size = len(get_item(whole, 0))
        total = 0.0
        self.targets = []
        for microbatch in self.splitter(whole, self.microbatch_size or size):
            total += self._microbatch(microbatch, size)
        state.batch = whole
        self.run(Event.AFTER_TRAIN_BATCH)
        return total

    def train_batch(self, batch: Any) -> float:
        """Train on a batch and return its loss."""
        total = self.gradients(batch)
        self.optimizer.step()
        self.state.timestamp = self.state.timestamp.to_next_batch(samples=len(get_item(batch, 0)))
        self.run(Event.BATCH_END)
        return total

    def _microbatch(self, microbatch: Any, size: int) -> float:
        state = self.state
        state.batch = microbatch
        share = len(get_item(microbatch, 0)) / size
        with self._context():
            self.run(Event.BEFORE_FORWARD)
            state.outputs = self.model(state.batch)
            self.run(Event.AFTER_FORWARD, Event.BEFORE_LOSS)
            state.loss = cast("Any", self.model).loss(state.outputs, state.batch)
            self.run(Event.AFTER_LOSS)
        self.targets.append(get_item(state.batch, 1))
        self.run(Event.BEFORE_BACKWARD)
        loss = cast("torch.Tensor", state.loss * share)
        torch.autograd.backward(loss)
        self.run(Event.AFTER_BACKWARD)
        return float(loss.detach())

    def _context(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", self.autocast) if self.autocast else nullcontext()
