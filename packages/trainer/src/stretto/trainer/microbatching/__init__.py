"""How a device batch is cut into the parts that one forward pass takes."""

from __future__ import annotations

from stretto.trainer.microbatching.fixed import FixedMicrobatching, check_microbatch_size

__all__ = ["FixedMicrobatching", "check_microbatch_size"]
