"""Networks that fail: the right bytes stored once, or a clear error in time.

Each test runs through both S3 libraries against ministack, behind the suite's fault proxy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stretto.object_store import (
    AlreadyExistsError,
    ObjectStoreError,
    PutMode,
    RetryPolicy,
    Store,
    StoreTimeoutError,
    ThrottledError,
    TransientError,
    download_file,
    upload_file,
)
from stretto.object_store.conformance.faults import Fault, FaultKind, FaultProxy
from stretto.object_store.conformance.objects import some_bytes
from stretto.object_store.conformance.servers import Ministack

pytestmark = [pytest.mark.server, pytest.mark.slow]
QUICK = RetryPolicy(attempts=4, deadline=30.0, wait_initial=0.01, wait_max=0.05, jitter=0.01)
SMALL = some_bytes(200_000)
LARGE = some_bytes(20 << 20)

RECOVERABLE = {
    "refused": Fault(kind=FaultKind.REFUSE),
    "cut in the request": Fault(kind=FaultKind.CUT_REQUEST, after=50_000),
    "cut before the answer": Fault(kind=FaultKind.LOSE_ANSWER),
    "cut in the answer": Fault(kind=FaultKind.CUT_ANSWER, after=20),
    "503": Fault(kind=FaultKind.STATUS, status=503),
    "503 with a time": Fault(kind=FaultKind.STATUS, status=503, retry_after="0"),
    "429": Fault(kind=FaultKind.STATUS, status=429),
    "500": Fault(kind=FaultKind.STATUS, status=500),
    "silence": Fault(kind=FaultKind.SILENCE, after=1000),
    "silence instead of an answer": Fault(kind=FaultKind.SILENT_ANSWER, after=0),
    "a slow start": Fault(kind=FaultKind.DELAY, seconds=0.3),
    "a slow uplink": Fault(kind=FaultKind.SLOW_REQUEST, seconds=0.1),
    "a trickle": Fault(kind=FaultKind.TRICKLE, seconds=0.05),
}


@pytest.fixture
def proxy(ministack: Ministack) -> Iterator[FaultProxy]:
    with FaultProxy(ministack.port) as running:
        yield running


@pytest.fixture(params=["obstore", "libcloud"])
def library(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def direct(bucket_on: Callable[..., Store], ministack: Ministack) -> Store:
    """The same bucket, without faults."""
    return bucket_on(ministack)


@pytest.fixture
def faulty(
    reach: Callable[..., Store],
    ministack: Ministack,
    direct: Store,
    proxy: FaultProxy,
    library: str,
) -> Callable[..., Store]:
    bucket = direct.uri("").removeprefix("s3://")

    def make(**options: Any) -> Store:
        settings: dict[str, Any] = {
            "endpoint": proxy.url,
            "backend": library,
            "retry": QUICK,
            "check": False,
            "connect_timeout": 2.0,
            "read_timeout": 1.0,
            "upload_timeout": 1.5,
        }
        return reach(ministack, bucket, **(settings | options))

    return make


@pytest.mark.parametrize("fault", RECOVERABLE.values(), ids=RECOVERABLE)
def test_an_upload_survives_two_faults(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy, tmp_path: Path, fault: Fault
) -> None:
    path = tmp_path / "file"
    path.write_bytes(SMALL)
    proxy.plan(fault, fault)
    upload_file(faulty(), "key", path)
    assert direct.get("key").read() == SMALL
    assert [meta.key for meta in direct.list()] == ["key"]
    assert proxy.connections >= (
        1 if fault.kind in (FaultKind.DELAY, FaultKind.TRICKLE, FaultKind.SLOW_REQUEST) else 3
    )


@pytest.mark.parametrize("fault", RECOVERABLE.values(), ids=RECOVERABLE)
def test_a_download_survives_two_faults(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy, tmp_path: Path, fault: Fault
) -> None:
    direct.put("key", SMALL)
    proxy.plan(fault, fault)
    download_file(faulty(), "key", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == SMALL
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind=FaultKind.REFUSE),
        Fault(kind=FaultKind.CUT_REQUEST, after=3_000_000),
        Fault(kind=FaultKind.LOSE_ANSWER),
        Fault(kind=FaultKind.STATUS, status=503),
        Fault(kind=FaultKind.SILENCE, after=3_000_000),
    ],
    ids=lambda fault: fault.kind.value,
)
def test_an_upload_in_parts_survives_faults(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy, tmp_path: Path, fault: Fault
) -> None:
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    proxy.plan(Fault(kind=FaultKind.NONE), fault, fault)
    upload_file(faulty(), "key", path)
    assert direct.get("key").read() == LARGE
    assert [meta.key for meta in direct.list()] == ["key"]


def test_a_download_goes_on_where_it_broke_off(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    direct.put("key", LARGE)
    cut = Fault(kind=FaultKind.CUT_ANSWER, after=6 << 20)
    proxy.plan(*[cut] * 3)
    download_file(faulty(), "key", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == LARGE
    # 20 MiB in pieces of at most 6 MiB: had it begun anew each time, it would never have ended.
    assert proxy.connections == 4


def test_more_cuts_than_attempts_do_not_matter_while_bytes_arrive(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy
) -> None:
    direct.put("key", LARGE)
    proxy.plan(otherwise=Fault(kind=FaultKind.CUT_ANSWER, after=3 << 20))
    assert faulty().get("key").read() == LARGE
    assert proxy.connections > QUICK.attempts


PERMANENT = {
    "refused": (Fault(kind=FaultKind.REFUSE), TransientError),
    "cut": (Fault(kind=FaultKind.CUT_REQUEST, after=1000), TransientError),
    "503": (Fault(kind=FaultKind.STATUS, status=503), ThrottledError),
    "429": (Fault(kind=FaultKind.STATUS, status=429, retry_after="0"), ThrottledError),
    "500": (Fault(kind=FaultKind.STATUS, status=500), TransientError),
    "silence": (Fault(kind=FaultKind.SILENCE, after=1000), StoreTimeoutError),
}


@pytest.mark.parametrize(("fault", "expected"), PERMANENT.values(), ids=PERMANENT)
def test_a_fault_that_stays_is_a_clear_error_in_time(
    faulty: Callable[..., Store],
    direct: Store,
    proxy: FaultProxy,
    tmp_path: Path,
    fault: Fault,
    expected: type[ObjectStoreError],
) -> None:
    path = tmp_path / "file"
    path.write_bytes(SMALL)
    store = faulty()
    proxy.plan(otherwise=fault)
    began = time.monotonic()
    with pytest.raises(expected) as caught:
        upload_file(store, "key", path)
    assert time.monotonic() - began < 20
    assert caught.value.key == "key"
    assert caught.value.store == store.uri("")
    assert isinstance(caught.value, ConnectionError)
    assert list(direct.list()) == []


@pytest.mark.parametrize("size", [200_000, 20 << 20])
def test_a_silent_peer_ends_within_the_timeout(
    faulty: Callable[..., Store], proxy: FaultProxy, tmp_path: Path, size: int
) -> None:
    """libcloud alone waits for ever here."""
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    proxy.plan(otherwise=Fault(kind=FaultKind.SILENCE, after=100))
    began = time.monotonic()
    with pytest.raises(TransientError):
        upload_file(faulty(retry=None), "key", path)
    assert time.monotonic() - began < 20


def test_a_silent_download_ends_within_the_timeout(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy
) -> None:
    direct.put("key", LARGE)
    proxy.plan(otherwise=Fault(kind=FaultKind.SILENT_ANSWER, after=2 << 20))
    began = time.monotonic()
    with pytest.raises(StoreTimeoutError):
        faulty(retry=None).get("key").read()
    assert time.monotonic() - began < 10


def test_a_deadline_ends_the_tries(faulty: Callable[..., Store], proxy: FaultProxy) -> None:
    proxy.plan(otherwise=Fault(kind=FaultKind.REFUSE))
    policy = RetryPolicy(attempts=1000, deadline=1.0, wait_initial=0.2, wait_max=0.2, jitter=0.0)
    began = time.monotonic()
    with pytest.raises(TransientError):
        faulty(retry=policy).put("key", b"x")
    assert time.monotonic() - began < 5
    assert proxy.connections < 20


def test_a_create_whose_answer_was_lost_does_not_fail_its_repetition(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy
) -> None:
    proxy.plan(Fault(kind=FaultKind.LOSE_ANSWER))
    result = faulty().put("key", b"mine", mode=PutMode.CREATE)
    assert proxy.connections >= 2
    assert result.version == direct.head("key").version
    assert direct.get("key").read() == b"mine"


def test_a_create_that_somebody_else_won_fails_also_when_repeated(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy
) -> None:
    direct.put("key", b"theirs")
    proxy.plan(Fault(kind=FaultKind.REFUSE))
    with pytest.raises(AlreadyExistsError):
        faulty().put("key", b"mine", mode=PutMode.CREATE)
    assert direct.get("key").read() == b"theirs"


def test_a_delete_whose_answer_was_lost_does_not_fail_its_repetition(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy
) -> None:
    direct.put("key", b"x")
    store = faulty()
    store.head("key")  # takes the first, faultless connection
    proxy.plan(Fault(kind=FaultKind.LOSE_ANSWER), Fault(kind=FaultKind.LOSE_ANSWER))
    store.delete("key")
    assert list(direct.list()) == []


def test_a_listing_goes_on_after_a_fault(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy
) -> None:
    expected = [f"many/{number:04d}" for number in range(30)]
    for key in expected:
        direct.put(key, b"x")
    proxy.plan(Fault(kind=FaultKind.REFUSE), Fault(kind=FaultKind.CUT_ANSWER, after=500))
    assert [meta.key for meta in faulty().list()] == expected


def test_a_corrupted_download_is_noticed_and_repeated(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    direct.put("key", SMALL)
    proxy.plan(Fault(kind=FaultKind.CORRUPT_ANSWER))
    store = faulty()
    download_file(store, "key", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == SMALL


def test_an_iterator_is_sent_once_or_not_at_all(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy
) -> None:
    proxy.plan(Fault(kind=FaultKind.CUT_REQUEST, after=1000))
    with pytest.raises(TransientError):
        faulty().put("key", iter([SMALL[:1000], SMALL[1000:]]))
    assert list(direct.list()) == []


def test_abandoned_parts_are_taken_away(
    faulty: Callable[..., Store], direct: Store, ministack: Ministack
) -> None:
    from stretto.object_store.conformance.servers import request

    class SourceFailed(Exception):
        pass

    def failing() -> Iterator[bytes]:
        yield LARGE
        raise SourceFailed

    with pytest.raises(SourceFailed):
        faulty().put("key", failing())
    bucket = direct.uri("").removeprefix("s3://")
    _, body = request(ministack.port, "GET", f"/{bucket}?uploads")
    assert b"<Upload>" not in body


def test_a_slow_uplink_is_not_silence(
    faulty: Callable[..., Store], direct: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Sending takes longer than the read time-out, and that is nothing to give up for."""
    path = tmp_path / "file"
    path.write_bytes(some_bytes(3 << 20))
    proxy.plan(otherwise=Fault(kind=FaultKind.SLOW_REQUEST, seconds=0.06))
    began = time.monotonic()
    upload_file(faulty(retry=None, read_timeout=1.0, upload_timeout=30.0), "key", path)
    assert time.monotonic() - began > 2
    assert direct.get("key").read() == path.read_bytes()
