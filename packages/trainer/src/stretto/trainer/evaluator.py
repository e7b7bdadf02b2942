"""An evaluation: data, metrics, and when to run it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch.utils.data import DataLoader

from stretto.core_events import Event, create_interval_scheduler
from stretto.trainer._loose import is_sequence
from stretto.trainer.data.spec import DataSpec, ensure_data_spec
from stretto.trainer.microbatching import check_microbatch_size

if TYPE_CHECKING:
    from torchmetrics import Metric

    from stretto.core_events import TimeInput
    from stretto.trainer.models import ComposerModel
    from stretto.trainer.state import State

    EvalInterval = TimeInput | Callable[[State, Event], bool]

DEFAULT_LABEL = "eval"


class Evaluator:
    """One evaluation of a run.

    Args:
        label: Its name in the metrics' keys, `metrics/<label>/<metric>`.
        dataloader: Its data.
        metric_names: Which of the model's metrics to compute; all by default.
        subset_num_batches: Most batches to use; -1 for all, None for the trainer's value.
        eval_interval: When to run while training: a time, a number of epochs, or a function
            `(state, event) -> bool` that is asked at BATCH_END, EPOCH_END and FIT_END; 0 for
            never, None for the trainer's value.
        device_eval_microbatch_size: Most samples in one forward pass; None for the whole batch.

    Raises:
        ValueError: If the label is empty or a number is out of range.
    """

    def __init__(
        self,
        *,
        label: str,
        dataloader: DataSpec | Iterable[Any] | Mapping[str, Any],
        metric_names: Sequence[str] | None = None,
        subset_num_batches: int | None = None,
        eval_interval: EvalInterval | None = None,
        device_eval_microbatch_size: int | None = None,
    ) -> None:
        if not label:
            raise ValueError("an evaluator's label must not be empty: it names its metrics")
        check_subset("subset_num_batches", subset_num_batches)
        self.label = label
        self.dataloader = ensure_data_spec(dataloader)
        self.metric_names = None if metric_names is None else list(metric_names)
        self.subset_num_batches = subset_num_batches
        self.device_eval_microbatch_size = check_microbatch_size(device_eval_microbatch_size)
        self._eval_interval: EvalInterval | None = None
        self._is_due: Callable[[Any, Event], bool] | None = None
        self.eval_interval = eval_interval

    @property
    def eval_interval(self) -> EvalInterval | None:
        """When to run while training; set it with anything that the constructor takes."""
        return self._eval_interval

    @eval_interval.setter
    def eval_interval(self, interval: EvalInterval | None) -> None:
        self._eval_interval = interval
        self._is_due = None
        if interval is not None:
            self._is_due = create_interval_scheduler(
                cast("Any", interval), checkpoint_events=False, final_events={Event.FIT_END}
            )

    def is_due(self, state: State, event: Event) -> bool:
        """Whether to run now."""
        return self._is_due is not None and self._is_due(state, event)

    def make_metrics(self, model: ComposerModel) -> dict[str, Metric]:
        """Return the metrics of this evaluation, its own copies.

        Raises:
            ValueError: If the model has no metric of a name that was asked for.
        """
        available = model.get_metrics(is_train=False)
        names = list(available) if self.metric_names is None else self.metric_names
        unknown = [name for name in names if name not in available]
        if unknown:
            raise ValueError(
                f"evaluator {self.label!r} asks for the metrics {', '.join(unknown)}, but the "
                f"model has {', '.join(available) or 'none'}"
            )
        return {name: copy.deepcopy(available[name]) for name in names}


def ensure_evaluators(
    given: Any, eval_interval: EvalInterval, subset_num_batches: int
) -> list[Evaluator]:
    """Return the evaluators that an `eval_dataloader` argument stands for.

    Args:
        given: None, a dataloader, a DataSpec, an Evaluator, or a sequence in which these may be
            mixed. A sequence without any of them is itself a dataloader, a list of batches.
        eval_interval: For those that have none of their own.
        subset_num_batches: For those that have none of their own.

    Raises:
        ValueError: If an entry is none of these or two have the same label.
    """
    evaluators = [
        _fill_defaults(_ensure(entry, label), eval_interval, subset_num_batches)
        for label, entry in _entries(given)
    ]
    labels = [evaluator.label for evaluator in evaluators]
    double = sorted({label for label in labels if labels.count(label) > 1})
    if double:
        raise ValueError(f"two evaluators are called {', '.join(double)}: give them other labels")
    return evaluators


def check_subset(name: str, batches: int | None) -> None:
    """Check a number of batches.

    Raises:
        ValueError: If it is neither -1, for all, nor at least 1.
    """
    if batches is not None and batches != -1 and batches < 1:
        raise ValueError(f"{name} must be -1 for all batches, or at least 1, got {batches}")


def _entries(given: Any) -> list[tuple[str, Any]]:
    if given is None:
        return []
    if not is_sequence(given):
        return [(DEFAULT_LABEL, given)]
    entries = list(given)
    if not any(isinstance(entry, Evaluator | DataSpec | DataLoader) for entry in entries):
        return [(DEFAULT_LABEL, entries)] if entries else []
    unnamed = sum(not isinstance(entry, Evaluator) for entry in entries)
    return [
        (DEFAULT_LABEL if unnamed == 1 else f"{DEFAULT_LABEL}_{place}", entry)
        for place, entry in enumerate(entries)
    ]


def _fill_defaults(
    evaluator: Evaluator, eval_interval: EvalInterval, subset_num_batches: int
) -> Evaluator:
    """Return a copy with defaults where the evaluator, which stays as it is, has nothing."""
    filled = copy.copy(evaluator)
    if filled.eval_interval is None:
        filled.eval_interval = eval_interval
    if filled.subset_num_batches is None:
        filled.subset_num_batches = subset_num_batches
    return filled


def _ensure(entry: Any, label: str) -> Evaluator:
    if isinstance(entry, Evaluator):
        return entry
    return Evaluator(label=label, dataloader=entry)
