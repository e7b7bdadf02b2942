"""The torch-free part of a run's state: who it is and how far it has come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stretto.core_events.elapsed import elapsed_ratio
from stretto.core_events.time import Time, TimeInput, ensure_time, unchecked_time
from stretto.core_events.time_unit import TimeUnit
from stretto.core_events.timestamp import Timestamp

if TYPE_CHECKING:
    from stretto.core_events.algorithm import Algorithm
    from stretto.core_events.callback import Callback

__all__ = ["State"]


class State:
    """Identity and progress of a run: all that most callbacks, loggers and schedulers need.

    Args:
        run_name: The name of the run.
        rank_zero_seed: The seed of rank 0, from which the other ranks' seeds are derived.
        max_duration: How long to train: a `Time`, a time string, or a number of epochs.
        dataloader_len: Batches an epoch, or None where the loader does not know.
        dataloader_label: The name of the active loader, such as ``"train"``.
        algorithms: The algorithms of the run, in list order.
        callbacks: The callbacks of the run, in list order; logger destinations not among them.

    Attributes:
        timestamp: Progress of the training.
        eval_timestamp: Progress of the current evaluation.
        predict_timestamp: Progress of the current prediction.
        iteration_length: Length of an iteration in ``ep`` or ``tok``, where iterations are used.

    Raises:
        ValueError: `max_duration` is no time, is negative, or is itself a fraction (``dur``).
    """

    def __init__(
        self,
        *,
        run_name: str,
        rank_zero_seed: int = 0,
        max_duration: TimeInput | None = None,
        dataloader_len: int | None = None,
        dataloader_label: str | None = None,
        algorithms: Iterable[Algorithm[Any]] = (),
        callbacks: Iterable[Callback[Any]] = (),
    ) -> None:
        self.run_name = run_name
        self.rank_zero_seed = rank_zero_seed
        self.timestamp = Timestamp()
        self.eval_timestamp = Timestamp()
        self.predict_timestamp = Timestamp()
        self.iteration_length: Time | None = None
        self.dataloader_len = dataloader_len
        self.dataloader_label = dataloader_label
        self.algorithms: list[Algorithm[Any]] = list(algorithms)
        self.callbacks: list[Callback[Any]] = list(callbacks)
        self._max_duration: Time | None = None
        self.max_duration = max_duration

    @property
    def max_duration(self) -> Time | None:
        """How long to train; set it with anything that spells a time, a number is epochs."""
        return self._max_duration

    @max_duration.setter
    def max_duration(self, value: TimeInput | None) -> None:
        duration = None if value is None else ensure_time(value, TimeUnit.EPOCH)
        if duration is not None and duration.unit is TimeUnit.DURATION:
            raise ValueError(
                f"max_duration={duration} is a fraction of itself. "
                "Give it in iter, ep, ba, sp, tok or sec."
            )
        if duration is not None and duration.value < 0:
            raise ValueError(f"max_duration={duration} is negative. Give 0 or more.")
        self._max_duration = duration

    def stop_training(self) -> None:
        """End the training after the current batch: the run is now as long as it has lasted."""
        self._max_duration = self.timestamp.batch

    def get_elapsed_duration(self) -> Time | None:
        """Return the fraction of the run that is over, in ``dur``, from 0.0 to 1.0.

        It moves with every batch, whatever the unit of `max_duration`; None without one.

        Raises:
            UnknownLengthError: `max_duration` is in epochs or iterations and the length that the
                fraction depends on is not known.
        """
        maximum = self._max_duration
        if maximum is None:
            return None
        done, end = elapsed_ratio(
            self.timestamp, maximum, self.dataloader_len, self.iteration_length
        )
        return unchecked_time(min(1.0, done / end), TimeUnit.DURATION)
