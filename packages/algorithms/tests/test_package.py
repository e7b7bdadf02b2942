"""What can be imported, what importing does not do, and what type checkers say."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import stretto.algorithms
from stretto.algorithms import functional
from stretto.algorithms.randomness import keyed_generator, keyed_seed
from stretto.algorithms.registry import METHODS, create
from stretto.core_events import Algorithm


def test_every_public_name_is_there():
    for name in stretto.algorithms.__all__:
        assert getattr(stretto.algorithms, name).__name__ == name
    assert set(stretto.algorithms.__all__) <= set(dir(stretto.algorithms))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = stretto.algorithms.Nothing


def test_importing_the_root_imports_no_torch():
    code = "import sys, stretto.algorithms; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_functional_has_every_methods_function():
    assert {method.function for method in METHODS.values()} <= set(functional.__all__)
    for name in functional.__all__:
        assert getattr(functional, name) is getattr(stretto.algorithms, name)


@pytest.mark.parametrize("name", METHODS)
def test_the_registry_finds_classes_and_functions(name):
    method = METHODS[name]
    found = method.algorithm_class()
    assert issubclass(found, Algorithm)
    assert found is getattr(stretto.algorithms, method.algorithm)
    assert callable(getattr(importlib.import_module(method.module), method.function))


def test_methods_are_made_by_name():
    assert create("mixup", alpha=0.3).alpha == 0.3
    assert create("Label-Smoothing", smoothing=0.3).smoothing == 0.3
    with pytest.raises(ValueError, match=r"No method is called 'cutmux'\. There are blurpool"):
        create("cutmux")


def test_seeds_depend_on_all_that_they_are_made_of():
    seeds = {
        keyed_seed(seed=seed, batch=batch, method=method)
        for seed in range(20)
        for batch in range(20)
        for method in ("MixUp", "CutMix")
    }
    assert len(seeds) == 800
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert keyed_seed(seed=1, batch=23, method="M") != keyed_seed(seed=12, batch=3, method="M")
    one, two = (keyed_generator(seed=1, batch=2, method="M").initial_seed() for _ in range(2))
    assert one == two


CONSUMER = """
from collections.abc import Sequence
from typing import Any

from torch import nn

from stretto.algorithms import BlurPool, GradientClipping, LabelSmoothing, MixUp
from stretto.algorithms.testing import LoopState
from stretto.core_events import Algorithm, Engine, Logger, State


class OnlyAModel(State):
    @property
    def model(self) -> nn.Module:
        return nn.Identity()


everything: list[Algorithm[LoopState]] = [
    BlurPool(), MixUp(), LabelSmoothing(), GradientClipping("norm", 1.0)
]
clipping: list[Algorithm[OnlyAModel]] = [GradientClipping("norm", 1.0)]
anything: Sequence[Algorithm[Any]] = everything
state = LoopState(nn.Identity())
Engine(state, Logger(state), algorithms=everything)
mixing: list[Algorithm[OnlyAModel]] = [MixUp()]  # wrong
surgery: list[Algorithm[OnlyAModel]] = [BlurPool()]  # wrong
GradientClipping("length", 1.0)  # wrong
"""


@pytest.mark.slow
def test_a_type_checker_takes_methods_only_where_the_state_has_what_they_need(tmp_path: Path):
    pytest.importorskip("pyright")
    source = tmp_path / "consumer.py"
    source.write_text(CONSUMER)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    here = ["-p", str(tmp_path), "--pythonpath", sys.executable]
    result = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", *here],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=280,
    )
    found = json.loads(result.stdout)["generalDiagnostics"]
    errors = {entry["range"]["start"]["line"] for entry in found if entry["severity"] == "error"}
    wrong = {number for number, line in enumerate(CONSUMER.splitlines()) if "# wrong" in line}
    assert errors == wrong, result.stdout
