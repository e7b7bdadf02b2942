"""Build a trainer's parts, in an order that is data.

Surgery comes before wrapping, since wrapping replaces parameters; loading comes after, since then
the names and the optimizers are those that the checkpoint knows. A step that fails undoes what the
steps before it left open.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.core_events import Engine, Event, Logger, ensure_time
from stretto.trainer import dist
from stretto.trainer._loose import is_sequence
from stretto.trainer.arguments import Checked, TrainerArguments, check
from stretto.trainer.data.resume import DataPosition
from stretto.trainer.data.sampler import check_distributed
from stretto.trainer.data.spec import dataloader_length
from stretto.trainer.devices import get_device
from stretto.trainer.distributed.process_group import initialize_dist
from stretto.trainer.distributed.topology import Topology
from stretto.trainer.loop.losses import resolve_scalars
from stretto.trainer.naming import choose_run_name
from stretto.trainer.optim.decoupled import DecoupledSGDW
from stretto.trainer.optim.plan import SchedulerPlan
from stretto.trainer.parallel import make_strategy
from stretto.trainer.precision import make_precision_policy
from stretto.trainer.seeding import choose_seed, configure_deterministic_mode, seed_all
from stretto.trainer.state import DataState, ExecutionState, ModelState, State

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from stretto.core_events import LoggerDestination
    from stretto.trainer.checkpoint import CheckpointSaver
    from stretto.trainer.data.spec import DataSpec
    from stretto.trainer.devices import Device
    from stretto.trainer.evaluator import Evaluator
    from stretto.trainer.parallel import ParallelStrategy
    from stretto.trainer.precision import PrecisionPolicy

DEFAULT_LEARNING_RATE = 0.1
RUN_DIRECTORY_VARIABLES = ("STRETTO_RUN_DIRECTORY", "COMPOSER_RUN_DIRECTORY")


class Build:
    """A trainer in the making; each step fills in what later steps need.

    Args:
        arguments: What the trainer was given.
    """

    checked: Checked
    device: Device
    strategy: ParallelStrategy
    precision: PrecisionPolicy
    seed: int
    run_name: str
    state: State
    logger: Logger
    engine: Engine[State]
    schedulers: SchedulerPlan

    def __init__(self, arguments: TrainerArguments) -> None:
        self.arguments = arguments
        self.saver: CheckpointSaver | None = None
        self.new_folders: list[Path] = []
        self._variables = {name: os.environ.get(name) for name in RUN_DIRECTORY_VARIABLES}

    @property
    def topology(self) -> Topology:
        """This rank's place among all."""
        return self.strategy.topology

    def run(self) -> Build:
        """Take all steps in order.

        Raises:
            Exception: What a step raised, after everything was closed again.
        """
        try:
            for _, step in BUILD_ORDER:
                step(self)
        except BaseException:
            self._undo()
            raise
        return self

    def _undo(self) -> None:
        """Close what is open, and leave files and environment as they were."""
        engine = getattr(self, "engine", None)
        if engine is not None:
            with suppress(Exception):
                engine.close()
        for folder in reversed(self.new_folders):
            with suppress(OSError):
                folder.rmdir()  # only if nothing was put there
        for name, value in self._variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def check_arguments(build: Build) -> None:
    """Refuse what cannot work before anything is made."""
    build.checked = check(build.arguments)


def choose_device(build: Build) -> None:
    """Choose the device and start the process group of several ranks."""
    build.device = get_device(build.arguments.device)
    initialize_dist(build.device, build.arguments.dist_timeout)


def choose_strategy(build: Build) -> None:
    """Choose precision and parallelism."""
    a, topology = build.arguments, Topology.from_environment()
    build.precision = make_precision_policy(a.precision, build.device, topology)
    build.strategy = make_strategy(
        a.parallelism_config,
        topology,
        build.device,
        ddp_sync_strategy=a.ddp_sync_strategy,
        precision=build.precision.precision,
        timeout=a.dist_timeout,
    )


def check_data(build: Build) -> None:
    """Refuse loaders that would give every rank the same samples."""
    label = build.arguments.train_dataloader_label
    check_data_for(build.topology, build.checked.train, label, build.checked.evaluators)


def check_data_for(
    topology: Topology, train: DataSpec | None, label: str, evaluators: list[Evaluator]
) -> None:
    """Refuse loaders that would give every rank the same samples.

    Raises:
        ValueError: If there is one.
    """
    if train is not None:
        check_distributed(train.dataloader, topology, label)
    for evaluator in evaluators:
        check_distributed(evaluator.dataloader.dataloader, topology, evaluator.label)


def seed_and_name(build: Build) -> None:
    """Agree on seed and name with rank 0, and seed this rank."""
    a = build.arguments
    if a.deterministic_mode:
        configure_deterministic_mode()
    shared: list[Any] = [
        choose_seed() if a.seed is None else a.seed,
        a.run_name or choose_run_name(),
    ]
    dist.broadcast_object_list(shared)
    build.seed, build.run_name = shared
    seed_all(build.seed + build.topology.data_parallel_rank)


def settle_run_directory(build: Build) -> None:
    """Settle where the run keeps its files, and make the place if something may write there."""
    from stretto import run_directory

    given = build.arguments.run_directory
    node: list[Any] = [
        run_directory.set_run_directory(given) if dist.get_global_rank() == 0 else ""
    ]
    dist.broadcast_object_list(node)
    run_directory.set_run_directory(node[0])
    dist.barrier()  # no rank makes a folder while another still looks whether there is one
    checked = build.checked
    if given is None and not checked.callbacks and not checked.loggers:
        return
    own = Path(run_directory.get_run_directory())
    build.new_folders = [folder for folder in (*reversed(own.parents), own) if not folder.exists()]
    run_directory.create_run_directory()


def make_state(build: Build) -> None:
    """Make the state."""
    a, checked = build.arguments, build.checked
    build.state = State(
        run_name=build.run_name,
        rank_zero_seed=build.seed,
        max_duration=checked.max_duration,
        model_state=ModelState(
            model=a.model,
            optimizers=checked.optimizers or [_default_optimizer(a)],
            precision=build.precision,
        ),
        data_state=DataState(
            position=DataPosition(ranks=build.topology.data_parallel_size),
            train=checked.train,
            evaluators=checked.evaluators,
        ),
        execution=ExecutionState(
            device=build.device,
            topology=build.topology,
            strategy=build.strategy,
            device_train_microbatch_size=checked.microbatch_size,
            accumulate_train_batch_on_tokens=a.accumulate_train_batch_on_tokens,
            save_metrics=a.save_metrics,
        ),
        algorithms=checked.algorithms,
        callbacks=checked.callbacks,
    )
    if checked.train is not None:
        use_train_data(build.state, checked.train, a.train_dataloader_label, limit_of(a))
    build.state.model_state.train_metrics = dict(a.model.get_metrics(is_train=True))
    add_metrics(build.state, checked.evaluators)


def make_engine(build: Build) -> None:
    """Make the loggers, the checkpoint saver and the engine."""
    a, state = build.arguments, build.state
    if a.save_folder is not None:
        from stretto.trainer.checkpoint import CheckpointSaver

        build.saver = CheckpointSaver(
            folder=str(a.save_folder),
            filename=a.save_filename,
            latest_filename=a.save_latest_filename,
            save_interval=a.save_interval,
            overwrite=a.save_overwrite,
            weights_only=a.save_weights_only,
            load_path=None if a.load_path is None else str(a.load_path),
        )
        state.callbacks.append(build.saver)
    build.logger = Logger(
        state, [*build.checked.loggers, *_automatic_loggers(build)], resolver=resolve_scalars
    )
    passes: Any = a.algorithm_passes
    if passes is not None and (callable(passes) or _is_pass_with_index(passes)):
        passes = [passes]
    build.engine = Engine(state, build.logger, passes)


def run_init(build: Build) -> None:
    """Let algorithms change the model and callbacks set themselves up; report the settings."""
    build.engine.run_event(Event.INIT)
    topology = build.topology
    enabled = {f"enabled_algorithms/{type(a).__name__}": True for a in build.state.algorithms}
    build.logger.log_hyperparameters(
        {
            "rank_zero_seed": build.seed,
            "num_nodes": topology.num_nodes,
            "num_ranks": topology.world_size,
            "node_name": platform.node(),
            "strategy": build.strategy.name,
            "precision": build.precision.precision.value,
            **enabled,
        }
    )


def wrap(build: Build) -> None:
    """Move the model to the device and spread it over the ranks; rebind the optimizers."""
    state = build.state
    unused = any(algorithm.find_unused_parameters for algorithm in state.algorithms)
    prepared = build.strategy.prepare(
        state.model, state.optimizers, build.device, find_unused_parameters=unused
    )
    state.model_state.prepared = prepared
    state.model_state.optimizers = list(prepared.optimizers)


def make_schedulers(build: Build) -> None:
    """Bind the schedules to the optimizers, if the duration is known already."""
    a = build.arguments
    build.schedulers = SchedulerPlan(
        build.checked.schedulers, a.scale_schedule_ratio, a.step_schedulers_every_batch
    )
    build.schedulers.bind_own(build.state)
    if build.state.max_duration is not None and build.checked.train is not None:
        build.schedulers.bind(build.state)


def load(build: Build) -> None:
    """Load a checkpoint."""
    a, state = build.arguments, build.state
    build.engine.run_event(Event.BEFORE_LOAD)
    if a.load_path is not None:
        from stretto.trainer.checkpoint import load_checkpoint

        state.data_state.position.pending_rng = load_checkpoint(
            state,
            str(a.load_path),
            weights_only=a.load_weights_only,
            strict_model_weights=a.load_strict_model_weights,
        )
    build.engine.run_event(Event.AFTER_LOAD)


BUILD_ORDER: tuple[tuple[str, Callable[[Build], None]], ...] = (
    ("check the arguments", check_arguments),
    ("device and process group", choose_device),
    ("precision and parallelism", choose_strategy),
    ("check the data", check_data),
    ("seed and name", seed_and_name),
    ("run directory", settle_run_directory),
    ("state", make_state),
    ("engine", make_engine),
    ("INIT: surgery", run_init),
    ("wrap: move, shard, rebind optimizers", wrap),
    ("schedulers", make_schedulers),
    ("load", load),
)
"""The steps of the build, by name. Tensor parallelism, activation checkpointing and compilation
have their place between INIT and wrapping, materialisation within it."""


def use_train_data(state: State, spec: DataSpec, label: str, limit: int | None) -> None:
    """Make training data the current ones; to be called on every rank."""
    length = dataloader_length(spec.dataloader)
    if limit is not None:
        length = limit if length is None else min(length, limit)
    if state.topology.world_size > 1:
        # An epoch ends for all when the first rank has no more batches.
        lengths = dist.all_gather_object(length)
        length = None if None in lengths else min(n for n in lengths if n is not None)
    state.data_state.train = spec
    state.set_dataloader(spec.dataloader, label, length)


def add_metrics(state: State, evaluators: list[Evaluator]) -> None:
    """Give each evaluator metrics of its own."""
    for evaluator in evaluators:
        state.eval_metrics[evaluator.label] = evaluator.make_metrics(state.model)


def limit_of(arguments: TrainerArguments) -> int | None:
    """Return the most batches in an epoch, None for all."""
    batches = arguments.train_subset_num_batches
    return None if batches == -1 else batches


def _default_optimizer(arguments: TrainerArguments) -> Optimizer:
    return DecoupledSGDW(arguments.model.parameters(), lr=DEFAULT_LEARNING_RATE)


def _is_pass_with_index(passes: Any) -> bool:
    return is_sequence(passes) and len(passes) == 2 and isinstance(passes[1], int)


def _automatic_loggers(build: Build) -> list[LoggerDestination[Any]]:
    a = build.arguments
    if not a.progress_bar and not a.log_to_console:
        return []
    from stretto.trainer.loggers.automatic import make_automatic_loggers

    return make_automatic_loggers(
        build.checked.loggers,
        progress_bar=a.progress_bar,
        log_to_console=a.log_to_console,
        console_stream=a.console_stream,
        console_log_interval=ensure_time(a.console_log_interval),
    )
