"""Models that the trainer can run: `ComposerModel` and ready-made ones."""

from __future__ import annotations

from stretto.trainer.models.base import ComposerModel, Loss
from stretto.trainer.models.classifier import ComposerClassifier
from stretto.trainer.models.loss import soft_cross_entropy

__all__ = ["ComposerClassifier", "ComposerModel", "Loss", "soft_cross_entropy"]
