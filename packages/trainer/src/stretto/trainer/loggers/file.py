"""A log file for each rank."""

from __future__ import annotations

import contextlib
import json
import threading
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.core_events import LoggerDestination
from stretto.run_directory import get_node_run_directory, rank
from stretto.trainer.checkpoint.naming import RUN_VARIABLES, check_template
from stretto.trainer.loggers._streams import StreamCopy

if TYPE_CHECKING:
    from io import FileIO

    from stretto.core_events import Logger, State, Traces

_MOST_WAITING = 10_000


class FileLogger(LoggerDestination["State"]):
    """Writes metrics, settings, traces and what the program prints to a text file.

    A line begins with what it is: ``[metric][batch=12]``, ``[hyperparameter]``, ``[trace]``,
    ``[stdout]``, ``[stderr]``. Metrics are JSON objects.

    Args:
        filename: Where to write. Variables: ``{run_name} {run_directory} {rank} {local_rank}
            {world_size} {local_world_size} {node_rank}``. Default: in the rank's run directory.
        remote_file_name: The name under which loggers that store files get it at the end; None
            for not at all. The same variables.
        capture_stdout: Whether to copy what is written to `sys.stdout`.
        capture_stderr: Whether to copy what is written to `sys.stderr`.
        buffer_size: Lines kept before they are written; 1 writes every line at once.
        log_traces: Whether to write what algorithms did.
        flush_interval: After this many batches everything kept is written.
        overwrite: Whether to begin a file that is there anew. Default: write behind what it holds.

    A disk that is full or gone stops neither the run nor a `print`: one warning, and the lines wait
    (the last 10,000) until it takes them.

    Raises:
        ValueError: A variable is unknown, or a number is less than 1.
    """

    def __init__(
        self,
        filename: str = "{run_directory}/rank_{rank}/logs.txt",
        remote_file_name: str | None = None,
        *,
        capture_stdout: bool = True,
        capture_stderr: bool = True,
        buffer_size: int = 1,
        log_traces: bool = True,
        flush_interval: int = 100,
        overwrite: bool = False,
    ) -> None:
        for name, value in (("buffer_size", buffer_size), ("flush_interval", flush_interval)):
            if value < 1:
                raise ValueError(f"{name} is {value}. Give 1 or more.")
        self._template = check_template("filename", filename, moving=False)
        self._remote_template = check_template(
            "remote_file_name", remote_file_name or "", moving=False
        )
        self._captured = [
            name
            for name, wanted in (("stdout", capture_stdout), ("stderr", capture_stderr))
            if wanted
        ]
        self._buffer_size = buffer_size
        self._with_traces = log_traces
        self._flush_interval = flush_interval
        self._overwrite = overwrite
        self._lines: list[bytes] = []
        self._file: FileIO | None = None
        self._copies: list[StreamCopy] = []
        self._lock = threading.RLock()
        self._refused = False
        self.path: Path | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Open the file and begin to copy what is printed."""
        del logger
        if self._file is not None:
            return
        self.path = Path(_format(self._template, state))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered, so that it is known what the disk did not take.
        self._file = self.path.open("wb" if self._overwrite else "ab", buffering=0)
        self._copies = [StreamCopy(name, partial(self.write_line, name)) for name in self._captured]
        self._write_waiting()

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Write the settings of the run."""
        for name, value in hyperparameters.items():
            self.write_line("hyperparameter", f"{name}: {value}")

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write metrics as one JSON object."""
        place = "metric" if step is None else f"metric][batch={step}"
        self.write_line(place, json.dumps(dict(metrics)))

    def log_traces(self, traces: Traces) -> None:
        """Write what algorithms did, if asked for."""
        if self._with_traces:
            for name, trace in traces.items():
                self.write_line("trace", f"{name}: exit code {trace.exit_code}")

    def batch_end(self, state: State, logger: Logger) -> None:
        """Write what is kept, if it is time."""
        del logger
        if state.timestamp.batch_count % self._flush_interval == 0:
            self._write_waiting()

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Write what is kept."""
        del state
        logger.flush()
        self._write_waiting()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Write what is kept."""
        del state
        logger.flush()
        self._write_waiting()

    def eval_end(self, state: State, logger: Logger) -> None:
        """Write what is kept."""
        del state
        logger.flush()
        self._write_waiting()

    def close(self, state: State, logger: Logger) -> None:
        """Stop copying, close the file, and hand it to loggers that store files."""
        for copy in self._copies:
            copy.stop()
        self._copies = []
        if self._file is None or self.path is None:
            return
        self._write_waiting()
        with contextlib.suppress(OSError):
            self._file.close()
        self._file = None
        if self._remote_template:
            logger.upload_file(
                _format(self._remote_template, state), self.path, overwrite=self._overwrite
            )

    def write_line(self, kind: str, text: str) -> None:
        """Write a line, or keep it until enough have come together.

        Args:
            kind: What stands in the brackets before it.
            text: The line.
        """
        with self._lock:
            self._lines.append(f"[{kind}]: {text}\n".encode(errors="backslashreplace"))
            if len(self._lines) >= self._buffer_size:
                self._write_waiting()

    def _write_waiting(self) -> None:
        with self._lock:
            if self._file is None:
                return
            waiting = memoryview(b"".join(self._lines))
            try:
                while waiting:
                    waiting = waiting[self._file.write(waiting) :]
            except OSError as error:
                self._lines = waiting.tobytes().splitlines(keepends=True)[-_MOST_WAITING:]
                if not self._refused:
                    self._refused = True
                    warnings.warn(f"the log file {self.path} takes nothing: {error}", stacklevel=2)
            else:
                self._lines = []
                self._refused = False


def _format(template: str, state: State) -> str:
    values = {
        "run_name": state.run_name,
        "run_directory": get_node_run_directory(),
        "rank": rank.get_global_rank(),
        "local_rank": rank.get_local_rank(),
        "world_size": rank.get_world_size(),
        "local_world_size": rank.get_local_world_size(),
        "node_rank": rank.get_node_rank(),
    }
    assert set(values) == set(RUN_VARIABLES)
    return template.format_map(values)
