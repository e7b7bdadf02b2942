"""What a run reports, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, SupportsFloat, TypeAlias, TypeVar

from stretto.core_events.callback import Callback

if TYPE_CHECKING:
    from stretto.core_events.state import State
    from stretto.core_events.traces import Traces

__all__ = ["Logger", "LoggerDestination", "Resolver", "Scalar", "resolve_scalars"]

StateT = TypeVar("StateT", contravariant=True)

Scalar: TypeAlias = SupportsFloat | Callable[[], SupportsFloat]
"""A number, or something that becomes one later: a zero-dimensional tensor, a callable."""

Resolver: TypeAlias = Callable[[list[Scalar]], Sequence[float]]
"""Turns scalars that are still pending into numbers, all in one go."""


def resolve_scalars(values: list[Scalar]) -> list[float]:
    """Turn pending scalars into numbers one by one: callables are called, the rest converted."""
    return [float(value() if callable(value) else value) for value in values]


class LoggerDestination(Callback[StateT], Generic[StateT]):
    """A callback to which the `Logger` hands what is reported; override what you want to get."""

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Take the settings of the run."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Take numbers by name.

        Args:
            metrics: Plain numbers; nothing pending arrives here.
            step: The batch after which they were reported.
        """

    def log_traces(self, traces: Traces) -> None:
        """Take the traces of the algorithms that ran at an event."""

    def log_table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        name: str = "Table",
        step: int | None = None,
    ) -> None:
        """Take a table."""

    def log_images(
        self,
        images: Any,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: Mapping[str, Any] | None = None,
        mask_class_labels: Mapping[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Take an image, a batch of them, or a sequence of them."""

    def upload_file(
        self,
        state: StateT,
        remote_file_name: str,
        file_path: str | PathLike[str],
        *,
        overwrite: bool,
    ) -> None:
        """Take a file to be stored elsewhere; called only where `can_upload_files` says so."""

    def can_upload_files(self) -> bool:
        """Whether `upload_file` does something. Default: no."""
        return False


class Logger:
    """Collects what a run reports and hands it to every destination.

    A metric may be a scalar that is still being computed on a device. Such a report, and every
    one after it, waits in order until `flush`, which resolves all pending values with one call
    of the resolver: so logging never stops the device.

    Args:
        state: The state of the run, for the step of a report.
        destinations: Where reports go, in this order; with none, reporting costs nothing.
        resolver: Turns a list of pending scalars into as many numbers. Default: `float` on each,
            after calling those that are callable.
    """

    def __init__(
        self,
        state: State,
        destinations: Iterable[LoggerDestination[Any]] | LoggerDestination[Any] | None = None,
        *,
        resolver: Resolver | None = None,
    ) -> None:
        if isinstance(destinations, LoggerDestination):
            destinations = (destinations,)
        self.destinations: tuple[LoggerDestination[Any], ...] = tuple(destinations or ())
        for destination in self.destinations:
            if not isinstance(destination, LoggerDestination):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(
                    f"{destination!r} ({type(destination).__name__}) is no LoggerDestination. "
                    "Give loggers to the logger, other callbacks to the engine."
                )
        self._state = state
        self._resolve: Resolver = resolver or resolve_scalars
        self._pending: list[tuple[dict[str, Any], int]] = []

    def log_metrics(self, metrics: Mapping[str, Scalar], step: int | None = None) -> None:
        """Report numbers by name.

        Args:
            metrics: Numbers, or scalars that become numbers later.
            step: The step they belong to. Default: batches completed so far.

        Raises:
            TypeError: A value that cannot become a number.
        """
        if not self.destinations:
            return
        if step is None:
            step = self._state.timestamp.batch_count
        plain = True
        for name, value in metrics.items():
            if not isinstance(value, int | float):
                _check_scalar(name, value)
                plain = False
        if plain and not self._pending:
            self._deliver(dict(metrics), step)
        else:
            self._pending.append((dict(metrics), step))

    def flush(self) -> None:
        """Resolve every pending value with one call and deliver the waiting reports in order.

        Raises:
            ValueError: The resolver returned another number of values than it was given.
        """
        waiting, self._pending = self._pending, []
        if not waiting:
            return
        places = [
            (metrics, name)
            for metrics, _ in waiting
            for name, value in metrics.items()
            if not isinstance(value, int | float)
        ]
        values = list(self._resolve([metrics[name] for metrics, name in places]))
        if len(values) != len(places):
            raise ValueError(
                f"the resolver returned {len(values)} values for {len(places)} pending scalars. "
                "It must return one number for each."
            )
        for (metrics, name), value in zip(places, values, strict=True):
            metrics[name] = value
        for position, (metrics, step) in enumerate(waiting):
            try:
                self._deliver(metrics, step)
            except BaseException:
                self._pending[:0] = waiting[position + 1 :]
                raise

    def _deliver(self, metrics: dict[str, Any], step: int) -> None:
        for destination in self.destinations:
            destination.log_metrics(metrics, step)

    def log_hyperparameters(self, parameters: Mapping[str, Any]) -> None:
        """Report the settings of the run."""
        for destination in self.destinations:
            destination.log_hyperparameters(parameters)

    def log_traces(self, traces: Traces) -> None:
        """Report what algorithms did at an event."""
        for destination in self.destinations:
            destination.log_traces(traces)

    def log_table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        name: str = "Table",
        step: int | None = None,
    ) -> None:
        """Report a table; `step` defaults to the batches completed so far."""
        if not self.destinations:
            return
        step = self._state.timestamp.batch_count if step is None else step
        for destination in self.destinations:
            destination.log_table(columns, rows, name, step)

    def log_images(
        self,
        images: Any,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: Mapping[str, Any] | None = None,
        mask_class_labels: Mapping[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Report images; `step` defaults to the batches completed so far."""
        if not self.destinations:
            return
        step = self._state.timestamp.batch_count if step is None else step
        for destination in self.destinations:
            destination.log_images(
                images, name, channels_last, step, masks, mask_class_labels, use_table
            )

    def upload_file(
        self, remote_file_name: str, file_path: str | PathLike[str], *, overwrite: bool = False
    ) -> None:
        """Hand a file to every destination that stores files."""
        for destination in self.destinations:
            if destination.can_upload_files():
                destination.upload_file(
                    self._state, remote_file_name, file_path, overwrite=overwrite
                )

    def has_file_upload_destination(self) -> bool:
        """Whether any destination stores files."""
        return any(destination.can_upload_files() for destination in self.destinations)


def _check_scalar(name: str, value: object) -> None:
    if not callable(value) and not hasattr(value, "__float__"):
        raise TypeError(
            f"metric {name!r} is {value!r} ({type(value).__name__}), which is no number. "
            "Give a number, a zero-dimensional tensor, or a callable that returns one."
        )
