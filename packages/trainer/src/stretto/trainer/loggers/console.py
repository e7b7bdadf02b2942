"""Lines on the console."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from stretto.core_events import (
    Event,
    LoggerDestination,
    Time,
    TimeUnit,
    create_interval_scheduler,
    ensure_time,
)
from stretto.run_directory.rank import get_global_rank
from stretto.trainer.loggers._progress import evaluation_progress, train_progress

if TYPE_CHECKING:
    from stretto.core_events import Logger, State, Traces


class ConsoleLogger(LoggerDestination["State"]):
    """Writes hyperparameters, training metrics at an interval, and every evaluation's metrics.

    What was reported since the last line is written at the end of the run, and, where the interval
    is shorter than an epoch, of each epoch, too.

    Args:
        log_interval: How often training metrics are written; a number is in epochs. Default:
            every batch.
        stream: Where to write; standard error by default. Only rank 0 writes.
        log_traces: Whether to write what algorithms did.

    Raises:
        ValueError: `log_interval` is no time.
    """

    def __init__(
        self,
        log_interval: int | str | Time = "1ba",
        stream: TextIO | None = None,
        log_traces: bool = False,
    ) -> None:
        self._counts_epochs = ensure_time(log_interval).unit is TimeUnit.EPOCH
        self._is_due = create_interval_scheduler(log_interval, checkpoint_events=False)
        self._stream = stream or sys.stderr
        self._with_traces = log_traces
        self._silent = get_global_rank() != 0
        self._latest: dict[str, float] = {}
        self._evaluation: dict[str, float] | None = None

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Write the settings of the run, one a line."""
        self._write("config:", *(f"  {name}: {value}" for name, value in hyperparameters.items()))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep the newest value of each metric for the next line."""
        del step
        if self._evaluation is not None:
            self._evaluation.update(metrics)
        else:
            self._latest.update(metrics)

    def log_traces(self, traces: Traces) -> None:
        """Write what algorithms did, if asked for."""
        if self._with_traces:
            self._write(*(f"trace {name}: {trace}" for name, trace in traces.items()))

    def batch_end(self, state: State, logger: Logger) -> None:
        """Write the metrics of training, if it is time."""
        if self._is_due(state, Event.BATCH_END):
            self._write_training(state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Write what no line has shown yet, such as the metrics of the epoch, if it is time."""
        logger.flush()
        leftovers = self._latest and not self._counts_epochs
        if self._is_due(state, Event.EPOCH_END) or leftovers:
            self._write_training(state, logger, ended=True)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Write the metrics of training that no line has shown yet."""
        logger.flush()
        if self._latest:
            self._write_training(state, logger, ended=True)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Collect the metrics of this evaluation apart from those of training."""
        del state
        logger.flush()
        self._evaluation = {}

    def eval_end(self, state: State, logger: Logger) -> None:
        """Write the metrics of the evaluation."""
        logger.flush()
        progress = evaluation_progress(state)
        metrics, self._evaluation = self._evaluation or {}, None
        self._write(f"[{progress.title}]", *_lines(metrics))

    def _write_training(self, state: State, logger: Logger, *, ended: bool = False) -> None:
        logger.flush()
        progress = train_progress(state, ended=ended)
        total = "" if progress.total is None else f"/{progress.total:g}"
        heading = f"[{progress.title} {progress.done:g}{total} {progress.unit}]"
        metrics, self._latest = self._latest, {}
        self._write(heading, *_lines(metrics))

    def _write(self, *lines: str) -> None:
        if lines and not self._silent:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()


def _lines(metrics: Mapping[str, float]) -> list[str]:
    return [f"  {name}: {value:.4f}" for name, value in metrics.items()]
