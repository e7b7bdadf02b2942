"""The points of a training run at which callbacks and algorithms act."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Event"]


class Event(StrEnum):
    """A point in a training run, in the order in which a run reaches them.

    A member is also its own value, a lower-case string that names the callback's hook:
    ``Event.BATCH_END == "batch_end"``. ``Event("BATCH_END")`` finds the member in any case.
    Compare members by identity (``event is Event.BATCH_END``): it is faster and never wrong.

    ::

        INIT, BEFORE_LOAD, AFTER_LOAD                                  building a trainer
        FIT_START
          ITERATION_START, EPOCH_START
            BEFORE_DATALOADER, AFTER_DATALOADER, BATCH_START, BEFORE_TRAIN_BATCH
              BEFORE_FORWARD, AFTER_FORWARD, BEFORE_LOSS, AFTER_LOSS,
              BEFORE_BACKWARD, AFTER_BACKWARD                          once a microbatch
            AFTER_TRAIN_BATCH, BATCH_END, BATCH_CHECKPOINT
          EPOCH_END, EPOCH_CHECKPOINT, ITERATION_END, ITERATION_CHECKPOINT
        FIT_END
    """

    INIT = "init"
    BEFORE_LOAD = "before_load"
    AFTER_LOAD = "after_load"
    FIT_START = "fit_start"
    ITERATION_START = "iteration_start"
    EPOCH_START = "epoch_start"
    BEFORE_DATALOADER = "before_dataloader"
    AFTER_DATALOADER = "after_dataloader"
    BATCH_START = "batch_start"
    BEFORE_TRAIN_BATCH = "before_train_batch"
    BEFORE_FORWARD = "before_forward"
    AFTER_FORWARD = "after_forward"
    BEFORE_LOSS = "before_loss"
    AFTER_LOSS = "after_loss"
    BEFORE_BACKWARD = "before_backward"
    AFTER_BACKWARD = "after_backward"
    AFTER_TRAIN_BATCH = "after_train_batch"
    BATCH_END = "batch_end"
    BATCH_CHECKPOINT = "batch_checkpoint"
    EPOCH_END = "epoch_end"
    EPOCH_CHECKPOINT = "epoch_checkpoint"
    ITERATION_END = "iteration_end"
    ITERATION_CHECKPOINT = "iteration_checkpoint"
    FIT_END = "fit_end"
    EVAL_BEFORE_ALL = "eval_before_all"
    EVAL_START = "eval_start"
    EVAL_BATCH_START = "eval_batch_start"
    EVAL_BEFORE_FORWARD = "eval_before_forward"
    EVAL_AFTER_FORWARD = "eval_after_forward"
    EVAL_BATCH_END = "eval_batch_end"
    EVAL_END = "eval_end"
    EVAL_AFTER_ALL = "eval_after_all"
    EVAL_STANDALONE_START = "eval_standalone_start"
    EVAL_STANDALONE_END = "eval_standalone_end"
    PREDICT_START = "predict_start"
    PREDICT_BATCH_START = "predict_batch_start"
    PREDICT_BEFORE_FORWARD = "predict_before_forward"
    PREDICT_AFTER_FORWARD = "predict_after_forward"
    PREDICT_BATCH_END = "predict_batch_end"
    PREDICT_END = "predict_end"

    @classmethod
    def _missing_(cls, value: object) -> Event | None:
        if isinstance(value, str):
            return cls._value2member_map_.get(value.lower())  # pyright: ignore[reportReturnType]
        return None

    @property
    def is_before_event(self) -> bool:
        """Whether this event opens a pair, as ``BATCH_START`` and ``BEFORE_LOSS`` do."""
        return self in _PARTNER_OF_BEFORE

    @property
    def is_after_event(self) -> bool:
        """Whether this event closes a pair, as ``BATCH_END`` and ``AFTER_LOSS`` do."""
        return self in _PARTNER_OF_AFTER

    @property
    def is_eval(self) -> bool:
        """Whether this event belongs to evaluation."""
        return self.value.startswith("eval_")

    @property
    def is_predict(self) -> bool:
        """Whether this event belongs to prediction."""
        return self.value.startswith("predict_")

    @property
    def partner(self) -> Event | None:
        """The other half of this event's pair; None for ``INIT`` and the checkpoint events."""
        return _PARTNER_OF_BEFORE.get(self) or _PARTNER_OF_AFTER.get(self)

    @property
    def canonical_name(self) -> str:
        """The name that both halves of a pair share.

        ``BEFORE_FORWARD`` and ``AFTER_FORWARD`` are both ``forward``, ``EVAL_BATCH_START`` is
        ``eval_batch``; an event without a partner keeps its value.
        """
        return _CANONICAL_NAMES[self]


_PAIRS: tuple[tuple[Event, Event, str], ...] = (
    (Event.BEFORE_LOAD, Event.AFTER_LOAD, "load"),
    (Event.FIT_START, Event.FIT_END, "fit"),
    (Event.ITERATION_START, Event.ITERATION_END, "iteration"),
    (Event.EPOCH_START, Event.EPOCH_END, "epoch"),
    (Event.BEFORE_DATALOADER, Event.AFTER_DATALOADER, "dataloader"),
    (Event.BATCH_START, Event.BATCH_END, "batch"),
    (Event.BEFORE_TRAIN_BATCH, Event.AFTER_TRAIN_BATCH, "train_batch"),
    (Event.BEFORE_FORWARD, Event.AFTER_FORWARD, "forward"),
    (Event.BEFORE_LOSS, Event.AFTER_LOSS, "loss"),
    (Event.BEFORE_BACKWARD, Event.AFTER_BACKWARD, "backward"),
    (Event.EVAL_BEFORE_ALL, Event.EVAL_AFTER_ALL, "eval_all"),
    (Event.EVAL_START, Event.EVAL_END, "eval"),
    (Event.EVAL_BATCH_START, Event.EVAL_BATCH_END, "eval_batch"),
    (Event.EVAL_BEFORE_FORWARD, Event.EVAL_AFTER_FORWARD, "eval_forward"),
    (Event.EVAL_STANDALONE_START, Event.EVAL_STANDALONE_END, "eval_standalone"),
    (Event.PREDICT_START, Event.PREDICT_END, "predict"),
    (Event.PREDICT_BATCH_START, Event.PREDICT_BATCH_END, "predict_batch"),
    (Event.PREDICT_BEFORE_FORWARD, Event.PREDICT_AFTER_FORWARD, "predict_forward"),
)

_PARTNER_OF_BEFORE = {before: after for before, after, _ in _PAIRS}
_PARTNER_OF_AFTER = {after: before for before, after, _ in _PAIRS}
_CANONICAL_NAMES = {
    **{event: event.value for event in Event},
    **{before: name for before, _, name in _PAIRS},
    **{after: name for _, after, name in _PAIRS},
}
