"""How far a loop has come, and how to say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.core_events import TimeUnit

if TYPE_CHECKING:
    from stretto.core_events import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Place in a loop.

    Attributes:
        title: What is counted, such as ``train epoch 3``.
        done: Units done.
        total: Units in all; None where that is not known.
        unit: The name of the unit.
    """

    title: str
    done: float
    total: float | None
    unit: str


def train_progress(state: State, *, ended: bool = False) -> Progress:
    """Return the place in the epoch, or in the whole run where that is not counted in epochs.

    Args:
        state: The state of the run.
        ended: The loop has just ended: a timestamp at the start of an epoch stands for the end of
            the one before.
    """
    timestamp, maximum = state.timestamp, state.max_duration
    label = state.dataloader_label or "train"
    length = state.dataloader_len
    if maximum is not None and maximum.unit is not TimeUnit.EPOCH:
        done = timestamp.get(maximum.unit).value
        return Progress(title=label, done=done, total=maximum.value, unit=str(maximum.unit.value))
    in_epoch = timestamp.batch_in_epoch_count
    ended = ended and in_epoch == 0 and timestamp.epoch_count > 0
    epoch = timestamp.epoch_count - 1 if ended else timestamp.epoch_count
    done = length if ended and length is not None else in_epoch
    return Progress(title=f"{label} epoch {epoch}", done=done, total=length, unit="ba")


def evaluation_progress(state: State) -> Progress:
    """Return the place in the evaluation that is running."""
    label = state.dataloader_label or "eval"
    return Progress(
        title=label if label.startswith("eval") else f"eval {label}",
        done=state.eval_timestamp.batch_count,
        total=state.dataloader_len,
        unit="ba",
    )


def format_metrics(metrics: dict[str, float], most: int | None = None) -> str:
    """Return the last part of each name with its value, such as ``loss 0.3127``."""
    chosen = list(metrics.items())[-most:] if most else list(metrics.items())
    return "  ".join(f"{_short(name)} {value:.4f}" for name, value in chosen)


def _short(name: str) -> str:
    parts = name.split("/")
    if parts[0] == "loss":
        return "loss" if parts[-1] == "total" else f"loss/{parts[-1]}"
    return parts[-1]
