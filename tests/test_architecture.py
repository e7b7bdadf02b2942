"""Rules of the architecture that no import contract can say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRAINER = ROOT / "packages" / "trainer" / "src" / "stretto" / "trainer"


def imported(path: Path, *, everywhere: bool = True) -> set[str]:
    """Return the modules a file imports; with everywhere=False only when it is imported itself."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if everywhere else iter(tree.body)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", sorted(TRAINER.glob("loop/*.py")), ids=lambda path: path.name)
def test_the_loop_knows_no_sharding(path):
    assert not {name for name in imported(path) if name.startswith("torch.distributed")}


def test_device_choices_stay_in_devices():
    sources = [p for p in ROOT.glob("packages/*/src/**/*.py") if "devices" not in p.parts]
    assert len(sources) > 100
    chosen = re.compile(r"\.cuda\(\)|\.to\(['\"]cuda")
    assert not [str(path) for path in sources if chosen.search(path.read_text())]


def test_sharding_and_distributed_checkpoints_are_imported_when_chosen():
    script = (
        "import sys, stretto.trainer.trainer, stretto.trainer.build\n"
        "chosen = ('torch.distributed.fsdp', 'torch.distributed.checkpoint')\n"
        "ours = [m for m in sys.modules if m.startswith('stretto.trainer.parallel.fsdp')]\n"
        "print(sorted(set(chosen) & set(sys.modules)) + ours)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_exceptions_to_the_limits_say_why():
    table = tomllib.loads((ROOT / ".ci" / "limits.toml").read_text())["exceptions"]
    assert not [name for name, reason in table.items() if len(reason) < 20]
