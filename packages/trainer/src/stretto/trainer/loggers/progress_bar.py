"""A bar for each loop, in place on a terminal, sparse lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from stretto.core_events import LoggerDestination, TimeUnit
from stretto.run_directory.rank import get_global_rank
from stretto.trainer.loggers._progress import (
    Progress,
    evaluation_progress,
    format_metrics,
    train_progress,
)
from stretto.trainer.loggers._streams import AboveBars, is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from stretto.core_events import Logger, State, Traces

_REFRESH_SECONDS = 0.1


class ProgressBarLogger(LoggerDestination["State"]):
    """Shows the progress of training and evaluation with the newest loss and metrics.

    On a terminal there is one bar a loop, drawn in place; a finished one stays as a line. An
    evaluation during training has a bar of its own under that of training, which stays. Where
    the stream is no terminal, one line is written when a loop ends.

    Args:
        stream: Where to draw; standard error by default. Only rank 0 draws.
        log_traces: Whether to write what algorithms did.
    """

    def __init__(self, stream: TextIO | None = None, log_traces: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._stand_ins: list[AboveBars] = []
        self._with_traces = log_traces
        self._silent = get_global_rank() != 0
        self._display: RichProgress | None = None
        self._training = False
        self._train_bar: TaskID | None = None
        self._evaluation_bar: TaskID | None = None
        self._train_metrics: dict[str, float] = {}
        self._evaluation_metrics: dict[str, float] | None = None
        self._drawn = 0.0

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep what a bar shows beside it."""
        del step
        shown = {name: value for name, value in metrics.items() if _is_shown(name)}
        if self._evaluation_metrics is not None:
            self._evaluation_metrics.update(shown)
        else:
            self._train_metrics.update(shown)

    def log_traces(self, traces: Traces) -> None:
        """Write what algorithms did, if asked for."""
        if self._with_traces and not self._silent:
            self._write_line("\n".join(f"trace {name}: {trace}" for name, trace in traces.items()))

    def fit_start(self, state: State, logger: Logger) -> None:
        """Begin a bar."""
        self._start_train_bar(state)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Begin a bar, unless one for the whole run is there."""
        self._start_train_bar(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Move the bar, at most ten times a second."""
        del logger
        now = time.monotonic()
        if self._silent or self._display is None or now - self._drawn < _REFRESH_SECONDS:
            return
        self._drawn = now
        self._move(self._train_bar, train_progress(state), self._train_metrics)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Finish the bar, if it is that of the epoch."""
        maximum = state.max_duration
        if maximum is None or maximum.unit is TimeUnit.EPOCH:
            logger.flush()
            self._finish_train_bar(train_progress(state, ended=True))

    def fit_end(self, state: State, logger: Logger) -> None:
        """Finish whatever bar is left."""
        logger.flush()
        self._finish_train_bar(train_progress(state, ended=True))
        self._train_metrics = {}
        self._stop_if_idle()

    def eval_start(self, state: State, logger: Logger) -> None:
        """Begin a bar under that of training."""
        logger.flush()
        self._evaluation_metrics = {}
        if not self._silent:
            self._evaluation_bar = self._add(evaluation_progress(state))

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Move the bar of the evaluation."""
        del logger
        if not self._silent:
            self._move(self._evaluation_bar, evaluation_progress(state), {})

    def eval_end(self, state: State, logger: Logger) -> None:
        """Finish the bar of the evaluation."""
        logger.flush()
        metrics, self._evaluation_metrics = self._evaluation_metrics or {}, None
        self._finish(self._evaluation_bar, evaluation_progress(state), metrics)
        self._evaluation_bar = None

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """Give the terminal back."""
        self._stop_if_idle()

    def close(self, state: State, logger: Logger) -> None:
        """Give the terminal back."""
        self._train_bar = self._evaluation_bar = None
        self._stop_if_idle()

    def _start_train_bar(self, state: State) -> None:
        if self._silent or self._training:
            return
        self._training = True
        self._train_bar = self._add(train_progress(state))

    def _finish_train_bar(self, progress: Progress) -> None:
        if not self._training:
            return
        self._finish(self._train_bar, progress, self._train_metrics)
        self._training = False
        self._train_bar = None

    def _add(self, progress: Progress) -> TaskID | None:
        if not is_terminal(self._stream):
            return None
        if self._display is None:
            self._display = _make_display(self._stream)
            self._display.start()
            self._stand_ins = [
                AboveBars(name, self._write_line)
                for name in ("stdout", "stderr")
                if is_terminal(getattr(sys, name))
            ]
        return self._display.add_task(progress.title, total=progress.total, metrics="")

    def _move(self, bar: TaskID | None, progress: Progress, metrics: dict[str, float]) -> None:
        if bar is None or self._display is None:
            return
        self._display.update(
            bar,
            description=progress.title,
            completed=progress.done,
            total=progress.total,
            metrics=format_metrics(metrics, 4),
        )

    def _finish(self, bar: TaskID | None, progress: Progress, metrics: dict[str, float]) -> None:
        if self._silent:
            return
        if bar is None or self._display is None:
            total = "" if progress.total is None else f"/{progress.total:g}"
            place = f"{progress.title}: {progress.done:g}{total} {progress.unit}"
            self._write_line("  ".join(part for part in (place, format_metrics(metrics)) if part))
            return
        self._move(bar, progress, metrics)
        tasks = [task for task in self._display.tasks if task.id == bar]
        self._display.console.print(self._display.make_tasks_table(tasks))
        self._display.remove_task(bar)

    def _write_line(self, line: str) -> None:
        if self._display is not None:
            self._display.console.print(line, markup=False, highlight=False)
        elif not self._stream.closed:
            self._stream.write(line + "\n")
            self._stream.flush()

    def _stop_if_idle(self) -> None:
        idle = self._train_bar is None and self._evaluation_bar is None
        if idle and self._display is not None:
            self._display.stop()
            self._display = None
            for stand_in in self._stand_ins:
                stand_in.stop()
            self._stand_ins = []


def _is_shown(name: str) -> bool:
    return name.startswith(("loss/", "metrics/"))


def _make_display(stream: TextIO) -> RichProgress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metrics]}"),
        console=Console(file=stream),
        refresh_per_second=4,
        redirect_stdout=False,  # AboveBars does it
        redirect_stderr=False,
    )
