from __future__ import annotations

import ast
from pathlib import Path

import stretto.core_events

SOURCES = Path(stretto.core_events.__file__).parent
ALLOWED = {
    # an image is whatever the destination can draw, and overrides narrow it
    "logging.LoggerDestination.log_images(images)",
    "logging.Logger.log_images(images)",
    # works on every state
    "testing.EventRecorder.run_event(state)",
    "testing.EventRecorder.close(state)",
}
INTERNAL = {"closing", "dispatch"}


def bare_any_in(path):
    """Name each public parameter, result and attribute whose annotation is `Any` and no more."""

    def walk(node, scope):
        for child in ast.iter_child_nodes(node):
            name = getattr(child, "name", "")
            if isinstance(child, ast.ClassDef) and not name.startswith("_"):
                yield from walk(child, f"{scope}.{name}")
            elif isinstance(child, ast.FunctionDef) and not name.startswith("_"):
                everything = child.args
                arguments = [*everything.posonlyargs, *everything.args, *everything.kwonlyargs]
                for argument in arguments:
                    if is_any(argument.annotation):
                        yield f"{scope}.{name}({argument.arg})"
                if is_any(child.returns):
                    yield f"{scope}.{name}"
            elif isinstance(child, ast.AnnAssign) and is_any(child.annotation):
                yield f"{scope}.{ast.unparse(child.target)}"

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), path.stem)


def is_any(annotation):
    return annotation is not None and ast.unparse(annotation) == "Any"


def test_nothing_public_is_any_but_what_is_listed_with_its_reason():
    paths = [path for path in SOURCES.glob("*.py") if path.stem not in INTERNAL]
    assert len(paths) > 15
    assert {found for path in paths for found in bare_any_in(path)} == ALLOWED
