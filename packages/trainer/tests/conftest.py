from __future__ import annotations

import importlib.util
import itertools
import os
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("_ranks", Path(__file__).with_name("ranks.py"))
_ranks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_ranks)


@pytest.fixture(scope="session")
def _rank_server():
    server = _ranks.RankServer()
    yield server
    server.close()


@pytest.fixture
def run_ranks(_rank_server, tmp_path):
    """``run_ranks(function, n=2, timeout=60, env={}, expect_failure=False, **arguments)``.

    Runs a function, which must import all that it uses itself, on n processes that are ranks of one
    run (``RANK``, ``WORLD_SIZE``, ``MASTER_PORT`` … are set, the working directory is a fresh
    folder; the process group is not started). Returns what each rank returned, in rank order; a
    rank that fails or hangs fails the test with every rank's output. With ``expect_failure`` it
    returns each rank's ``(exit code, output)`` instead.
    """
    numbers = itertools.count()

    def run(function, n=2, *, timeout=60.0, env=None, expect_failure=False, **arguments):
        return _rank_server.run(
            function,
            n,
            tmp_path / f"ranks{next(numbers)}",
            timeout=timeout,
            env=env or {},
            arguments=arguments,
            expect_failure=expect_failure,
        )

    return run


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path, monkeypatch):
    """Every test runs in a fresh working directory, where no run directory is settled yet."""
    monkeypatch.chdir(tmp_path)
    variables = ("STRETTO_RUN_DIRECTORY", "COMPOSER_RUN_DIRECTORY")
    before = {name: os.environ.pop(name, None) for name in variables}
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
