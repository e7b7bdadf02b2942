"""The provider classes: names of variables in, libcloud's methods out."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from stretto.object_store import (
    AlreadyExistsError,
    BucketNotFoundError,
    CredentialsError,
    InvalidKeyError,
    InvalidUrlError,
    LocalStore,
    NotFoundError,
    ObjectStoreProvider,
    ObjectStoreProviderHparams,
    RetryStore,
    Store,
)
from stretto.object_store.backends.libcloud_s3 import LibcloudS3Store
from stretto.object_store.backends.obstore_store import ObstoreStore
from stretto.object_store.conformance.servers import ACCESS_KEY, SECRET_KEY, Rclone


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStoreProviderHparams:
    monkeypatch.setenv("OBJECT_STORE_ROOT", str(tmp_path / "root"))
    return ObjectStoreProviderHparams(
        provider="local", container="container", key_environ="OBJECT_STORE_ROOT"
    )


def test_fields_and_defaults_are_the_contract() -> None:
    names = [field.name for field in dataclasses.fields(ObjectStoreProviderHparams)]
    assert names == [
        "provider",
        "container",
        "key_environ",
        "secret_environ",
        "region",
        "host",
        "port",
        "extra_init_kwargs",
    ]
    made = ObjectStoreProviderHparams("s3", "container")
    assert [getattr(made, name) for name in names[2:]] == [None] * 5 + [{}]


def test_the_seeds_example_builds_without_its_variables_being_set() -> None:
    made = ObjectStoreProviderHparams(
        provider="s3",
        container="run-dir-test",
        key_environ="OBJECT_STORE_KEY",
        secret_environ="OBJECT_STORE_SECRET",
        region="us-west-2",
    )
    for use in (made.initialize_object, made.open_store):
        with pytest.raises(CredentialsError, match="OBJECT_STORE_KEY"):
            use()


def test_only_the_unset_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBJECT_STORE_KEY", "x")
    made = ObjectStoreProviderHparams("s3", "c", "OBJECT_STORE_KEY", "OBJECT_STORE_SECRET")
    with pytest.raises(CredentialsError, match="OBJECT_STORE_SECRET"):
        made.initialize_object()


@pytest.mark.parametrize("make", [ObjectStoreProviderHparams, ObjectStoreProvider])
def test_an_unknown_provider_names_the_known_ones(make: Callable[..., object]) -> None:
    with pytest.raises(InvalidUrlError, match="'no_such'") as caught:
        make("no_such", "container")
    assert "backblaze_b2" in str(caught.value)


def test_an_empty_container_is_refused() -> None:
    with pytest.raises(InvalidUrlError, match="container"):
        ObjectStoreProviderHparams("s3", "")


def test_local_is_a_folder_in_the_root(local: ObjectStoreProviderHparams, tmp_path: Path) -> None:
    store = local.open_store()
    assert isinstance(store, LocalStore)
    store.put("a/b", b"x")
    assert (tmp_path / "root/container/a/b").read_bytes() == b"x"
    assert store.uri("a/b") == "local://container/a/b"
    assert local.initialize_object().get_object_size("a/b") == 1


def test_local_takes_the_root_itself_as_a_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOT", str(tmp_path))
    store = ObjectStoreProviderHparams("local", ".", "ROOT").open_store()
    store.put("key", b"x")
    assert (tmp_path / "key").exists()
    assert store.uri("key") == "local://./key"


@pytest.mark.parametrize("container", ["..", "a/b", "/abs", "../out", "a\0b"])
def test_local_containers_do_not_lead_out(tmp_path: Path, container: str) -> None:
    with pytest.raises(InvalidUrlError, match="container"):
        ObjectStoreProvider("local", container, {"key": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_local_needs_its_root() -> None:
    with pytest.raises(InvalidUrlError, match="root"):
        ObjectStoreProvider("local", "container")
    with pytest.raises(InvalidUrlError, match="root"):
        ObjectStoreProviderHparams("local", "container").open_store()


def test_the_unsafe_local_driver_is_never_used(tmp_path: Path) -> None:
    """libcloud's own would have written beside the root."""
    provider = ObjectStoreProvider("local", "container", {"key": str(tmp_path / "root")})
    for name in ("../../escaped", str(tmp_path / "absolute")):
        with pytest.raises(InvalidKeyError):
            provider.upload_object_via_stream(b"x", name)
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_files_go_there_and_back(local: ObjectStoreProviderHparams, tmp_path: Path) -> None:
    provider = local.initialize_object()
    assert (provider.provider_name, provider.container_name) == ("local", "container")
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 100)
    provider.upload_object(source, "a/file")
    provider.upload_object(str(source), "a/unchecked", verify_hash=False)
    assert provider.get_object_size("a/file") == 25_600
    provider.download_object("a/file", target)
    assert target.read_bytes() == source.read_bytes()
    with pytest.raises(AlreadyExistsError):
        provider.download_object("a/file", target)
    provider.download_object("a/file", target, overwrite_existing=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    provider.download_object("a/file", folder)
    assert (folder / "file").read_bytes() == source.read_bytes()
    with pytest.raises(FileNotFoundError):
        provider.upload_object(tmp_path / "nothing", "key")
    for operation in (provider.get_object_size, provider.download_object_as_stream):
        with pytest.raises(NotFoundError):
            operation("nothing")


def test_streams_have_the_chunks_that_were_asked_for(local: ObjectStoreProviderHparams) -> None:
    provider = local.initialize_object()
    provider.upload_object_via_stream(iter([b"abc", b"", b"defgh"]), "key")
    assert list(provider.download_object_as_stream("key", 3)) == [b"abc", b"def", b"gh"]
    assert list(provider.download_object_as_stream("key")) == [b"abcdefgh"]
    with pytest.raises(ValueError, match="chunk_size"):
        provider.download_object_as_stream("key", 0)


def test_what_local_cannot_keep_is_refused(local: ObjectStoreProviderHparams) -> None:
    with pytest.raises(ValueError, match="headers"):
        local.initialize_object().upload_object_via_stream(b"x", "key", headers={"A": "b"})


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ObjectStoreProviderHparams("s3", "c", extra_init_kwargs={"token": "hidden-token"})
    provider = ObjectStoreProvider("s3", "c", {"key": "id", "secret": "hidden-secret"})
    assert "hidden" not in f"{made!r} {provider!r} {provider.store!r}"


@pytest.mark.server
class TestOnS3:
    @pytest.fixture
    def bucket(self, bucket_on: Callable[..., Store], rclone: Rclone) -> str:
        return bucket_on(rclone).uri("").removeprefix("s3://")

    @pytest.fixture
    def hparams(
        self, rclone: Rclone, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> ObjectStoreProviderHparams:
        monkeypatch.setenv("OBJECT_STORE_KEY", ACCESS_KEY)
        monkeypatch.setenv("OBJECT_STORE_SECRET", SECRET_KEY)
        return ObjectStoreProviderHparams(
            provider="s3",
            container=bucket,
            key_environ="OBJECT_STORE_KEY",
            secret_environ="OBJECT_STORE_SECRET",
            host="127.0.0.1",
            port=urlsplit(rclone.url).port,
            extra_init_kwargs={"secure": False},
        )

    def test_libcloud_serves_what_only_it_knows(
        self, hparams: ObjectStoreProviderHparams, rclone: Rclone, bucket: str, tmp_path: Path
    ) -> None:
        store = hparams.open_store()
        assert isinstance(store, RetryStore)
        assert isinstance(store.inner, LibcloudS3Store)
        store.put("a", b"x")
        assert (rclone.objects / bucket / "a").read_bytes() == b"x"
        assert store.uri("a") == f"s3://{bucket}/a"
        provider = hparams.initialize_object()
        (tmp_path / "empty").touch()
        provider.upload_object(tmp_path / "empty", "empty")
        assert provider.get_object_size("empty") == 0
        extra = {"content_type": "text/plain", "meta_data": {"step": "3"}}
        provider.upload_object_via_stream(iter([b"a", b"b"]), "b", extra=extra)
        assert provider.store.head("b").metadata == {"step": "3"}
        with pytest.raises(ValueError, match="unheard_of"):
            provider.upload_object_via_stream(b"x", "c", extra={"unheard_of": 1})

    def test_it_crosses_a_process_boundary_without_its_secret(
        self, hparams: ObjectStoreProviderHparams
    ) -> None:
        store = hparams.open_store()
        assert store.capabilities.picklable
        frozen = pickle.dumps(store)
        assert SECRET_KEY.encode() not in frozen
        store.put("key", b"x")
        assert pickle.loads(frozen).get("key").read() == b"x"
        assert pickle.loads(pickle.dumps(hparams)) == hparams

    def test_a_missing_container_is_an_error_when_it_is_opened(
        self, hparams: ObjectStoreProviderHparams
    ) -> None:
        missing = dataclasses.replace(hparams, container="not-there")
        with pytest.raises(BucketNotFoundError):
            missing.open_store()
        missing.open_store(create=True).put("key", b"x")
        assert missing.open_store().get("key").read() == b"x"

    def test_a_wrong_secret_is_an_error_when_it_is_opened(
        self, hparams: ObjectStoreProviderHparams, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OBJECT_STORE_SECRET", "wrong")
        with pytest.raises(CredentialsError):
            hparams.open_store()


@pytest.mark.parametrize("provider", ["s3", "minio"])
def test_the_native_back_end_serves_what_it_can(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K", "key")
    monkeypatch.setenv("S", "secret")
    made = ObjectStoreProviderHparams(provider, "bucket", "K", "S", host="storage.invalid")
    store = made.open_store(check=False)
    assert isinstance(store, RetryStore)
    assert isinstance(store.inner, ObstoreStore)
    assert store.uri("a/b") == f"{provider}://bucket/a/b"
    assert store.capabilities.picklable
