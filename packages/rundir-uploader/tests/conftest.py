"""What the tests of this package share: watched stores, run directories, processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rundir_uploader import Pacing
from stretto.object_store import LocalStore, MemoryStore, Store
from stretto.object_store.source import iter_chunks
from stretto.object_store.wrappers.forward import ForwardingStore

QUICK = Pacing(settle=0.02, max_settle=0.5)


class WatchedStore(ForwardingStore):
    """A real store that tells what was put, and that can be slow or refuse."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.lock = threading.Lock()
        self.puts: list[tuple[str, bytes]] = []
        self.begun: list[str] = []
        self.overlaps: list[str] = []
        self.in_flight: set[str] = set()
        self.delay: Callable[[str, bytes], float] = lambda _key, _data: 0.0
        self.fail: Callable[[str], Exception | None] = lambda _key: None
        self.fail_after: Callable[[str], Exception | None] = lambda _key: None

    def put(self, key, source, **keywords):
        with self.lock:
            self.begun.append(key)
            if key in self.in_flight:
                self.overlaps.append(key)
            self.in_flight.add(key)
        try:
            data = b"".join(iter_chunks(source))
            error = self.fail(key)
            if error is not None:
                raise error
            time.sleep(self.delay(key, data))
            result = self.inner.put(key, data, **keywords)
            with self.lock:
                self.puts.append((key, data))
            error = self.fail_after(key)
            if error is not None:
                raise error
            return result
        finally:
            with self.lock:
                self.in_flight.discard(key)

    def keys_put(self, *, manifest: bool = False) -> list[str]:
        return [key for key, _ in self.puts if manifest or ".rundir-uploader/" not in key]

    def contents(self) -> dict[str, bytes]:
        """All objects but the manifest."""
        return {
            meta.key: self.inner.get(meta.key).read()
            for meta in self.inner.list()
            if ".rundir-uploader/" not in meta.key
        }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore(MemoryStore())


@pytest.fixture
def local(tmp_path: Path) -> WatchedStore:
    return WatchedStore(LocalStore(tmp_path / "store", durable=False))


@pytest.fixture
def quick() -> Pacing:
    return QUICK


@pytest.fixture
def watched() -> type[WatchedStore]:
    return WatchedStore


def tree(root: Path) -> dict[str, bytes]:
    """All mirrored regular files below a root, by relative path."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            key = path.relative_to(root).as_posix()
            if ".rundir-uploader" in Path(key).parts or key.endswith(".tmp"):
                continue
            if path.is_file() and not path.is_symlink():
                found[key] = path.read_bytes()
    return found


@pytest.fixture
def files_of() -> Callable[[Path], dict[str, bytes]]:
    return tree


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the real command line."""

    def run_it(
        *arguments: object, env: dict[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rundir_uploader", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            check=False,
        )

    return run_it


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python code in a session of its own; whatever is left of it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start_it(
        code: str, *arguments: object, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start_it
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def eventually() -> Callable[..., None]:
    def wait(condition: Callable[[], object], timeout: float = 30.0, what: str = "") -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"did not come true within {timeout} s: {what or condition}")
            time.sleep(0.02)

    return wait


@pytest.fixture
def gone(eventually: Callable[..., None]) -> Callable[..., None]:
    """Wait for a process that is no child of ours to end."""

    def is_gone(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def wait(pid: int, timeout: float = 30.0) -> None:
        eventually(lambda: is_gone(pid), timeout, f"process {pid} ends")

    return wait


@pytest.fixture(autouse=True, scope="session")
def interrupts_arrive() -> None:
    """Where the tests run in the background, Ctrl-C is ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
