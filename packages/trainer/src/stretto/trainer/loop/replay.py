"""What a pass over a batch changes besides gradients, kept so that the pass can be made again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stretto.trainer.checkpoint.rng import capture_rng_state, restore_rng_state

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class PassStart:
    """Random state and buffers as they were before a pass.

    A method that needs two passes over one batch, or that tries again with smaller microbatches,
    takes one before the first pass and puts it back before the second: both then see the same
    dropout masks, and running statistics count the batch once.

    Attributes:
        rng: Random state of this rank.
        buffers: Copies of the model's buffers by name.
    """

    rng: dict[str, Any]
    buffers: dict[str, Tensor]

    @classmethod
    def capture(cls, model: nn.Module) -> PassStart:
        """Keep the random state and a model's buffers."""
        return cls(
            rng=capture_rng_state(),
            buffers={name: buffer.detach().clone() for name, buffer in model.named_buffers()},
        )

    def put_back(self, model: nn.Module) -> None:
        """Set the random state and the buffers of the same model as they were."""
        restore_rng_state(self.rng)
        own = dict(model.named_buffers())
        with torch.no_grad():
            for name, value in self.buffers.items():
                own[name].copy_(value)
