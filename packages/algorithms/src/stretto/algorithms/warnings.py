"""Warnings that methods give when they are used to no purpose."""

from __future__ import annotations

__all__ = ["NoEffectWarning", "NotIntendedUseWarning"]


class NoEffectWarning(UserWarning):
    """A method was applied and changed nothing, for instance since no layer of its kind exists."""


class NotIntendedUseWarning(UserWarning):
    """A method was applied in a way that its authors did not mean, most likely by mistake."""
