"""What the methods raise.

::

    AlgorithmError
    ├── BatchFormatError (ValueError)   the batch does not have the shape that the method needs
    └── SurgeryError (RuntimeError)     the model cannot be changed as it stands

Wrong arguments of a constructor or a function are plain ``ValueError`` or ``TypeError``.
"""

from __future__ import annotations

__all__ = ["AlgorithmError", "BatchFormatError", "SurgeryError"]


class AlgorithmError(Exception):
    """Base of this package's errors."""


class BatchFormatError(AlgorithmError, ValueError):
    """A batch, a target or a model's output does not have the form that a method needs."""


class SurgeryError(AlgorithmError, RuntimeError):
    """A model cannot be changed in place, for instance because it is sharded already."""
