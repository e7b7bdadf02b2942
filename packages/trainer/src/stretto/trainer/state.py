"""The state of a training run: who it is, how far it has come, and what it works on.

Four parts have one owner each; the flat names that callbacks and algorithms use forward to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stretto.core_events import State as EventState
from stretto.trainer.data.items import BatchKey, batch_get, batch_set

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torchmetrics import Metric

    from stretto.core_events import Algorithm, Callback, TimeInput
    from stretto.trainer.data.resume import DataPosition
    from stretto.trainer.data.spec import DataSpec
    from stretto.trainer.devices import Device
    from stretto.trainer.distributed.topology import Topology
    from stretto.trainer.evaluator import Evaluator
    from stretto.trainer.models import ComposerModel, Loss
    from stretto.trainer.parallel.strategy import ParallelStrategy, Prepared
    from stretto.trainer.precision.policy import PrecisionPolicy


@dataclass(slots=True, kw_only=True)
class ModelState:
    """What learns: owned by the build, changed by surgery at INIT and by the optimizers.

    Attributes:
        model: The user's model, never a wrapper.
        optimizers: The optimizers, in the order given.
        precision: How the passes and steps are computed.
        prepared: The wrapped model, once it is wrapped.
        schedulers: Schedulers of the learning rate.
        train_metrics: Metrics of training batches by name.
        eval_metrics: Metrics of each evaluator by label and name.
    """

    model: ComposerModel
    optimizers: list[Optimizer]
    precision: PrecisionPolicy
    prepared: Prepared | None = None
    schedulers: list[LRScheduler] = field(default_factory=lambda: [])
    train_metrics: dict[str, Metric] = field(default_factory=lambda: {})
    eval_metrics: dict[str, dict[str, Metric]] = field(default_factory=lambda: {})


@dataclass(slots=True)
class BatchState:
    """What one step works on: owned by the loop.

    Attributes:
        batch: The device batch; inside the events of a microbatch, that microbatch.
        outputs: What the last forward pass returned.
        loss: The mean loss of the last microbatch.
    """

    batch: Any = None
    outputs: Any = None
    loss: Any = None


@dataclass(slots=True, kw_only=True)
class DataState:
    """Where batches come from: owned by the loop.

    Attributes:
        train: The training data.
        evaluators: The evaluations to run while training.
        dataloader: The loader in use: the training one, or an evaluator's while it runs.
        position: Where in the training data the run is.
    """

    position: DataPosition
    train: DataSpec | None = None
    evaluators: list[Evaluator] = field(default_factory=lambda: [])
    dataloader: Iterable[Any] | None = None


@dataclass(slots=True, kw_only=True)
class ExecutionState:
    """Where and how the run executes: owned by the build.

    Attributes:
        device: This rank's device.
        topology: This rank's place among all.
        strategy: How the model is spread over ranks.
        device_train_microbatch_size: Most samples in one forward pass; None for the whole batch.
        accumulate_train_batch_on_tokens: Whether losses are weighted by tokens, not by samples.
        save_metrics: Whether checkpoints hold the metrics.
    """

    device: Device
    topology: Topology
    strategy: ParallelStrategy
    device_train_microbatch_size: int | None = None
    accumulate_train_batch_on_tokens: bool = False
    save_metrics: bool = False


class State(EventState):
    """The state of a training run.

    Args:
        run_name: Name of the run.
        model_state: Model, optimizers, schedulers, precision, metrics.
        data_state: Loaders and position.
        execution: Device, topology, strategy, microbatch size.
        rank_zero_seed: Seed of rank 0.
        max_duration: How long to train.
        algorithms: The algorithms of the run.
        callbacks: The callbacks of the run, logger destinations not among them.
    """

    def __init__(
        self,
        *,
        run_name: str,
        model_state: ModelState,
        data_state: DataState,
        execution: ExecutionState,
        rank_zero_seed: int = 0,
        max_duration: TimeInput | None = None,
        algorithms: Iterable[Algorithm[Any]] = (),
        callbacks: Iterable[Callback[Any]] = (),
    ) -> None:
        super().__init__(
            run_name=run_name,
            rank_zero_seed=rank_zero_seed,
            max_duration=max_duration,
            algorithms=algorithms,
            callbacks=callbacks,
        )
        self.model_state = model_state
        self.batch_state = BatchState()
        self.data_state = data_state
        self.execution = execution
        self.metric_values: dict[str, dict[str, float]] = {}

    @property
    def model(self) -> ComposerModel:
        """The user's model; under FSDP its parameters are sharded."""
        return self.model_state.model

    @model.setter
    def model(self, model: ComposerModel) -> None:
        if self.model_state.prepared is not None:
            raise RuntimeError(
                "the model is already wrapped for training: replace it at INIT, or change it "
                "in place"
            )
        self.model_state.model = model

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers."""
        return self.model_state.optimizers

    @property
    def schedulers(self) -> list[LRScheduler]:
        """The schedulers of the learning rate."""
        return self.model_state.schedulers

    @property
    def precision(self) -> PrecisionPolicy:
        """How the passes and steps are computed."""
        return self.model_state.precision

    @property
    def train_metrics(self) -> dict[str, Metric]:
        """Metrics of training batches by name."""
        return self.model_state.train_metrics

    @property
    def eval_metrics(self) -> dict[str, dict[str, Metric]]:
        """Metrics of evaluation by the evaluator's label and the metric's name."""
        return self.model_state.eval_metrics

    @property
    def batch(self) -> Any:
        """The device batch; inside the events of a microbatch, that microbatch."""
        return self.batch_state.batch

    @batch.setter
    def batch(self, batch: Any) -> None:
        self.batch_state.batch = batch

    @property
    def outputs(self) -> Any:
        """What the last forward pass returned."""
        return self.batch_state.outputs

    @outputs.setter
    def outputs(self, outputs: Any) -> None:
        self.batch_state.outputs = outputs

    @property
    def loss(self) -> Loss:
        """The mean loss of the microbatch, before it is weighted for the backward pass."""
        return self.batch_state.loss

    @loss.setter
    def loss(self, loss: Tensor | Mapping[str, Tensor] | Sequence[Tensor]) -> None:
        self.batch_state.loss = loss

    def batch_get_item(self, key: BatchKey) -> Any:
        """Return an item of the batch by index, name or a function of the batch."""
        return batch_get(self.batch_state.batch, key)

    def batch_set_item(self, key: BatchKey, value: Any) -> None:
        """Replace an item of the batch; the batch becomes a new container."""
        self.batch_state.batch = batch_set(self.batch_state.batch, key, value)

    @property
    def train_dataloader(self) -> Iterable[Any] | None:
        """The loader of the training data."""
        train = self.data_state.train
        return None if train is None else train.dataloader

    @property
    def evaluators(self) -> list[Evaluator]:
        """The evaluations to run while training."""
        return self.data_state.evaluators

    @property
    def dataloader(self) -> Iterable[Any] | None:
        """The loader in use: the training one, or an evaluator's while it runs."""
        return self.data_state.dataloader

    def set_dataloader(
        self,
        dataloader: Iterable[Any] | None = None,
        dataloader_label: str | None = None,
        dataloader_len: int | None = None,
    ) -> None:
        """Say which loader is in use.

        Args:
            dataloader: The loader, None for none.
            dataloader_label: Its name, such as "train".
            dataloader_len: Its batches an epoch, None where it cannot tell.
        """
        self.data_state.dataloader = dataloader
        self.dataloader_label = dataloader_label
        self.dataloader_len = dataloader_len

    @property
    def device(self) -> Device:
        """This rank's device."""
        return self.execution.device

    @property
    def topology(self) -> Topology:
        """This rank's place among all."""
        return self.execution.topology

    @property
    def strategy(self) -> ParallelStrategy:
        """How the model is spread over ranks."""
        return self.execution.strategy

    @property
    def device_train_microbatch_size(self) -> int | None:
        """Most samples in one forward pass; None for the whole batch."""
        return self.execution.device_train_microbatch_size

    @property
    def seed(self) -> int:
        """This rank's seed: ranks that see different data have different seeds."""
        return self.rank_zero_seed + self.execution.topology.data_parallel_rank

    def model_state_dict(self) -> dict[str, Any]:
        """Return the model's weights and buffers by name; to be called on every rank.

        Returns:
            The whole weights; where they are sharded, only rank 0 gets them.
        """
        from stretto.trainer.serialization import get_prepared

        return self.strategy.model_state_dict(get_prepared(self))

    def load_model_state_dict(
        self, state_dict: Mapping[str, Any], *, strict: bool = True
    ) -> tuple[list[str], list[str]]:
        """Load weights and buffers by name; to be called on every rank.

        Args:
            state_dict: The whole weights.
            strict: Whether missing or unexpected names are an error.

        Returns:
            The names that are missing, and those that are unexpected.
        """
        from stretto.trainer.serialization import get_prepared

        return self.strategy.load_model_state_dict(get_prepared(self), state_dict, strict=strict)

    def state_dict(self) -> dict[str, Any]:
        """Return everything a checkpoint holds; to be called on every rank."""
        from stretto.trainer.serialization import collect

        return collect(self)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Take everything back from `state_dict`; to be called on every rank.

        Args:
            state: What `state_dict` returned, perhaps in another process.
            strict: Whether missing or unexpected weights are an error.

        Raises:
            ValueError: If weights do not fit, or an algorithm that changed the saved model is
                missing from this run.
        """
        from stretto.trainer.serialization import restore

        restore(self, state, strict=strict)
