"""Metrics kept in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stretto.core_events import LoggerDestination, Timestamp

if TYPE_CHECKING:
    import numpy as np

    from stretto.core_events import Logger, State

_MOST_RECENT = 1024
_FIELDS = ("iteration", "epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch")


class InMemoryLogger(LoggerDestination["State"]):
    """Keeps every metric with the time at which it was reported.

    Attributes:
        data: For each metric its values, oldest first, each with its timestamp.
        hyperparameters: The settings of the run.
    """

    def __init__(self) -> None:
        self.data: dict[str, list[tuple[Timestamp, float]]] = {}
        self.hyperparameters: dict[str, Any] = {}
        self._now = Timestamp()
        # Reports may arrive some batches late; these are the timestamps they belong to.
        self._recent: dict[int, Timestamp] = {}

    @property
    def most_recent_values(self) -> dict[str, float]:
        """The newest value of each metric."""
        return {name: values[-1][1] for name, values in self.data.items()}

    @property
    def most_recent_timestamps(self) -> dict[str, Timestamp]:
        """The time of the newest value of each metric."""
        return {name: values[-1][0] for name, values in self.data.items()}

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Keep the settings of the run."""
        self.hyperparameters.update(hyperparameters)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep metrics with the timestamp after batch `step`."""
        timestamp = self._now if step is None else self._recent.get(step, self._now)
        for name, value in metrics.items():
            self.data.setdefault(name, []).append((timestamp, float(value)))

    def fit_start(self, state: State, logger: Logger) -> None:
        """Note where the run stands."""
        self._note(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Note where the run stands."""
        self._note(state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Note where the run stands."""
        self._note(state)

    def get_timeseries(self, metric: str) -> dict[str, np.ndarray[Any, Any]]:
        """Return a metric over time, as arrays of one length.

        Args:
            metric: Its full name, such as ``loss/train/total``.

        Returns:
            The values under the metric's name, and the counts of the timestamp under ``epoch``,
            ``batch``, ``sample``, …

        Raises:
            ValueError: No such metric was reported.
        """
        import numpy as np

        if metric not in self.data:
            known = ", ".join(sorted(self.data)) or "none so far"
            raise ValueError(f"no metric {metric!r} was reported. There are: {known}.")
        rows = self.data[metric]
        series = {
            field: np.array([getattr(timestamp, field).value for timestamp, _ in rows])
            for field in _FIELDS
        }
        return series | {metric: np.array([value for _, value in rows])}

    def _note(self, state: State) -> None:
        self._now = state.timestamp
        self._recent[state.timestamp.batch_count] = state.timestamp
        while len(self._recent) > _MOST_RECENT:
            del self._recent[next(iter(self._recent))]
