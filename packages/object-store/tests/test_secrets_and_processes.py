"""Secrets stay hidden, and stores cross process boundaries without them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from stretto.object_store import ObjectStoreError, Store, open_store
from stretto.object_store.conformance.servers import ACCESS_KEY, SECRET_KEY, Rclone
from stretto.object_store.secret import Secret

pytestmark = pytest.mark.server
BACKENDS = [None, "libcloud"]
NAMES = {
    "access_key_id": None,
    "secret_access_key": None,
    "access_key_id_environ": "TEST_KEY",
    "secret_access_key_environ": "TEST_SECRET",
}


def write_from_another_process(store: Store) -> None:
    store.put("from-child", store.get("from-parent").read() + b" and child")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_survives_spawn(
    bucket_on: Callable[..., Store],
    rclone: Rclone,
    backend: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEST_KEY", ACCESS_KEY)
    monkeypatch.setenv("TEST_SECRET", SECRET_KEY)
    store = bucket_on(rclone, backend=backend, **NAMES)
    store.put("from-parent", b"parent")
    child = multiprocessing.get_context("spawn").Process(
        target=write_from_another_process, args=(store,)
    )
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert store.get("from-child").read() == b"parent and child"


@pytest.mark.parametrize("backend", BACKENDS)
def test_pickles_hold_names_of_variables_only(
    bucket_on: Callable[..., Store],
    rclone: Rclone,
    backend: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEST_KEY", ACCESS_KEY)
    monkeypatch.setenv("TEST_SECRET", SECRET_KEY)
    frozen = pickle.dumps(bucket_on(rclone, backend=backend, **NAMES))
    assert b"TEST_SECRET" in frozen
    assert SECRET_KEY.encode() not in frozen
    monkeypatch.delenv("TEST_SECRET")
    with pytest.raises(ObjectStoreError, match="TEST_SECRET"):
        pickle.loads(frozen)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_secret_given_as_an_argument_is_not_pickled(
    bucket_on: Callable[..., Store], rclone: Rclone, backend: str | None
) -> None:
    store = bucket_on(rclone, backend=backend)
    assert not store.capabilities.picklable
    with pytest.raises(pickle.PicklingError, match="environment"):
        pickle.dumps(store)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_secret_is_shown_anywhere(
    bucket_on: Callable[..., Store], rclone: Rclone, backend: str | None, caplog
) -> None:
    store = bucket_on(rclone, backend=backend)
    with pytest.raises(FileNotFoundError) as caught:
        store.get("nothing")
    chain, error = [], caught.value
    while error is not None:
        chain.append(f"{error} {error!r} {vars(error)}")
        error = error.__cause__ or error.__context__
    inner = getattr(store, "inner", store)
    shown = [repr(store), str(store), store.uri("key"), caplog.text, *chain]
    shown += [repr(vars(inner)), repr(getattr(inner, "_service", None))]
    assert not [text for text in shown if SECRET_KEY in text]


def test_a_secret_hides_itself() -> None:
    secret = Secret("hunter2")
    assert "hunter2" not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == "hunter2"
    assert secret == Secret("hunter2") != Secret("other")
    with pytest.raises(pickle.PicklingError):
        pickle.dumps({"nested": [secret]})


FORKED = """
import os, signal, sys
from stretto.object_store import ObjectStoreError, open_store
store = open_store(sys.argv[1], endpoint=sys.argv[2], backend=sys.argv[3] or None)
store.put("key", b"x")
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    try:
        store.get("key").read()
        os._exit(10)
    except ObjectStoreError as error:
        os._exit(11 if "spawn" in str(error) else 12)
    except BaseException:
        os._exit(13)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize(("backend", "expected"), [("", "11"), ("libcloud", "10")])
def test_a_fork_is_noticed(
    bucket_on: Callable[..., Store], rclone: Rclone, backend: str, expected: str
) -> None:
    """obstore's threads do not survive it: an error, not a hang. libcloud goes on."""
    url = bucket_on(rclone).uri("")
    done = subprocess.run(
        [sys.executable, "-c", FORKED, url, rclone.url, backend],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
    )
    assert done.stdout.strip() == expected


def test_stores_built_in_many_threads_do_not_disturb_each_other(
    bucket_on: Callable[..., Store], reach: Callable[..., Store], rclone: Rclone
) -> None:
    buckets = [bucket_on(rclone).uri("").removeprefix("s3://") for _ in range(8)]
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait(30)
        store = reach(rclone, buckets[number], backend=BACKENDS[number % 2])
        for turn in range(10):
            store.put(f"{turn}", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    for number, bucket in enumerate(buckets):
        files = list((rclone.objects / bucket).iterdir())
        assert len(files) == 10
        assert {path.read_bytes() for path in files} == {b"%d" % number}


@pytest.mark.parametrize("backend", BACKENDS)
def test_drivers_of_two_hosts_are_not_mixed_up(
    rclone: Rclone, ministack, bucket_on: Callable[..., Store], backend: str | None
) -> None:
    """libcloud's MinIO driver keeps the host on its class."""
    one = bucket_on(rclone, backend=backend, region="some-where-1")
    other = bucket_on(ministack, backend=backend)
    for store in (one, other, one):
        store.put("key", store.uri("").encode())
    assert one.get("key").read() == one.uri("").encode()
    assert other.get("key").read() == other.uri("").encode()
    assert open_store("memory://").uri("") == "memory://"
