from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONSUMER = Path(__file__).with_name("typing_consumer.py")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")
def test_a_strict_type_checker_refuses_exactly_the_wrong_lines(tmp_path):
    shutil.copy(CONSUMER, tmp_path)
    settings = {"include": [CONSUMER.name], "typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable,
         "-p", str(tmp_path)],
        capture_output=True,
        text=True,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    refused = {
        problem["range"]["start"]["line"] + 1: problem["message"]
        for problem in report["generalDiagnostics"]
        if problem["severity"] == "error"
    }
    lines = CONSUMER.read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    assert set(refused) == wrong, refused
    assert len(wrong) == 5
