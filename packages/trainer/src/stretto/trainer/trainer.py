"""The trainer: arguments in; `fit`, `eval`, `save_checkpoint` and `close` out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from stretto.trainer.arguments import (
    TrainerArguments,
    check_evaluators,
)
from stretto.trainer.build import Build, add_metrics, check_data_for, limit_of, use_train_data
from stretto.trainer.evaluator import check_subset
from stretto.trainer.fit_changes import FitChanges
from stretto.trainer.loop.evaluate import EvaluationRunner
from stretto.trainer.loop.fit import FitLoop
from stretto.trainer.loop.limits import check_duration, is_finished

if TYPE_CHECKING:
    from os import PathLike

    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from stretto.core_events import (
        Algorithm,
        AlgorithmPass,
        Callback,
        Engine,
        Logger,
        LoggerDestination,
        TimeInput,
    )
    from stretto.trainer.data.spec import DataSpec
    from stretto.trainer.devices import Device
    from stretto.trainer.evaluator import EvalInterval, Evaluator
    from stretto.trainer.models import ComposerModel
    from stretto.trainer.optim import ComposerScheduler
    from stretto.trainer.parallel import DDPSyncStrategy
    from stretto.trainer.precision import Precision
    from stretto.trainer.state import State

    Dataloader = DataSpec | Iterable[Any] | Mapping[str, Any]
    Scheduler = ComposerScheduler | LRScheduler
    EvalData = DataSpec | Evaluator | Iterable[Any] | Sequence[Any]


class Trainer:
    """Trains, evaluates and checkpoints a model; arguments that can be wrong fail here, not later.

    Use it as a context manager, or call `close`, so that loggers and uploads come to their end.

    Args:
        model: What to train.
        train_dataloader: Batches: a torch DataLoader, any iterable, a DataSpec, or a mapping of
            its arguments. On several ranks a map dataset needs `dist.get_sampler`.
        train_dataloader_label: Its name in the metrics' keys.
        train_subset_num_batches: Most batches in an epoch; -1 for all.
        max_duration: How long to train: "2ep", "1000ba", "1e6sp", "1e9tok", "1h30m", or a number
            of epochs.
        algorithms: Training methods to apply.
        algorithm_passes: Functions that order algorithms at an event, each perhaps with its place.
        optimizers: One or several; `DecoupledSGDW(lr=0.1)` by default.
        schedulers: Schedules of the learning rate; several are multiplied.
        scale_schedule_ratio: Stretches `max_duration` and the schedules.
        step_schedulers_every_batch: By default every batch, torch's own schedulers every epoch.
        eval_dataloader: A loader, an Evaluator, or a list of them.
        eval_interval: When to evaluate: a time, epochs, or a function `(state, event) -> bool`.
        eval_subset_num_batches: Most batches in an evaluation; -1 for all.
        callbacks: What watches the run.
        loggers: Where metrics go.
        run_name: By default of the environment's STRETTO_RUN_NAME, COMPOSER_RUN_NAME or RUN_NAME,
            else the time and two words.
        progress_bar: Whether to show one.
        log_to_console: Whether to print metrics.
        console_stream: Where to: "stderr", "stdout" or a stream.
        console_log_interval: How often.
        load_path: A checkpoint to go on from.
        load_weights_only: Whether to take only the model's weights from it.
        load_strict_model_weights: Whether missing or unexpected weights are an error.
        save_folder: Where to save checkpoints; `{run_directory}` is the node's run directory.
        save_filename: Name of each, with format variables.
        save_latest_filename: Name of the pointer to the newest; None for none.
        save_overwrite: Whether files of an earlier run may be replaced.
        save_interval: When to save: a time, epochs, or a function `(state, event) -> bool`.
        save_weights_only: Whether to save only the model's weights.
        save_metrics: Whether checkpoints hold the metrics' states.
        parallelism_config: `{"fsdp": {...}}` to shard the model; by default DDP on several ranks.
        device: "cpu", "gpu", "mps" or a Device; a GPU if there is one by default.
        precision: "fp32", "amp_bf16" or "amp_fp16"; on a GPU 16 bits by default.
        device_train_microbatch_size: Most samples in one forward pass; None for the whole batch.
            Gradients do not depend on it.
        accumulate_train_batch_on_tokens: Whether losses are means over tokens, not samples.
        seed: Of the run; each data-parallel rank adds its number. By default torch's own if you
            seeded it, else by chance.
        deterministic_mode: Whether torch may use only deterministic operations.
        dist_timeout: Seconds that ranks wait for each other.
        ddp_sync_strategy: When DDP reduces gradients; chosen automatically by default.
        run_directory: Where the run keeps its files; `./runs/<time>` if nothing else says so.

    Attributes:
        state: The run's state.
        logger: What metrics are given to.
        engine: What runs events.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a value is out of range, or parts do not fit together.
        FileNotFoundError: If the checkpoint to load is not there.
    """

    state: State
    logger: Logger
    engine: Engine[State]

    def __init__(
        self,
        *,
        model: ComposerModel,
        train_dataloader: Dataloader | None = None,
        train_dataloader_label: str = "train",
        train_subset_num_batches: int = -1,
        max_duration: TimeInput | None = None,
        algorithms: Algorithm[Any] | Sequence[Algorithm[Any]] | None = None,
        algorithm_passes: AlgorithmPass
        | tuple[AlgorithmPass, int]
        | Sequence[AlgorithmPass | tuple[AlgorithmPass, int]]
        | None = None,
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
        schedulers: Scheduler | Sequence[Scheduler] | None = None,
        scale_schedule_ratio: float = 1.0,
        step_schedulers_every_batch: bool | None = None,
        eval_dataloader: EvalData | None = None,
        eval_interval: EvalInterval = 1,
        eval_subset_num_batches: int = -1,
        callbacks: Callback[Any] | Sequence[Callback[Any]] | None = None,
        loggers: LoggerDestination[Any] | Sequence[LoggerDestination[Any]] | None = None,
        run_name: str | None = None,
        progress_bar: bool = True,
        log_to_console: bool = False,
        console_stream: str | TextIO = "stderr",
        console_log_interval: TimeInput = "1ba",
        load_path: str | PathLike[str] | None = None,
        load_weights_only: bool = False,
        load_strict_model_weights: bool = True,
        save_folder: str | PathLike[str] | None = None,
        save_filename: str = "ep{epoch}-ba{batch}-rank{rank}.pt",
        save_latest_filename: str | None = "latest-rank{rank}.pt",
        save_overwrite: bool = False,
        save_interval: EvalInterval = "1ep",
        save_weights_only: bool = False,
        save_metrics: bool = False,
        parallelism_config: Mapping[str, Any] | None = None,
        device: str | Device | None = None,
        precision: str | Precision | None = None,
        device_train_microbatch_size: int | None = None,
        accumulate_train_batch_on_tokens: bool = False,
        seed: int | None = None,
        deterministic_mode: bool = False,
        dist_timeout: float = 300.0,
        ddp_sync_strategy: str | DDPSyncStrategy | None = None,
        run_directory: str | PathLike[str] | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        self._set_up(TrainerArguments(**given))

    def _set_up(self, arguments: TrainerArguments) -> None:
        build = Build(arguments).run()
        self.state, self.logger, self.engine = build.state, build.logger, build.engine
        self._saver = build.saver
        self._schedulers = build.schedulers
        self._limit = limit_of(arguments)

    def fit(
        self,
        train_dataloader: Dataloader | None = None,
        train_dataloader_label: str = "train",
        train_subset_num_batches: int | None = None,
        duration: TimeInput | None = None,
        reset_time: bool = False,
        schedulers: Scheduler | Sequence[Scheduler] | None = None,
        scale_schedule_ratio: float = 1.0,
        step_schedulers_every_batch: bool | None = None,
        eval_dataloader: EvalData | None = None,
        eval_subset_num_batches: int = -1,
        eval_interval: EvalInterval = 1,
        device_train_microbatch_size: int | None = None,
        precision: str | Precision | None = None,
    ) -> None:
        """Train until the maximum duration; nothing happens if it is reached already.

        What is given replaces what the trainer had; None keeps it.

        Args:
            train_dataloader: New training data. An epoch that was left in its middle ends.
            train_dataloader_label: Their name.
            train_subset_num_batches: Most batches in an epoch; -1 for all.
            duration: How long to train from here, instead of up to `max_duration`.
            reset_time: Whether to count from zero again.
            schedulers: New schedules.
            scale_schedule_ratio: Stretches `duration` and `schedulers`.
            step_schedulers_every_batch: As for the trainer.
            eval_dataloader: New evaluations.
            eval_subset_num_batches: For those of them that have none of their own.
            eval_interval: For those of them that have none of their own.
            device_train_microbatch_size: Most samples in one forward pass.
            precision: A new precision.

        Raises:
            ValueError: If there are no training data or no duration, or the two do not fit; or if
                an argument is out of range, then before anything is replaced.
            IncompleteUploadError: If files of the run could not be stored.
        """
        changes = FitChanges(
            self.state,
            train_dataloader=train_dataloader,
            train_dataloader_label=train_dataloader_label,
            train_subset_num_batches=train_subset_num_batches,
            duration=duration,
            schedulers=schedulers,
            scale_schedule_ratio=scale_schedule_ratio,
            step_schedulers_every_batch=step_schedulers_every_batch,
            eval_dataloader=eval_dataloader,
            eval_subset_num_batches=eval_subset_num_batches,
            eval_interval=eval_interval,
            device_train_microbatch_size=device_train_microbatch_size,
            precision=precision,
        )
        if train_subset_num_batches is not None:
            self._limit = None if train_subset_num_batches == -1 else train_subset_num_batches
        changes.apply(self.state, self._limit, reset_time=reset_time)
        self._schedulers = changes.schedulers or self._schedulers
        self._train()

    def _train(self) -> None:
        state, spec = self.state, self.state.data_state.train
        if spec is None:
            raise ValueError(
                "no training data: pass train_dataloader to Trainer(...) or to fit(...)"
            )
        label = state.dataloader_label or "train"
        use_train_data(state, spec, label, self._limit)
        check_duration(state)
        self._schedulers.bind(state)
        if is_finished(state):
            return
        FitLoop(
            state,
            self.engine,
            self.logger,
            spec,
            limit=self._limit,
            step_every_batch=self._schedulers.step_every_batch,
        ).run()

    def eval(self, eval_dataloader: EvalData | None = None, subset_num_batches: int = -1) -> None:
        """Evaluate the model as it is; metrics are logged and kept in `state.metric_values`.

        Args:
            eval_dataloader: What to evaluate on; by default the trainer's evaluators.
            subset_num_batches: Most batches to use; -1 for all, or each evaluator's own number.

        Raises:
            ValueError: If there is nothing to evaluate on.
        """
        check_subset("subset_num_batches", subset_num_batches)
        state = self.state
        own = {evaluator.label for evaluator in state.evaluators}
        kept = {label: state.eval_metrics[label] for label in own & state.eval_metrics.keys()}
        if eval_dataloader is None:
            evaluators = state.evaluators
            if not evaluators:
                raise ValueError(
                    "nothing to evaluate on: pass eval_dataloader to Trainer(...) or to eval(...)"
                )
        else:
            evaluators = check_evaluators(eval_dataloader, 0, subset_num_batches)
            check_data_for(state.topology, None, "train", evaluators)
            add_metrics(state, evaluators)
        limit = None if subset_num_batches == -1 else subset_num_batches
        try:
            EvaluationRunner(state, self.engine, self.logger).run_standalone(evaluators, limit)
        finally:
            state.eval_metrics.update(kept)

    def save_checkpoint(
        self, name: str = "ep{epoch}-ba{batch}-rank{rank}", *, weights_only: bool = False
    ) -> str | None:
        """Save a checkpoint; to be called on every rank.

        Args:
            name: Its path, with format variables.
            weights_only: Whether to save only the model's weights.

        Returns:
            The path of the file.
        """
        from stretto.trainer.checkpoint import save_checkpoint

        return save_checkpoint(self.state, name, weights_only=weights_only)

    def save_checkpoint_to_save_folder(self) -> None:
        """Save a checkpoint as `save_folder` and the arguments beside it say.

        Raises:
            ValueError: If there is no `save_folder`.
        """
        if self._saver is None:
            raise ValueError("there is no folder to save to: pass save_folder to Trainer(...)")
        self._saver.save(self.state)

    @property
    def saved_checkpoints(self) -> list[str]:
        """Paths of the checkpoints saved to `save_folder`, oldest first."""
        return [] if self._saver is None else list(self._saver.saved_checkpoints)

    def close(self) -> None:
        """Close every callback and logger; the trainer cannot be used afterwards.

        Raises:
            IncompleteUploadError: If files of the run could not be stored.
            ExceptionGroup: If several members failed.
        """
        self.engine.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
