"""Every Python block of the pages runs, and every link of the built site leads somewhere.

The blocks of a page run one after the other, as one script in a folder of its own. Those that need
another framework run with the interpreter that DOCS_FRAMEWORKS_PYTHON names, which has it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from stretto.core_events import Event

HERE = Path(__file__).resolve().parent
FRAMEWORKS = {"core-events/lightning.md", "core-events/transformers.md"}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = {
    page.relative_to(HERE).as_posix(): BLOCK.findall(page.read_text(encoding="utf-8"))
    for page in sorted(HERE.rglob("*.md"))
}
WITH_BLOCKS = {name for name, blocks in PAGES.items() if blocks}


def run_page(name, python, folder):
    script = folder / "page.py"
    script.write_text("\n\n".join(PAGES[name]), encoding="utf-8")
    done = subprocess.run(
        [python, str(script)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{name}\n{done.stdout}\n{done.stderr}"
    return done


def test_there_are_pages_with_blocks():
    assert len(WITH_BLOCKS) >= 7
    assert FRAMEWORKS <= WITH_BLOCKS


@pytest.mark.parametrize("name", sorted(WITH_BLOCKS - FRAMEWORKS))
def test_the_blocks_of_a_page_run(name, tmp_path):
    assert run_page(name, sys.executable, tmp_path).stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_the_blocks_that_need_a_framework_run_with_the_real_one(name, tmp_path):
    python = os.environ.get("DOCS_FRAMEWORKS_PYTHON")
    if python is None:
        pytest.skip("DOCS_FRAMEWORKS_PYTHON names no interpreter; nox -s docs -- --slow sets it")
    run_page(name, python, tmp_path)


class Links(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.names, self.targets = set(), set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if values.get("id"):
            self.names.add(values["id"])
        target = values.get("href") if tag in ("a", "link") else values.get("src")
        if target:
            self.targets.add(target)


def broken_links(site):
    pages = {page.resolve(): Links(page) for page in site.rglob("*.html")}
    for page, links in pages.items():
        for target in sorted(links.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue  # outside, which cannot be reached from here
            goal = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            place = unquote(parts.fragment)
            if not goal.exists():
                yield f"{page.name}: {target}"
            elif place and goal in pages and place not in pages[goal].names:
                yield f"{page.name}: {target}, no such place on the page"


def test_every_link_within_the_site_leads_somewhere():
    site = os.environ.get("DOCS_SITE")
    if site is None:
        pytest.skip("DOCS_SITE names no built site; nox -s docs sets it")
    drawn = (Path(site) / "core-events" / "events.html").read_text(encoding="utf-8")
    assert [event.name for event in Event if f">{event.name}</text>" not in drawn] == []
    assert list(broken_links(Path(site))) == []


def test_a_broken_link_would_be_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#x">b</a> <a href="c.html">c</a><p id="y">')
    (tmp_path / "b.html").write_text('<p id="x"> <a href="a.html#y">a</a> <a href="#z">z</a>')
    assert sorted(broken_links(tmp_path)) == [
        "a.html: c.html",
        "b.html: #z, no such place on the page",
    ]
