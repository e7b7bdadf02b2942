"""Methods by name, for configuration files and command lines."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from stretto.core_events import Algorithm

__all__ = ["METHODS", "Method", "create"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Where a method is found.

    Attributes:
        name: What it is called here.
        module: The module that holds it.
        algorithm: The name of its class.
        function: The name of its function.
        changes: What it works on: ``model``, ``batch``, ``loss`` or ``gradients``.
    """

    name: str
    module: str
    algorithm: str
    function: str
    changes: str

    def algorithm_class(self) -> type[Algorithm[Any]]:
        """Import and return the class."""
        found = getattr(importlib.import_module(self.module), self.algorithm)
        return cast("type[Algorithm[Any]]", found)


def _method(name: str, algorithm: str, function: str, changes: str) -> tuple[str, Method]:
    method = Method(
        name=name,
        module=f"stretto.algorithms.{name}",
        algorithm=algorithm,
        function=function,
        changes=changes,
    )
    return name, method


METHODS: Mapping[str, Method] = MappingProxyType(
    dict(
        (
            _method("blurpool", "BlurPool", "apply_blurpool", "model"),
            _method(
                "gradient_clipping", "GradientClipping", "apply_gradient_clipping", "gradients"
            ),
            _method("label_smoothing", "LabelSmoothing", "smooth_labels", "loss"),
            _method("mixup", "MixUp", "mixup_batch", "batch"),
        )
    )
)
"""All methods of this package by name."""


def create(name: str, **arguments: Any) -> Algorithm[Any]:
    """Return the algorithm called `name`, built with `arguments`.

    Args:
        name: A name in `METHODS`; case and the difference between ``-`` and ``_`` don't matter.
        **arguments: What the class takes.

    Raises:
        ValueError: There is no such method.
    """
    method = METHODS.get(name.lower().replace("-", "_"))
    if method is None:
        raise ValueError(f"No method is called {name!r}. There are {', '.join(METHODS)}.")
    return method.algorithm_class()(**arguments)
