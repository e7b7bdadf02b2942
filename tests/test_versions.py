"""One version for all distributions, and siblings pinned to it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = [ROOT / "pyproject.toml", *sorted(ROOT.glob("packages/*/pyproject.toml"))]
SIBLING = re.compile(r"^(stretto-[a-z-]+|rundir-uploader)(\[[^\]]*\])?(.*)$")


def project(path: Path) -> dict:
    return tomllib.loads(path.read_text())["project"]


VERSION = project(FILES[0])["version"]


def requirements(path: Path) -> list[str]:
    table = project(path)
    extras = table.get("optional-dependencies", {}).values()
    return [*table.get("dependencies", []), *(r for extra in extras for r in extra)]


def test_there_are_six_packages_and_a_root():
    assert len(FILES) == 7


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_distribution_carries_the_version_of_the_root(path):
    assert project(path)["version"] == VERSION


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_siblings_are_pinned_to_exactly_that_version(path):
    own = project(path)["name"]
    siblings = [match for r in requirements(path) if (match := SIBLING.match(r))]
    # A distribution may name itself with extras (`all = ["x[a,b]"]`); that needs no pin.
    loose = [m.group(0) for m in siblings if m.group(1) != own and m.group(3) != f"=={VERSION}"]
    assert not loose


def test_the_root_installs_the_trainer_and_the_algorithms():
    assert {r.partition("==")[0] for r in requirements(FILES[0])} == {
        "stretto-algorithms",
        "stretto-trainer[all]",
    }


def test_the_folder_names_the_distribution_and_the_module():
    for path in FILES[1:]:
        folder = path.parent.name
        expected = folder if folder == "rundir-uploader" else f"stretto-{folder}"
        module = expected.replace("stretto-", "stretto.").replace("-", "_")
        assert project(path)["name"] == expected
        assert (
            tomllib.loads(path.read_text())["tool"]["uv"]["build-backend"]["module-name"] == module
        )
        assert (path.parent / "src" / module.replace(".", "/") / "py.typed").exists()


def test_nobody_owns_the_namespace():
    assert not list(ROOT.glob("packages/*/src/stretto/__init__.py"))


def test_no_lock_file_is_tracked():
    assert "uv.lock" in (ROOT / ".gitignore").read_text().split()
