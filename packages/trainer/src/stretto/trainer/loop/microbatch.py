"""The gradients of one device batch, microbatch by microbatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from stretto.core_events import Event
from stretto.trainer import dist
from stretto.trainer.loop.losses import TOTAL, name_losses

if TYPE_CHECKING:
    from torch import nn

    from stretto.core_events import Engine
    from stretto.trainer.loop.replay import PassStart
    from stretto.trainer.microbatching import FixedMicrobatching
    from stretto.trainer.state import State


class GradientPass:
    """Computes gradients of the mean loss over the batches of all ranks.

    The loss of each microbatch enters as a sum over one global denominator, so that gradients do
    not depend on how batches are cut or shared. The pass can be made again on the same batch,
    which is never changed in place, from a `PassStart` taken before.

    Args:
        state: The run.
        engine: Hears the events of the microbatches.
        microbatching: Cuts and weighs batches.
        keep_losses: Whether the losses are added up and returned.
    """

    def __init__(
        self,
        state: State,
        engine: Engine[State],
        microbatching: FixedMicrobatching,
        *,
        keep_losses: bool = True,
    ) -> None:
        prepared = state.model_state.prepared
        if prepared is None:
            raise RuntimeError("the model must be prepared by the strategy before it is trained")
        self._prepared = prepared
        self._model, self._module = state.model, prepared.module
        self._batch_state = state.batch_state
        self._precision, self._strategy = state.precision, state.strategy
        self._run_event: Callable[[Event], Any] = engine.run_event
        self._microbatching = microbatching
        self._keep_losses = keep_losses
        self._transform = microbatching.spec.microbatch_transforms
        self._create_graph = any(a.backwards_create_graph for a in state.algorithms)
        self._metrics = state.train_metrics
        self._shared = state.topology.world_size > 1
        self._sharded = state.topology.shard_size > 1 and microbatching.size is not None

    def compute_gradients(
        self,
        batch: Any,
        weight: int | None = None,
        *,
        even: bool = True,
        events: bool = True,
        start: PassStart | None = None,
    ) -> dict[str, Tensor]:
        """Compute the gradients of a batch from nothing.

        Args:
            batch: This rank's whole device batch.
            weight: What the batches of all ranks count for together; by default what this one
                does, where there is no other rank.
            even: Whether all ranks are known to have equally many samples.
            events: Whether the events of the microbatches fire.
            start: Put back before the pass, to make it again.

        Returns:
            This rank's part of the mean losses by name, detached, on the device; empty where
            losses are not kept.

        Raises:
            ValueError: If the batches count for nothing, which has no mean.
        """
        if start is not None:
            start.put_back(self._prepared.model)
        parts = self._microbatching.split(batch)
        shares = self._weigh(batch, parts, weight)
        real = len(parts)
        if self._sharded and not even:
            parts, shares = _fill_up(parts, shares)
        batch_state, strategy = self._batch_state, self._strategy
        last = len(parts) - 1
        sums: dict[str, Tensor] = {}
        for optimizer in self._prepared.optimizers:
            optimizer.zero_grad()
        try:
            for place, part in enumerate(parts):
                batch_state.batch = part if self._transform is None else self._transform(part)
                with strategy.microbatch_context(self._prepared, is_last=place == last):
                    self._run_part(shares[place], sums, events, filler=place >= real)
        except BaseException:
            self.drop_gradients()
            raise
        finally:
            batch_state.batch = batch
        return sums

    def drop_gradients(self) -> None:
        """Forget all gradients, so that none of a failed pass is ever applied."""
        for parameter in self._prepared.model.parameters():
            parameter.grad = None

    def _weigh(self, batch: Any, parts: Any, weight: int | None) -> list[float]:
        """Return the share of each part in the mean over the batches of all ranks."""
        microbatching = self._microbatching
        if weight is None:
            if len(parts) == 1 and not microbatching.by_tokens:
                return [1.0]
            weight = microbatching.weigh(batch)
        if weight <= 0:
            what = "loss-bearing tokens" if microbatching.by_tokens else "samples"
            raise ValueError(f"a batch has no {what}, so its mean loss is undefined: leave it out")
        if len(parts) == 1 and not self._shared:
            return [1.0]
        return [microbatching.weigh(part) / weight for part in parts]

    def _run_part(
        self, share: float, sums: dict[str, Tensor], events: bool, *, filler: bool
    ) -> None:
        run_event = self._run_event if events and not filler else _fire_nothing
        batch_state, precision = self._batch_state, self._precision
        run_event(Event.BEFORE_FORWARD)
        with precision.forward_context():
            batch_state.outputs = self._module(batch_state.batch)
        unweighted = batch_state.outputs if share == 0.0 and self._shared else None
        run_event(Event.AFTER_FORWARD)
        # A callback may free the outputs after the loss, so they are held only if needed.
        kept = batch_state.outputs if self._metrics and events else None
        run_event(Event.BEFORE_LOSS)
        with precision.forward_context():
            batch_state.loss = self._model.loss(batch_state.outputs, batch_state.batch)
        run_event(Event.AFTER_LOSS)
        run_event(Event.BEFORE_BACKWARD)
        losses = name_losses(batch_state.loss)
        if share != 0.0:
            scale = share * self._strategy.gradient_multiplier
            total = losses[TOTAL]
            precision.backward(
                total if scale == 1.0 else total * scale, create_graph=self._create_graph
            )
        elif self._shared:  # the other ranks wait for this one's collectives
            precision.backward(_make_zero(unweighted, self._module))
        run_event(Event.AFTER_BACKWARD)
        if self._metrics and events:
            self._update_metrics(kept, filler=filler)
        if self._keep_losses:
            _add_losses(sums, losses, share)

    def _update_metrics(self, outputs: Any, *, filler: bool) -> None:
        model, batch = self._model, self._batch_state.batch
        with torch.no_grad():
            # Sharded, this gathers parameters from all ranks: those that only fill up make it too.
            outputs = model.eval_forward(batch, outputs)
            if filler:
                return
            for metric in self._metrics.values():
                model.update_metric(batch, outputs, metric)


def _make_zero(outputs: Any, module: nn.Module) -> Tensor:
    """Return a loss whose gradients are exactly zero, for a part that counts for nothing.

    Its own loss is the mean of nothing, whose gradients are not numbers even times zero. Starting
    from the outputs, the backward pass still meets every hook that reduces gradients.
    """
    found = [
        output
        for output in tree_leaves(outputs)
        if isinstance(output, Tensor) and output.requires_grad
    ]
    found = [output for output in found if output.dim()] or found or list(module.parameters())
    return torch.stack([tensor.sum().float() for tensor in found]).sum() * 0.0


def _fill_up(parts: Sequence[Any], shares: list[float]) -> tuple[Sequence[Any], list[float]]:
    """Give all ranks equally many passes, where a pass gathers parameters from all.

    A rank with fewer samples makes its last pass again, with a share of nothing; neither metrics
    nor callbacks see it.
    """
    missing = max(dist.all_gather_object(len(parts))) - len(parts)
    return [*parts, *[parts[-1]] * missing], [*shares, *[0.0] * missing]


def _add_losses(sums: dict[str, Tensor], losses: dict[str, Tensor], share: float) -> None:
    """Add a part's losses to those before; the mean of a part without samples is no number."""
    for name, loss in losses.items():
        part = loss.detach()
        if share == 0.0:
            part = torch.zeros_like(part)
        elif share != 1.0:
            part = part * share
        before = sums.get(name)
        sums[name] = part if before is None else before + part


def _fire_nothing(event: Event) -> None:
    """Stand in for the engine where a pass is repeated."""
