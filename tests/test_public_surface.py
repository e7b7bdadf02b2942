"""Every public name and signature of the six packages, against the list that someone accepted.

Public is what a package, or a module in MODULES, lists in ``__all__``. After a change on purpose:

    python tests/test_public_surface.py --accept
"""

from __future__ import annotations

import difflib
import enum
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType

ACCEPTED = Path(__file__).with_name("public_surface.txt")
ACCEPT = "python tests/test_public_surface.py --accept"
ROOTS = (
    "rundir_uploader",
    "stretto.algorithms",
    "stretto.core_events",
    "stretto.object_store",
    "stretto.run_directory",
    "stretto.trainer",
)
MODULES = (
    "rundir_uploader.errors",
    "stretto.algorithms.functional",
    "stretto.algorithms.keys",
    "stretto.algorithms.state",
    "stretto.core_events.errors",
    "stretto.core_events.grammar",
    "stretto.core_events.signals",
    "stretto.core_events.testing",
    "stretto.core_events.time_recorder",
    "stretto.object_store.errors",
    "stretto.object_store.registry",
    "stretto.object_store.types",
    "stretto.run_directory.errors",
    "stretto.run_directory.rank",
    "stretto.run_directory.scan",
    "stretto.trainer.dist",
)


def public_modules() -> list[str]:
    """Return the modules whose ``__all__`` is a promise: packages at any level, and MODULES."""
    found = set(MODULES)
    for root in ROOTS:
        package = importlib.import_module(root)
        found.add(root)
        for module in pkgutil.walk_packages(package.__path__, f"{root}."):
            if module.ispkg and not any(part.startswith("_") for part in module.name.split(".")):
                found.add(module.name)
    return sorted(found)


def surface() -> list[str]:
    """Return one line for each public name and each public member of a class."""
    lines = []
    for module_name in public_modules():
        module = importlib.import_module(module_name)
        for name in sorted(getattr(module, "__all__", ())):
            lines += describe(f"{module_name}.{name}", getattr(module, name))
    return lines


def describe(name: str, thing: object) -> list[str]:
    home = getattr(thing, "__module__", "")
    if isinstance(thing, ModuleType):
        return [f"{name}: module"]
    if isinstance(thing, type):
        return [f"{name}: class {signature_of(thing)}", *members(name, thing)]
    if callable(thing) and home and not hasattr(thing, "__origin__"):
        return [f"{name}: def {signature_of(thing)}"]
    return [f"{name}: {type(thing).__name__}"]


def members(name: str, cls: type) -> list[str]:
    lines = [f"{name} bases: {', '.join(base.__qualname__ for base in cls.__bases__)}"]
    if issubclass(cls, enum.Enum):
        lines += [f"{name}.{member.name} = {member.value!r}" for member in cls]
    annotations = inspect.get_annotations(cls)
    for member, value in sorted((annotations | dict(vars(cls))).items()):
        if member.startswith("_") or (issubclass(cls, enum.Enum) and member in cls.__members__):
            continue
        plain = inspect.unwrap(value.__func__) if hasattr(value, "__func__") else value
        if isinstance(value, property):
            result = getattr(value.fget, "__annotations__", {}).get("return", "")
            settable = " (settable)" if value.fset else ""
            lines.append(f"{name}.{member}: property -> {result}{settable}")
        elif inspect.isfunction(plain):
            kind = type(value).__name__
            lines.append(f"{name}.{member}: {kind} {signature_of(plain)}")
        elif member in annotations:
            lines.append(f"{name}.{member}: {annotations[member]}")
        elif not inspect.isdatadescriptor(value):
            lines.append(f"{name}.{member}: {type(value).__name__}")
    return lines


def is_plain_error(cls: type) -> bool:
    return issubclass(cls, BaseException) and not inspect.isfunction(cls.__init__)


def signature_of(thing: object) -> str:
    if isinstance(thing, type) and is_plain_error(thing):
        return "(*args)"  # Python versions tell differently
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return "(…)"
    text = re.sub(r" at 0x[0-9a-f]+>", ">", text)
    return re.sub(r"<_io\.TextIOWrapper [^<>]*(<[^<>]*>)?[^<>]*>", "<stream>", text)


def test_the_public_surface_is_the_accepted_one():
    accepted = ACCEPTED.read_text(encoding="utf-8").splitlines()
    found = surface()
    difference = list(difflib.unified_diff(accepted, found, "accepted", "found", lineterm="", n=0))
    assert not difference, (
        "The public surface has changed:\n"
        + "\n".join(difference)
        + f"\nIf that is meant, tell CHANGELOG.md and run: {ACCEPT}"
    )


def test_everything_in_all_exists_and_nothing_is_listed_twice():
    for name in public_modules():
        module = importlib.import_module(name)
        listed = list(getattr(module, "__all__", ()))
        assert len(listed) == len(set(listed)), name
        assert [one for one in listed if not hasattr(module, one)] == [], name


def test_a_changed_default_or_a_new_member_would_show():
    class Before:
        def act(self, size: int = 1) -> None: ...

    class After:
        def act(self, size: int = 2) -> None: ...
        def more(self) -> None: ...

    assert set(describe("x", After)) - set(describe("x", Before)) == {
        "x.act: function (self, size: 'int' = 2) -> 'None'",
        "x.more: function (self) -> 'None'",
    }


if __name__ == "__main__":
    if sys.argv[1:] != ["--accept"]:
        raise SystemExit(f"usage: {ACCEPT}")
    ACCEPTED.write_text("\n".join(surface()) + "\n", encoding="utf-8")
