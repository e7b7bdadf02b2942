"""The real command and the real process against real S3 servers and broken connections."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rundir_uploader import IncompleteUploadError, Pacing, RunDirectoryUploader, Uploader
from stretto.core_events import Engine, Event, Logger
from stretto.core_events.testing import ScriptedState
from stretto.object_store.conformance.faults import Fault, FaultKind, FaultProxy
from stretto.object_store.conformance.running import serving
from stretto.object_store.conformance.servers import (
    ACCESS_KEY,
    SECRET_KEY,
    Ministack,
    Rclone,
)

pytestmark = pytest.mark.server

WRITER = """
import os, sys, time
from pathlib import Path
from rundir_uploader import Uploader
run, url = Path(sys.argv[1]), sys.argv[2]
uploader = Uploader(run, url).start()
print(uploader.pid, flush=True)
number = 0
while True:
    (run / f"f{number}").write_bytes(os.urandom(500))
    with (run / "log").open("a") as log:
        log.write(f"line {number}\\n")
    if number % 25 == 24:
        (run / f"ckpt{number}.part").write_bytes(os.urandom(200_000))
        (run / f"ckpt{number}.part").rename(run / f"ckpt{number}.pt")
        (run / "latest.new").symlink_to(f"ckpt{number}.pt")
        (run / "latest.new").rename(run / "latest")
        uploader.trigger()
        print(number, flush=True)
    number += 1
    time.sleep(0.002)
"""


@pytest.fixture(scope="module")
def rclone() -> Iterator[Rclone]:
    yield from serving(Rclone)


@pytest.fixture(scope="module")
def ministack() -> Iterator[Ministack]:
    yield from serving(Ministack)


@pytest.fixture
def aws(monkeypatch) -> Callable[[str], None]:
    def point_at(endpoint: str) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)

    return point_at


@pytest.fixture
def bucket(rclone: Rclone, aws, request) -> str:
    aws(rclone.url)
    name = f"b{abs(hash(request.node.name)) % 10**10}"
    rclone.make_bucket(name)
    return name


def in_bucket(rclone: Rclone, bucket: str, files_of, prefix: str = "p") -> dict[str, bytes]:
    return {
        key: data
        for key, data in files_of(rclone.objects / bucket / prefix).items()
        if not key.endswith(".symlink")
    }


@pytest.fixture(params=["rclone", "ministack"])
def url(request, aws) -> str:
    server = request.getfixturevalue(request.param)
    aws(server.url)
    name = f"c{abs(hash(request.node.name)) % 10**10}"
    server.make_bucket(name)
    return f"s3://{name}/runs/mine"


def test_sync_and_verify(url, run, command) -> None:
    (run / "sub").mkdir()
    (run / "sub" / "zero").touch()
    (run / "a b+ü?#.txt").write_text("odd name")
    (run / "large").write_bytes(os.urandom(20 << 20))
    (run / "latest").symlink_to("large")
    for number in range(30):
        (run / f"f{number}").write_bytes(os.urandom(100))
    assert command("sync", run, url).returncode == 0
    for extra in ((), ("--download",)):
        checked = command("verify", run, url, *extra)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "agree: 34 files" in checked.stdout
    assert "sent 0 B" in command("sync", run, url).stdout
    (run / "f3").write_bytes(os.urandom(100))
    (run / "large").write_bytes(os.urandom(20 << 20))
    checked = command("verify", run, url)
    assert checked.returncode == 1
    assert "content: f3" in checked.stdout
    if "large" in checked.stdout:
        assert "content: large" in checked.stdout


def test_verify_finds_one_changed_byte(rclone, bucket, run, command) -> None:
    (run / "a").write_bytes(os.urandom(10_000))
    command("sync", run, f"s3://{bucket}/p")
    stored = rclone.objects / bucket / "p" / "a"
    data = bytearray(stored.read_bytes())
    data[5000] ^= 1
    stored.write_bytes(data)
    checked = command("verify", run, f"s3://{bucket}/p")
    assert checked.returncode == 1
    assert "content: a" in checked.stdout


def test_kill_9_of_the_trainers_group(rclone, bucket, run, start, gone, files_of, command) -> None:
    trainer = start(WRITER, run, f"s3://{bucket}/p")
    uploader = int(trainer.stdout.readline())
    for _ in range(10):
        trainer.stdout.readline()
    os.killpg(trainer.pid, signal.SIGKILL)
    trainer.wait()
    gone(uploader, 60)
    for left in run.glob("*.part"):
        left.unlink()  # killed between writing and renaming
    stored = in_bucket(rclone, bucket, files_of)
    assert {k: v for k, v in stored.items() if not k.endswith(".part")} == files_of(run)
    newest = str((run / "latest").readlink())
    assert (rclone.objects / bucket / "p" / "latest.symlink").read_text() == newest
    with Uploader(run, f"s3://{bucket}/p") as again:
        assert again.pid != uploader


def test_kill_9_of_the_uploader(rclone, bucket, run, files_of) -> None:
    with Uploader(run, f"s3://{bucket}/p") as uploader:
        for number in range(40):
            (run / f"f{number}").write_bytes(os.urandom(20_000))
        uploader.trigger()
        time.sleep(0.05)
        os.kill(uploader.pid, signal.SIGKILL)
        for number in range(40, 60):
            (run / f"f{number}").write_bytes(os.urandom(20_000))
        uploader.trigger()
    assert in_bucket(rclone, bucket, files_of) == files_of(run)
    assert uploader.status().restarts == 1


def test_the_pointer_is_never_ahead_of_its_target(
    rclone, bucket, run, start, gone, files_of
) -> None:
    """A10: whoever reads the pointer in the store finds the whole checkpoint that it names."""
    trainer = start(WRITER, run, f"s3://{bucket}/p")
    uploader = int(trainer.stdout.readline())
    folder = rclone.objects / bucket / "p"
    seen: set[str] = set()
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline and len(seen) < 3:
        try:
            name = (folder / "latest.symlink").read_text()
        except FileNotFoundError:
            continue
        if name:
            seen.add(name)
            assert len((folder / name).read_bytes()) == 200_000, name
    os.killpg(trainer.pid, signal.SIGKILL)
    gone(uploader, 60)
    assert len(seen) >= 2, "too few to prove anything"


def test_an_outage_in_the_middle_of_a_run(rclone, bucket, run, files_of, aws, caplog) -> None:
    """A3, U6, U8: connections are refused for a while; the run goes on and all arrives."""
    with FaultProxy(rclone.port) as proxy:
        aws(proxy.url)
        with Uploader(run, f"s3://{bucket}/p", pacing=Pacing(settle=0.02)) as uploader:
            (run / "before").write_text("b")
            uploader.flush()
            proxy.plan(otherwise=Fault(kind=FaultKind.REFUSE))
            for number in range(20):
                (run / f"f{number}").write_text(str(number))
                uploader.trigger()
                time.sleep(0.02)
            time.sleep(3)
            proxy.plan()
        assert in_bucket(rclone, bucket, files_of) == files_of(run)


@pytest.mark.slow
def test_cut_connections_and_lost_answers(rclone, bucket, run, files_of, aws) -> None:
    with FaultProxy(rclone.port) as proxy:
        aws(proxy.url)
        for number in range(15):
            (run / f"f{number}").write_bytes(os.urandom(300_000))
        (run / "large").write_bytes(os.urandom(24 << 20))
        kinds = [
            Fault(kind=FaultKind.CUT_REQUEST, after=100_000),
            Fault(kind=FaultKind.LOSE_ANSWER),
            Fault(kind=FaultKind.REFUSE),
            Fault(kind=FaultKind.CUT_ANSWER, after=20),
            Fault(kind=FaultKind.STATUS, status=503),
            Fault(kind=FaultKind.STATUS, status=429, retry_after="1"),
        ]
        uploader = Uploader(run, f"s3://{bucket}/p").start()
        proxy.plan(*kinds, *kinds)
        uploader.close()
        assert in_bucket(rclone, bucket, files_of) == files_of(run)


def test_a_rate_limit_is_waited_out(rclone, bucket, run, files_of, aws) -> None:
    """A23: 429 with Retry-After is not a failure."""
    with FaultProxy(rclone.port) as proxy:
        aws(proxy.url)
        uploader = Uploader(run, f"s3://{bucket}/p", num_concurrent_uploads=1).start()
        (run / "a").write_text("a")
        proxy.plan(*[Fault(kind=FaultKind.STATUS, status=429, retry_after="1")] * 2)
        uploader.close()
        assert in_bucket(rclone, bucket, files_of) == files_of(run)


def test_wrong_credentials_are_3_for_commands_and_a_warning_for_the_callback(
    rclone, bucket, run, command, monkeypatch, caplog
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
    (run / "a").write_text("a")
    for name in ("sync", "verify"):
        done = command(name, run, f"s3://{bucket}/p")
        assert done.returncode == 3, done.stdout + done.stderr
        assert "Credentials" in done.stderr
        assert "wrong-and-secret" not in done.stdout + done.stderr
    assert not (run / ".rundir-uploader").exists()
    for name in ("STRETTO_RUN_DIRECTORY", "COMPOSER_RUN_DIRECTORY"):
        monkeypatch.setenv(name, str(run))
    state = ScriptedState(callbacks=[RunDirectoryUploader(f"s3://{bucket}/p")])
    engine = Engine(state, Logger(state))
    engine.run_event(Event.INIT)
    engine.run_event(Event.EPOCH_END)
    with pytest.raises(IncompleteUploadError, match="Credentials"):
        engine.close()
    assert "STORE REFUSES" in caplog.text


def test_a_missing_bucket_is_3(rclone, bucket, run, command) -> None:
    (run / "a").write_text("a")
    for name in ("sync", "verify"):
        done = command(name, run, "s3://no-such-bucket-here/p")
        assert done.returncode == 3, done.stdout + done.stderr
        assert "no-such-bucket-here" in done.stderr


def test_secrets_are_nowhere(rclone, bucket, run) -> None:
    with Uploader(run, f"s3://{bucket}/p") as uploader:
        (run / "a").write_text("a")
        uploader.flush()
        cmdline = Path(f"/proc/{uploader.pid}/cmdline").read_bytes()
        assert SECRET_KEY.encode() not in cmdline
        assert ACCESS_KEY.encode() not in cmdline
    for folder in (run / ".rundir-uploader", rclone.objects / bucket):
        for path in folder.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert SECRET_KEY.encode() not in data, path
                assert ACCESS_KEY.encode() not in data, path


def test_a_silent_server_does_not_stop_the_run(rclone, bucket, run, files_of, aws) -> None:
    """A13: a server that takes bytes and never answers is given up on, and tried again."""
    with FaultProxy(rclone.port) as proxy:
        aws(proxy.url)
        options = {"read_timeout": 1.0, "connect_timeout": 1.0}
        uploader = Uploader(run, f"s3://{bucket}/p", store_options=options).start()
        (run / "a").write_bytes(os.urandom(100_000))
        proxy.plan(*[Fault(kind=FaultKind.SILENCE, after=50_000)] * 2)
        began = time.monotonic()
        uploader.trigger()
        assert time.monotonic() - began < 0.5
        uploader.close()
        assert in_bucket(rclone, bucket, files_of) == files_of(run)


@pytest.mark.slow
def test_many_commands_at_once_on_one_directory_end_with_a_whole_store(
    rclone, bucket, run, files_of
) -> None:
    for number in range(200):
        (run / f"f{number}").write_bytes(os.urandom(1000))
    url = f"s3://{bucket}/p"
    done: list[int] = []

    def sync() -> None:
        command = [sys.executable, "-m", "rundir_uploader", "sync", str(run), url]
        done.append(subprocess.run(command, capture_output=True, check=False).returncode)

    threads = [threading.Thread(target=sync) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 in done
    assert set(done) <= {0, 1}
    assert in_bucket(rclone, bucket, files_of) == files_of(run)


@pytest.mark.slow
def test_a_busy_writer_and_a_store_that_fails_a_fifth_of_the_time(
    rclone, bucket, run, files_of, aws, command
) -> None:
    """200 files a second, every fifth connection broken, the uploader killed now and then."""
    import random

    import psutil

    seed = time.time_ns() % 2**32
    print("seed", seed)
    chance = random.Random(seed)
    kinds = [FaultKind.REFUSE, FaultKind.LOSE_ANSWER, FaultKind.CUT_REQUEST, FaultKind.CUT_ANSWER]
    with FaultProxy(rclone.port) as proxy:
        aws(proxy.url)
        uploader = Uploader(run, f"s3://{bucket}/p").start()
        faults = [
            Fault(kind=chance.choice(kinds), after=chance.randrange(2000))
            if chance.random() < 0.2
            else Fault(kind=FaultKind.NONE)
            for _ in range(20_000)
        ]
        proxy.plan(*faults)
        ends = time.monotonic() + 20
        memory = []
        number = 0
        while time.monotonic() < ends:
            name = f"f{chance.randrange(1500)}"
            (run / name).write_bytes(os.urandom(chance.randrange(3000)))
            with (run / "log").open("a") as log:
                log.write(f"{number} {name}\n")
            if number % 7 == 0:
                (run / f"f{chance.randrange(1500)}").unlink(missing_ok=True)
            if number % 50 == 0:
                uploader.trigger()
                with contextlib.suppress(psutil.NoSuchProcess):  # between two lives
                    memory.append(psutil.Process(uploader.pid).memory_info().rss)
            if number % 1500 == 1499:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(uploader.pid, signal.SIGKILL)
            number += 1
            time.sleep(0.004)
        proxy.plan()
        uploader.close()
    assert uploader.status().restarts >= 1
    aws(rclone.url)
    stored = in_bucket(rclone, bucket, files_of)
    on_disk = files_of(run)
    assert {name: data for name, data in stored.items() if name in on_disk} == on_disk
    checked = command("verify", run, f"s3://{bucket}/p")
    assert checked.returncode == 0, checked.stdout[-2000:]
    assert max(memory) < 150 << 20
