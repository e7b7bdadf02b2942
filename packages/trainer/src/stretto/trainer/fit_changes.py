"""What a call of `fit` changes in a run: all of it is checked before any of it is applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stretto.core_events import Timestamp
from stretto.trainer.arguments import check_evaluators, check_schedulers, check_train_dataloader
from stretto.trainer.build import check_data_for, use_train_data
from stretto.trainer.evaluator import check_subset
from stretto.trainer.loop.limits import check_extension
from stretto.trainer.microbatching import check_microbatch_size
from stretto.trainer.optim.plan import SchedulerPlan
from stretto.trainer.precision import make_precision_policy

if TYPE_CHECKING:
    from stretto.core_events import TimeInput
    from stretto.trainer.data.spec import DataSpec
    from stretto.trainer.precision import Precision
    from stretto.trainer.state import State


class FitChanges:
    """The arguments of `Trainer.fit`, which say what they mean; checked on construction.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a value is out of range or would change nothing.
    """

    def __init__(
        self,
        state: State,
        *,
        train_dataloader: DataSpec | Iterable[Any] | Mapping[str, Any] | None,
        train_dataloader_label: str,
        train_subset_num_batches: int | None,
        duration: TimeInput | None,
        schedulers: Any,
        scale_schedule_ratio: float,
        step_schedulers_every_batch: bool | None,
        eval_dataloader: Any,
        eval_subset_num_batches: int,
        eval_interval: Any,
        device_train_microbatch_size: int | None,
        precision: str | Precision | None,
    ) -> None:
        if scale_schedule_ratio != 1.0 and duration is None and schedulers is None:
            raise ValueError(
                f"scale_schedule_ratio={scale_schedule_ratio} would change nothing: it stretches "
                "the duration and schedulers of the same call, so pass one of them too"
            )
        if not scale_schedule_ratio > 0:
            raise ValueError(f"scale_schedule_ratio must be above 0, got {scale_schedule_ratio}")
        topology = state.topology
        check_subset("train_subset_num_batches", train_subset_num_batches)
        check_subset("eval_subset_num_batches", eval_subset_num_batches)
        self._label = train_dataloader_label
        self._train = check_train_dataloader(train_dataloader, train_dataloader_label)
        self._evaluators = check_evaluators(eval_dataloader, eval_interval, eval_subset_num_batches)
        self._replaces_evaluators = eval_dataloader is not None
        check_data_for(topology, self._train, train_dataloader_label, self._evaluators)
        self._metrics = {e.label: e.make_metrics(state.model) for e in self._evaluators}
        self._microbatch_size = check_microbatch_size(device_train_microbatch_size)
        self._duration = (
            None if duration is None else check_extension(duration, scale_schedule_ratio)
        )
        self.schedulers: SchedulerPlan | None = None
        if schedulers is not None:
            self.schedulers = SchedulerPlan(
                check_schedulers(schedulers), scale_schedule_ratio, step_schedulers_every_batch
            )
        self._precision = (
            None if precision is None else make_precision_policy(precision, state.device, topology)
        )

    def apply(self, state: State, limit: int | None, *, reset_time: bool) -> None:
        """Change the run; to be called on every rank.

        Args:
            state: The run.
            limit: Most batches in an epoch, None for all.
            reset_time: Whether to count from zero again.
        """
        if self._train is not None:
            self._replace_train_data(state, self._train, limit)
        if self._replaces_evaluators:
            state.eval_metrics.update(self._metrics)
            state.data_state.evaluators = self._evaluators
        if self._microbatch_size is not None:
            state.execution.device_train_microbatch_size = self._microbatch_size
        if self._precision is not None:
            state.model_state.precision = self._precision
        if reset_time:
            state.timestamp = Timestamp()
        if self._duration is not None:
            state.max_duration = self._duration + state.timestamp.get(self._duration.unit)

    def _replace_train_data(self, state: State, spec: DataSpec, limit: int | None) -> None:
        """Take new data: an epoch of others ends, one that a checkpoint left goes on."""
        if state.data_state.train is not None:
            state.data_state.position.pending_generators = None
            if state.timestamp.batch_in_epoch_count:
                state.timestamp = state.timestamp.to_next_epoch()
        use_train_data(state, spec, self._label, limit)
