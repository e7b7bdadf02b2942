"""`open_store`: what it refuses, what it reads from the environment, what it wraps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stretto.object_store import (
    BucketNotFoundError,
    CredentialsError,
    InvalidUrlError,
    LocalStore,
    MissingExtraError,
    PrefixStore,
    RetryStore,
    Store,
    known_schemes,
    open_store,
)
from stretto.object_store.conformance.servers import ACCESS_KEY, SECRET_KEY, Ministack, Rclone

NOWHERE = "http://127.0.0.1:9"


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(InvalidUrlError, match="'s4'") as caught:
        open_store("s4://bucket/prefix")
    for scheme in known_schemes():
        assert scheme in str(caught.value)


def test_an_unknown_libcloud_provider_names_the_known_ones() -> None:
    with pytest.raises(InvalidUrlError, match="'no-such-cloud'") as caught:
        open_store("libcloud+no-such-cloud://container")
    assert "google_storage" in str(caught.value)


def test_an_unknown_back_end_names_the_known_ones() -> None:
    with pytest.raises(InvalidUrlError, match="'s5cmd'") as caught:
        open_store("s3://bucket", backend="s5cmd")
    assert "libcloud" in str(caught.value)


@pytest.mark.parametrize(
    "url", ["memory://x", "s3://bucket", "gs://bucket", "azure://container", "/tmp/x"]
)
def test_an_unknown_option_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidUrlError, match="no_such_option"):
        open_store(url, no_such_option=1)


@pytest.mark.parametrize("backend", [None, "libcloud"])
def test_no_credential_at_all_names_the_variables(
    backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(CredentialsError, match="AWS_ACCESS_KEY_ID"):
        open_store("s3://bucket", endpoint=NOWHERE, backend=backend)


@pytest.mark.parametrize("backend", [None, "libcloud"])
@pytest.mark.parametrize(
    "options",
    [
        {"access_key_id_environ": "MY_KEY", "secret_access_key_environ": "MY_SECRET"},
        {"access_key_id_environ": "MY_KEY"},
    ],
)
def test_an_unset_variable_is_named(options: dict[str, str], backend: str | None) -> None:
    with pytest.raises(CredentialsError, match="MY_KEY"):
        open_store("s3://bucket", endpoint=NOWHERE, backend=backend, **options)


def test_half_a_credential_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CredentialsError, match="secret_access_key"):
        open_store("s3://bucket", endpoint=NOWHERE, access_key_id="x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    with pytest.raises(CredentialsError, match="AWS_SECRET_ACCESS_KEY"):
        open_store("s3://bucket", endpoint=NOWHERE)


@pytest.mark.parametrize("endpoint", ["ftp://host", "host:9000", "http://user:secret@host"])
def test_an_endpoint_that_cannot_be_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidUrlError, match="endpoint") as caught:
        open_store("s3://bucket", endpoint=endpoint)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["connect_timeout", "read_timeout", "upload_timeout"])
def test_a_timeout_must_be_positive(name: str) -> None:
    with pytest.raises(InvalidUrlError, match=name):
        open_store("s3://bucket", endpoint=NOWHERE, **{name: 0})


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
from stretto.object_store import MissingExtraError, open_store
try:
    open_store({url!r}, **{options!r})
except MissingExtraError as error:
    assert isinstance(error, ImportError)
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "url", "options", "says"),
    [
        ("obstore", "s3://b", {"anonymous": True}, "pip install 'stretto-object-store'"),
        ("libcloud", "libcloud+minio://b", {"key": "k"}, "pip install 'stretto-object-store'"),
        (
            "boto3",
            "s3://b",
            {"profile": "mine", "endpoint": NOWHERE},
            "pip install 'stretto-object-store[s3]'",
        ),
    ],
)
def test_a_missing_library_names_what_to_install(
    module: str, url: str, options: dict[str, object], says: str
) -> None:
    script = BLOCKED.format(module=module, url=url, options=options)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert says in done.stdout, done.stderr


def test_packages_can_add_schemes(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(
        "from stretto.object_store import MemoryStore\n"
        "def opened(url, *, create, **options):\n"
        "    return MemoryStore(f'{url.bucket} {url.prefix} {create} {options}')\n"
    )
    info = tmp_path / "ours-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stretto.object_store]\nours = ours:opened\n")
    script = (
        "from stretto.object_store import open_store, known_schemes\n"
        "assert 'ours' in known_schemes()\n"
        "print(open_store('ours://bucket/a/b', create=True, option=1).uri('key'))\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.strip() == "memory://bucket a/b True {'option': 1}/a/b/key"


def test_memory_stores_of_one_name_are_one_store() -> None:
    open_store("memory://shared-by-name/a").put("key", b"x")
    assert open_store("memory://shared-by-name").get("a/key").read() == b"x"
    assert list(open_store("memory://").list()) == []


def test_local_urls_and_paths_are_the_same_store(tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}/root").put("key", b"x")
    store = open_store(tmp_path / "root")
    assert isinstance(store, LocalStore)
    assert store.get("key").read() == b"x"
    assert store.uri("key") == f"file://{tmp_path}/root/key"


@pytest.mark.server
@pytest.mark.parametrize("backend", [None, "libcloud"])
class TestOnServers:
    def test_a_missing_bucket_is_an_error_when_it_is_opened(
        self, reach: Callable[..., Store], rclone: Rclone, backend: str | None
    ) -> None:
        with pytest.raises(BucketNotFoundError, match="create"):
            reach(rclone, "no-such-bucket", backend=backend)

    def test_a_wrong_secret_is_an_error_when_it_is_opened(
        self, reach: Callable[..., Store], rclone: Rclone, backend: str | None
    ) -> None:
        with pytest.raises(CredentialsError):
            reach(rclone, "any", backend=backend, secret_access_key="wrong")

    def test_create_makes_the_bucket_once(
        self, reach: Callable[..., Store], rclone: Rclone, backend: str | None
    ) -> None:
        bucket = f"created-{backend or 'obstore'}"
        reach(rclone, bucket, backend=backend, create=True).put("key", b"x")
        assert reach(rclone, bucket, backend=backend, create=True).get("key").read() == b"x"

    def test_the_environment_gives_endpoint_and_keys(
        self,
        bucket_on: Callable[..., Store],
        ministack: Ministack,
        rclone: Rclone,
        monkeypatch: pytest.MonkeyPatch,
        backend: str | None,
    ) -> None:
        bucket = bucket_on(rclone).uri("").removeprefix("s3://")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        for variable in ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
            with monkeypatch.context() as patch:
                patch.setenv(variable, rclone.url)
                open_store(f"s3://{bucket}", backend=backend).put(variable, b"x")
                # An explicit argument wins over the environment.
                with pytest.raises(BucketNotFoundError):
                    open_store(f"s3://{bucket}", backend=backend, endpoint=ministack.url)
        assert (rclone.objects / bucket / "S3_ENDPOINT_URL").read_bytes() == b"x"

    def test_explicit_keys_win_over_the_environment(
        self,
        bucket_on: Callable[..., Store],
        rclone: Rclone,
        monkeypatch: pytest.MonkeyPatch,
        backend: str | None,
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "stale")
        bucket_on(rclone, backend=backend).put("key", b"x")

    def test_a_prefix_is_part_of_the_raw_key(
        self,
        bucket_on: Callable[..., Store],
        reach: Callable[..., Store],
        rclone: Rclone,
        backend: str | None,
    ) -> None:
        bucket = bucket_on(rclone).uri("").removeprefix("s3://")
        store = reach(rclone, f"{bucket}/some/prefix", backend=backend)
        assert isinstance(store, PrefixStore)
        assert isinstance(store.inner, RetryStore)
        store.put("a", b"x")
        assert (rclone.objects / bucket / "some/prefix/a").read_bytes() == b"x"
        assert store.uri("a") == f"s3://{bucket}/some/prefix/a"
        assert [meta.key for meta in store.list()] == ["a"]

    def test_opening_leaves_nothing_behind(
        self, bucket_on: Callable[..., Store], rclone: Rclone, backend: str | None
    ) -> None:
        store = bucket_on(rclone, backend=backend)
        bucket = store.uri("").removeprefix("s3://")
        assert list((rclone.objects / bucket).rglob("*")) == []


def test_the_error_for_a_profile_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without boto3, a configured profile is no silent fall-through to the metadata service."""
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"stretto-object-store\[s3\]"):
        open_store("s3://bucket")
