"""The training loop: fit, epoch, batch, microbatch, and evaluation."""

from __future__ import annotations
