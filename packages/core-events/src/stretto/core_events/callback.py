"""The base class for what watches and accompanies a training run."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stretto.core_events.event import Event
from stretto.core_events.stage import Stage

if TYPE_CHECKING:
    from stretto.core_events.logging import Logger

__all__ = ["Callback"]

StateT = TypeVar("StateT", contravariant=True)


class Callback(Generic[StateT]):
    """Something that acts at events, without being part of the training method.

    Override the hooks you need; each is named after the event it hears. The engine looks once,
    when it is built, which hooks a callback overrides, and calls no others. A callback that
    overrides `run_event` hears every event.

    The type parameter says what the callback needs of the state: ``Callback[State]`` works
    everywhere, ``Callback[trainer.State]`` needs a model.

    Attributes:
        stage: `Stage.NORMAL`, or `Stage.PERSIST` to run last among the callbacks.
        run_before: Tags (or class names) of callbacks that must run after this one.
        run_after: Tags (or class names) of callbacks that must run before this one.
        tags: Names by which others may refer to this callback, besides its class name.
    """

    stage: Stage = Stage.NORMAL
    run_before: Collection[str] = ()
    run_after: Collection[str] = ()
    tags: Collection[str] = ()

    def run_event(self, event: Event, state: StateT, logger: Logger) -> None:
        """Call the hook of `event`. Overridden, it hears every event."""
        getattr(self, event.value)(state, logger)

    def run_marker(self, event: Event, state: StateT, logger: Logger) -> None:
        """Hear that `event` was reached without being run (`Engine.run_marker_only_event`)."""

    def close(self, state: StateT, logger: Logger) -> None:
        """Let go of what the run needed; called once, also after an error."""

    def post_close(self) -> None:
        """Finish after every member has been closed; called once, also after an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint should keep of this callback. Default: nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        del state

    def init(self, state: StateT, logger: Logger) -> None:
        """Hear that the run is set up; the model may still be changed."""

    def before_load(self, state: StateT, logger: Logger) -> None:
        """Hear that a checkpoint is about to be loaded."""

    def after_load(self, state: StateT, logger: Logger) -> None:
        """Hear that loading is over, whether there was a checkpoint or not."""

    def fit_start(self, state: StateT, logger: Logger) -> None:
        """Hear that training starts."""

    def iteration_start(self, state: StateT, logger: Logger) -> None:
        """Hear that an iteration starts."""

    def epoch_start(self, state: StateT, logger: Logger) -> None:
        """Hear that an epoch starts."""

    def before_dataloader(self, state: StateT, logger: Logger) -> None:
        """Hear that the next batch is about to be fetched."""

    def after_dataloader(self, state: StateT, logger: Logger) -> None:
        """Hear that a batch has arrived on the device."""

    def batch_start(self, state: StateT, logger: Logger) -> None:
        """Hear that work on a batch starts."""

    def before_train_batch(self, state: StateT, logger: Logger) -> None:
        """Hear that the batch is about to be split into microbatches."""

    def before_forward(self, state: StateT, logger: Logger) -> None:
        """Hear that the forward pass of a microbatch starts."""

    def after_forward(self, state: StateT, logger: Logger) -> None:
        """Hear that the forward pass of a microbatch is done."""

    def before_loss(self, state: StateT, logger: Logger) -> None:
        """Hear that the loss of a microbatch is about to be computed."""

    def after_loss(self, state: StateT, logger: Logger) -> None:
        """Hear that the loss of a microbatch is there."""

    def before_backward(self, state: StateT, logger: Logger) -> None:
        """Hear that the backward pass of a microbatch starts."""

    def after_backward(self, state: StateT, logger: Logger) -> None:
        """Hear that the backward pass of a microbatch is done."""

    def after_train_batch(self, state: StateT, logger: Logger) -> None:
        """Hear that all gradients of the batch are there, before the optimizers step."""

    def batch_end(self, state: StateT, logger: Logger) -> None:
        """Hear that a batch is done and counted."""

    def batch_checkpoint(self, state: StateT, logger: Logger) -> None:
        """Hear that a checkpoint may be saved after a batch."""

    def epoch_end(self, state: StateT, logger: Logger) -> None:
        """Hear that an epoch is done and counted."""

    def epoch_checkpoint(self, state: StateT, logger: Logger) -> None:
        """Hear that a checkpoint may be saved after an epoch."""

    def iteration_end(self, state: StateT, logger: Logger) -> None:
        """Hear that an iteration is done and counted."""

    def iteration_checkpoint(self, state: StateT, logger: Logger) -> None:
        """Hear that a checkpoint may be saved after an iteration."""

    def fit_end(self, state: StateT, logger: Logger) -> None:
        """Hear that training has ended."""

    def eval_before_all(self, state: StateT, logger: Logger) -> None:
        """Hear that one or more evaluations are about to run during training."""

    def eval_start(self, state: StateT, logger: Logger) -> None:
        """Hear that one evaluation starts."""

    def eval_batch_start(self, state: StateT, logger: Logger) -> None:
        """Hear that work on an evaluation batch starts."""

    def eval_before_forward(self, state: StateT, logger: Logger) -> None:
        """Hear that a forward pass of the evaluation starts."""

    def eval_after_forward(self, state: StateT, logger: Logger) -> None:
        """Hear that a forward pass of the evaluation is done."""

    def eval_batch_end(self, state: StateT, logger: Logger) -> None:
        """Hear that an evaluation batch is done."""

    def eval_end(self, state: StateT, logger: Logger) -> None:
        """Hear that one evaluation is done; its metrics are there."""

    def eval_after_all(self, state: StateT, logger: Logger) -> None:
        """Hear that all evaluations that were due during training are done."""

    def eval_standalone_start(self, state: StateT, logger: Logger) -> None:
        """Hear that an evaluation outside training starts."""

    def eval_standalone_end(self, state: StateT, logger: Logger) -> None:
        """Hear that an evaluation outside training has ended."""

    def predict_start(self, state: StateT, logger: Logger) -> None:
        """Hear that prediction starts."""

    def predict_batch_start(self, state: StateT, logger: Logger) -> None:
        """Hear that work on a prediction batch starts."""

    def predict_before_forward(self, state: StateT, logger: Logger) -> None:
        """Hear that a forward pass of the prediction starts."""

    def predict_after_forward(self, state: StateT, logger: Logger) -> None:
        """Hear that a forward pass of the prediction is done."""

    def predict_batch_end(self, state: StateT, logger: Logger) -> None:
        """Hear that a prediction batch is done."""

    def predict_end(self, state: StateT, logger: Logger) -> None:
        """Hear that prediction has ended."""
