"""What S3 servers hold that we did not put there, and how much memory it takes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.object_store import (
    Checksum,
    InvalidUrlError,
    NotFoundError,
    PutMode,
    Store,
    open_store,
)
from stretto.object_store.backends.s3_etag import etag_checksum
from stretto.object_store.backends.s3_options import S3Arguments
from stretto.object_store.backends.s3_requests import S3Requests
from stretto.object_store.conformance.faults import FaultProxy
from stretto.object_store.conformance.objects import some_bytes
from stretto.object_store.conformance.servers import (
    ACCESS_KEY,
    SECRET_KEY,
    Ministack,
    Rclone,
    request,
)

pytestmark = pytest.mark.server
BACKENDS = [None, "libcloud"]


@pytest.fixture(params=BACKENDS, ids=["obstore", "libcloud"])
def backend(request: pytest.FixtureRequest) -> str | None:
    return request.param


FOREIGN = {
    "a//b": "a//b",
    "a/../b": "a/%2e%2e/b",
    "a/.": "a/%2e",
    "a/line\nbreak": "a/line%0abreak",
    "a/folder/": "a/folder/",
    "a/tab\tx": "a/tab%09x",
    "/a/leading": "%2fa/leading",
}


@pytest.mark.parametrize("key", FOREIGN, ids=range(len(FOREIGN)))
def test_foreign_names_are_listed_and_marked(
    bucket_on: Callable[..., Store], ministack: Ministack, backend: str | None, key: str
) -> None:
    store = bucket_on(ministack, backend=backend)
    bucket = store.uri("").removeprefix("s3://")
    for number in range(3):
        store.put(f"a/{number}", b"x")
    store.put("b", b"x")
    body = b"" if key.endswith("/") else b"foreign"
    status, _ = request(ministack.port, "PUT", f"/{bucket}/{FOREIGN[key]}", body)
    assert status == 200
    for prefix in ("", "a"):
        found = {meta.key: meta.is_clean for meta in store.list(prefix)}
        expected = {"a/0": True, "a/1": True, "a/2": True}
        if key.startswith(prefix):
            expected[key] = False
        assert found == (expected | {"b": True} if not prefix else expected)


@pytest.mark.slow
def test_a_foreign_name_late_in_a_long_listing(
    bucket_on: Callable[..., Store], ministack: Ministack, backend: str | None
) -> None:
    """The pages before it come once, and so do those after it."""
    store = bucket_on(ministack, backend=backend)
    bucket = store.uri("").removeprefix("s3://")
    keys = [f"{number:05d}" for number in range(1500)]
    for key in keys:
        assert request(ministack.port, "PUT", f"/{bucket}/{key}", b"x")[0] == 200
    request(ministack.port, "PUT", f"/{bucket}/01200//x", b"x")
    found = [meta.key for meta in store.list()]
    assert found == sorted([*keys, "01200//x"])


def test_an_empty_object_beside_a_folder_mark(
    bucket_on: Callable[..., Store], ministack: Ministack, backend: str | None
) -> None:
    store = bucket_on(ministack, backend=backend)
    bucket = store.uri("").removeprefix("s3://")
    store.put("empty", b"")
    request(ministack.port, "PUT", f"/{bucket}/marked/", b"")
    assert {meta.key: meta.is_clean for meta in store.list()} == {"empty": True, "marked/": False}
    with pytest.raises(NotFoundError):
        store.head("marked")


def test_our_own_requests_are_signed_rightly(
    bucket_on: Callable[..., Store], rclone: Rclone
) -> None:
    """The server checks signatures, ministack does not."""
    store = bucket_on(rclone)
    bucket = store.uri("").removeprefix("s3://")
    for key in ("a b", "ü/+%", "plain"):
        store.put(key, b"x")
    options: dict[str, Any] = {"endpoint": rclone.url, "access_key_id": ACCESS_KEY}
    good = S3Requests(S3Arguments(secret_access_key=SECRET_KEY, **options).settle(bucket))
    assert {meta.key for meta in good.list("")} == {"a b", "ü/+%", "plain"}
    assert [meta.key for meta in good.list("ü/")] == ["ü/+%"]
    bad = S3Requests(S3Arguments(secret_access_key="wrong", **options).settle(bucket))
    with pytest.raises(PermissionError):
        list(bad.list(""))


def test_large_objects_are_files_on_the_servers_disk(
    bucket_on: Callable[..., Store], rclone: Rclone, backend: str | None, tmp_path: Path
) -> None:
    store = bucket_on(rclone, backend=backend)
    data = some_bytes(30 << 20)
    (tmp_path / "file").write_bytes(data)
    store.put("large", tmp_path / "file")
    bucket = store.uri("").removeprefix("s3://")
    assert (rclone.objects / bucket / "large").read_bytes() == data


def test_parts_have_the_etag_of_their_parts(
    bucket_on: Callable[..., Store], ministack: Ministack, backend: str | None
) -> None:
    """MD5 of the MD5s of 8 MiB each: what S3 computes from the same parts."""
    store = bucket_on(ministack, backend=backend)
    data = some_bytes((20 << 20) + 5)
    result = store.put("large", data)
    pieces = [data[start : start + (8 << 20)] for start in range(0, len(data), 8 << 20)]
    digests = b"".join(hashlib.md5(piece).digest() for piece in pieces)
    expected = f"{hashlib.md5(digests).hexdigest()}-{len(pieces)}"
    assert result.etag == expected
    assert store.checksum("large") == Checksum("md5-parts", expected)


@pytest.mark.parametrize(
    ("etag", "expected"),
    [
        ("d41d8cd98f00b204e9800998ecf8427e", "md5"),
        ("D41D8CD98F00B204E9800998ECF8427E", "md5"),
        ("d41d8cd98f00b204e9800998ecf8427e-3", "md5-parts"),
        ("d41d8cd98f00b204e9800998ecf8427e-0", None),
        ("0x8DC", None),
        ("", None),
        (None, None),
    ],
)
def test_etags_say_what_they_are(etag: str | None, expected: str | None) -> None:
    found = etag_checksum(etag, trusted=True)
    assert (found.algorithm if found else None) == expected
    assert etag_checksum(etag, trusted=False) is None


def test_distrusted_etags_are_no_checksums(
    bucket_on: Callable[..., Store], ministack: Ministack, backend: str | None
) -> None:
    store = bucket_on(ministack, backend=backend, etag_is_md5=False)
    store.put("key", b"x")
    assert store.checksum("key") is None
    assert store.capabilities.checksum_algorithms == ()


def test_too_large_for_a_condition_is_said_before_anything_is_sent(
    bucket_on: Callable[..., Store], ministack: Ministack
) -> None:
    store = bucket_on(ministack)
    limit = store.capabilities.max_conditional_size
    assert limit is not None
    with pytest.raises(ValueError, match="64 MiB"):
        store.put("key", iter([bytes(1 << 20)] * ((limit >> 20) + 1)), mode=PutMode.CREATE)
    assert list(store.list()) == []
    store.put("key", iter([bytes(1 << 20)] * 20), mode=PutMode.CREATE)
    assert store.head("key").size == 20 << 20


def test_a_wrong_region_is_said(
    bucket_on: Callable[..., Store], reach: Callable[..., Store], ministack: Ministack
) -> None:
    bucket = bucket_on(ministack).uri("").removeprefix("s3://")
    for backend in BACKENDS:
        with pytest.raises(InvalidUrlError, match="region"):
            reach(ministack, bucket, backend=backend, region="eu-west-1")


MEMORY = """
import sys
from pathlib import Path
from stretto.object_store import download_file, open_store, upload_file
url, endpoint, backend, work = sys.argv[1:]
options = {"endpoint": endpoint, "backend": backend} if endpoint else {}
store = open_store(url, **options)
path = Path(work) / "source"
with path.open("wb") as file:
    file.truncate(400 << 20)
upload_file(store, "large", path)
path.unlink()
download_file(store, "large", Path(work) / "target")
assert (Path(work) / "target").stat().st_size == 400 << 20
# Not ru_maxrss: that begins with what the parent had before the exec.
status = Path("/proc/self/status").read_text()
print(int(status.partition("VmHWM:")[2].split()[0]) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", "obstore", "libcloud"])
def test_large_files_take_flat_memory(
    bucket_on: Callable[..., Store], rclone: Rclone, tmp_path: Path, name: str
) -> None:
    """400 MiB up and down within 160 MB."""
    url, endpoint, backend = f"file://{tmp_path}/store", "", ""
    if name != "local":
        url, endpoint, backend = bucket_on(rclone).uri(""), rclone.url, name
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, url, endpoint, backend, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env={**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
    )
    assert int(done.stdout) < 160


def test_a_server_that_comes_back_is_found_again(
    ministack: Ministack, bucket_on: Callable[..., Store], backend: str | None
) -> None:
    """A connection that the server closed in the meantime fails nothing."""
    direct = bucket_on(ministack)
    bucket = direct.uri("").removeprefix("s3://")
    with FaultProxy(ministack.port) as proxy:
        store = open_store(
            f"s3://{bucket}",
            endpoint=proxy.url,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            backend=backend,
        )
        store.put("one", b"1")
        proxy.drop_all()
        store.put("two", b"2")
    assert [meta.key for meta in direct.list()] == ["one", "two"]
