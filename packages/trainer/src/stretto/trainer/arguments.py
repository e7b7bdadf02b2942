"""The arguments of a trainer, checked before anything is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stretto.core_events import Algorithm, Callback, LoggerDestination, Time, ensure_time
from stretto.run_directory.rank import get_global_rank
from stretto.trainer.checkpoint.source import find_file
from stretto.trainer.data.spec import DataSpec, dataloader_length, ensure_data_spec
from stretto.trainer.evaluator import Evaluator, check_subset, ensure_evaluators
from stretto.trainer.loop.limits import scale_duration
from stretto.trainer.microbatching import check_microbatch_size
from stretto.trainer.models import ComposerModel

if TYPE_CHECKING:
    from os import PathLike

    from stretto.core_events import AlgorithmPass, TimeInput
    from stretto.trainer.devices import Device
    from stretto.trainer.optim import ComposerScheduler
    from stretto.trainer.parallel import DDPSyncStrategy
    from stretto.trainer.precision import Precision

    Scheduler = ComposerScheduler | LRScheduler

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerArguments:
    """What `Trainer(...)` was given, under the same names; see there."""

    model: ComposerModel
    train_dataloader: DataSpec | Iterable[Any] | Mapping[str, Any] | None
    train_dataloader_label: str
    train_subset_num_batches: int
    max_duration: TimeInput | None
    algorithms: Algorithm[Any] | Sequence[Algorithm[Any]] | None
    algorithm_passes: (
        AlgorithmPass
        | tuple[AlgorithmPass, int]
        | Sequence[AlgorithmPass | tuple[AlgorithmPass, int]]
        | None
    )
    optimizers: Optimizer | Sequence[Optimizer] | None
    schedulers: Scheduler | Sequence[Scheduler] | None
    scale_schedule_ratio: float
    step_schedulers_every_batch: bool | None
    eval_dataloader: Any
    eval_interval: Any
    eval_subset_num_batches: int
    callbacks: Callback[Any] | Sequence[Callback[Any]] | None
    loggers: LoggerDestination[Any] | Sequence[LoggerDestination[Any]] | None
    run_name: str | None
    progress_bar: bool
    log_to_console: bool
    console_stream: str | TextIO
    console_log_interval: TimeInput
    load_path: str | PathLike[str] | None
    load_weights_only: bool
    load_strict_model_weights: bool
    save_folder: str | PathLike[str] | None
    save_filename: str
    save_latest_filename: str | None
    save_overwrite: bool
    save_interval: Any
    save_weights_only: bool
    save_metrics: bool
    parallelism_config: Mapping[str, Any] | None
    device: str | Device | None
    precision: str | Precision | None
    device_train_microbatch_size: int | None
    accumulate_train_batch_on_tokens: bool
    seed: int | None
    deterministic_mode: bool
    dist_timeout: float
    ddp_sync_strategy: str | DDPSyncStrategy | None
    run_directory: str | PathLike[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The arguments in the form that the build uses.

    Attributes:
        train: The training data.
        evaluators: The evaluations.
        max_duration: How long to train, stretched by the scale schedule ratio.
        algorithms: The algorithms.
        callbacks: The callbacks that were given.
        loggers: The loggers that were given.
        optimizers: The optimizers that were given.
        schedulers: The schedulers that were given.
        microbatch_size: Most samples in one forward pass.
    """

    train: DataSpec | None
    evaluators: list[Evaluator]
    max_duration: Time | None
    algorithms: list[Algorithm[Any]]
    callbacks: list[Callback[Any]]
    loggers: list[LoggerDestination[Any]]
    optimizers: list[Optimizer]
    schedulers: list[Any]
    microbatch_size: int | None


def check(arguments: TrainerArguments) -> Checked:
    """Check arguments without making anything.

    Raises:
        TypeError: If something is of the wrong kind.
        ValueError: If a value is out of range, the model has no parameters, or a dataloader is
            empty.
        FileNotFoundError: If the checkpoint to load is not there.
    """
    a = arguments
    check_model(a.model)
    check_subset("train_subset_num_batches", a.train_subset_num_batches)
    check_subset("eval_subset_num_batches", a.eval_subset_num_batches)
    _check_seed(a.seed)
    if a.load_path is not None:
        _check_load_path(a.load_path)
    duration = None if a.max_duration is None else ensure_time(a.max_duration)
    return Checked(
        train=check_train_dataloader(a.train_dataloader, a.train_dataloader_label),
        evaluators=check_evaluators(a.eval_dataloader, a.eval_interval, a.eval_subset_num_batches),
        max_duration=None if duration is None else scale_duration(duration, a.scale_schedule_ratio),
        algorithms=_members("algorithms", a.algorithms, Algorithm),
        callbacks=_members("callbacks", a.callbacks, Callback),
        loggers=_members("loggers", a.loggers, LoggerDestination),
        optimizers=_members("optimizers", a.optimizers, Optimizer),
        schedulers=check_schedulers(a.schedulers),
        microbatch_size=check_microbatch_size(a.device_train_microbatch_size),
    )


def check_model(model: object) -> None:
    """Check that a model can be trained.

    Raises:
        TypeError: If it is no ComposerModel.
        ValueError: If it has no parameter that can be trained.
    """
    if not isinstance(model, ComposerModel):
        kind = type(model).__name__
        hint = (
            "wrap it in ComposerClassifier(module), or derive its class from ComposerModel"
            if isinstance(model, nn.Module)
            else "derive its class from ComposerModel"
        )
        raise TypeError(f"model must be a ComposerModel, got {kind}: {hint}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            f"the model {type(model).__name__} has no parameters that require gradients, so there "
            "is nothing to train: check that its layers are attributes of the module"
        )


def check_train_dataloader(
    dataloader: DataSpec | Iterable[Any] | Mapping[str, Any] | None, label: str
) -> DataSpec | None:
    """Return the training data.

    Raises:
        ValueError: If the label is empty or the loader has no batch.
    """
    if not label:
        raise ValueError("train_dataloader_label must not be empty: it names the metrics")
    if dataloader is None:
        return None
    spec = ensure_data_spec(dataloader)
    _check_filled(spec, "train_dataloader")
    return spec


def check_evaluators(given: Any, interval: Any, subset_num_batches: int) -> list[Evaluator]:
    """Return the evaluations.

    Raises:
        ValueError: If labels are double or a loader has no batch.
    """
    evaluators = ensure_evaluators(given, interval, subset_num_batches)
    for evaluator in evaluators:
        _check_filled(evaluator.dataloader, f"evaluation dataloader {evaluator.label!r}")
    return evaluators


def check_schedulers(given: Any) -> list[Any]:
    """Return schedulers as a list.

    Raises:
        TypeError: If one is neither a torch scheduler nor callable with the state.
    """
    schedulers = as_list(given)
    for scheduler in schedulers:
        if not isinstance(scheduler, LRScheduler) and not callable(scheduler):
            raise TypeError(
                f"schedulers must be torch schedulers or functions (state, ssr) -> multiplier, got "
                f"{type(scheduler).__name__}"
            )
    return schedulers


def as_list(given: T | Sequence[T] | None) -> list[T]:
    """Return what was given, one or several or None, as a list."""
    if given is None:
        return []
    if isinstance(given, list | tuple):
        return list(cast("Sequence[T]", given))
    return [cast("T", given)]


def _members(name: str, given: Any, kind: type[T]) -> list[T]:
    members: list[Any] = as_list(given)
    for member in members:
        if not isinstance(member, kind):
            raise TypeError(
                f"{name} must hold {kind.__name__} objects, got {type(member).__name__}: pass "
                "algorithms, callbacks, loggers, optimizers and schedulers each in their own "
                "argument"
            )
    return members


def _check_seed(seed: object) -> None:
    if seed is None:
        return
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise TypeError(f"seed must be a whole number or None, got {seed!r}")
    if int(seed) < 0:
        raise ValueError(f"seed must not be negative, got {seed}")


def _check_filled(spec: DataSpec, what: str) -> None:
    if dataloader_length(spec.dataloader) == 0:
        raise ValueError(
            f"the {what} is empty: its dataset has no samples, or fewer than a batch with "
            "drop_last=True"
        )


def _check_load_path(load_path: str | PathLike[str]) -> None:
    """Check early what can be checked before the run directory is settled: that a file is there.

    Only on rank 0, which reads the checkpoint for all: other nodes need not see it.
    """
    text = str(load_path)
    if "://" not in text and "{" not in text and get_global_rank() == 0:
        find_file(Path(text).expanduser())
