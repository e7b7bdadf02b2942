"""Settings of the documentation: Sphinx reads Markdown (MyST) and the packages' docstrings."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
PACKAGES = HERE.parent / "packages"
sys.path.insert(0, str(HERE))

project = "Stretto"
author = "The Stretto developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "event_diagram"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Stretto"
default_role = "code"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # what a class lists under "Attributes" is described once
nitpicky = False  # other projects' inventories cannot be asked for, so their names stay text

_README = re.compile(r"^<!-- README of ([a-z-]+) -->$", re.M)
_LINK = re.compile(r"\]\((?:\.\./|packages/)([a-z-]+)(?:/README\.md)?\)")


def _put_readme(app: Sphinx, document: str, source: list[str]) -> None:
    """Put a package's README where a page asks for it, its links turned into those of the site."""

    def readme(match: re.Match[str]) -> str:
        path = PACKAGES / match[1] / "README.md"
        app.env.note_dependency(str(path))
        return _LINK.sub(r"](../\1/index.md)", path.read_text(encoding="utf-8"))

    source[0] = _README.sub(readme, source[0])


def setup(app: Sphinx) -> None:
    """Register what the pages use."""
    app.connect("source-read", _put_readme)
