"""The provider classes that `RunDirectoryUploader` was first configured with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.object_store.backends.libcloud_driver import provider_name
from stretto.object_store.backends.libcloud_open import check_local_provider, open_libcloud
from stretto.object_store.backends.libcloud_store import LibcloudStore
from stretto.object_store.backends.s3_credentials import read_variable
from stretto.object_store.errors import InvalidUrlError
from stretto.object_store.provider_routes import open_native
from stretto.object_store.registry import finish_store
from stretto.object_store.retry import RetryPolicy
from stretto.object_store.source import CHUNK_SIZE
from stretto.object_store.store import Store
from stretto.object_store.transfer import download_file, upload_file
from stretto.object_store.types import Source
from stretto.object_store.url import StoreUrl
from stretto.object_store.wrappers.retry import RetryStore

_DEFAULT_POLICY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class ObjectStoreProviderHparams:
    """Where a container is and which environment variables hold its credential.

    Attributes:
        provider: A libcloud storage provider, such as ``s3`` or ``google_storage``; for
            ``local`` the key is the root directory and the container a folder in it.
        container: Its name.
        key_environ: Name of the environment variable that holds the key.
        secret_environ: Name of the environment variable that holds the secret.
        region: Where the container is.
        host: Another host than the provider's own.
        port: Another port than the provider's own.
        extra_init_kwargs: Further arguments for libcloud's driver class.

    Raises:
        InvalidUrlError: libcloud knows no such provider, the container has no name or one that
            leads elsewhere, the port is none, or ``local`` has no key.
    """

    provider: str
    container: str
    key_environ: str | None = None
    secret_environ: str | None = None
    region: str | None = None
    host: str | None = None
    port: int | None = None
    # Hidden: it may hold a token or a password.
    extra_init_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def __post_init__(self) -> None:
        provider = provider_name(self.provider)
        if not self.container:
            raise InvalidUrlError("the container is empty; give its name")
        if provider == "local":
            has_root = self.key_environ is not None or "key" in self.extra_init_kwargs
            check_local_provider(has_root=has_root, container=self.container)
        for name in ("key_environ", "secret_environ"):
            if getattr(self, name) == "":
                raise InvalidUrlError(f"{name}='' names no environment variable; leave it out")
        if self.port is not None and not 0 < self.port < 65536:
            raise InvalidUrlError(f"port={self.port} must be from 1 to 65535")

    def initialize_object(self) -> ObjectStoreProvider:
        """Read the environment and build the provider.

        Raises:
            CredentialsError: A named variable is not set.
        """
        arguments: dict[str, Any] = dict(self.extra_init_kwargs)
        if self.key_environ is not None:
            arguments["key"] = read_variable(self.key_environ)
        if self.secret_environ is not None:
            arguments["secret"] = read_variable(self.secret_environ)
        for name in ("region", "host", "port"):
            if getattr(self, name) is not None:
                arguments[name] = getattr(self, name)
        return ObjectStoreProvider(self.provider, self.container, arguments)

    def open_store(
        self,
        *,
        create: bool = False,
        check: bool = True,
        retry: RetryPolicy | None = _DEFAULT_POLICY,
    ) -> Store:
        """The store behind this: native where libcloud has nothing special to do.

        Its URIs begin with the provider's name, and it can be pickled: it carries the names of
        the variables, not what they hold.

        Args:
            create: Make the container if it is missing.
            check: Ask the store once whether it is there and lets us in.
            retry: How network calls are repeated; None for not at all.

        Raises:
            CredentialsError: A named variable is not set, or the store refuses the credential.
            BucketNotFoundError: The container does not exist and ``create`` is off.
        """
        for name in (self.key_environ, self.secret_environ):
            if name is not None:
                read_variable(name, self.uri)
        provider = provider_name(self.provider)
        store = None
        if not self.extra_init_kwargs:
            store = open_native(self, provider, create=create)
        if store is None:
            given = {"region": self.region, "host": self.host, "port": self.port}
            store = open_libcloud(
                self._url(provider),
                create=create,
                uri=self.uri,
                key_environ=self.key_environ,
                secret_environ=self.secret_environ,
                **{k: v for k, v in given.items() if v is not None},
                **self.extra_init_kwargs,
            )
        return finish_store(store, retry=retry, check=check)

    @property
    def uri(self) -> str:
        """``<provider>://<container>``."""
        return f"{self.provider}://{self.container}"

    def _url(self, provider: str) -> StoreUrl:
        return StoreUrl(scheme=f"libcloud+{provider}", bucket=self.container, prefix="")


class ObjectStoreProvider:
    """Upload to and download from a container, by libcloud's names.

    Args:
        provider: A libcloud storage provider; for ``local`` the key is the root directory.
        container: Its name.
        provider_init_kwargs: Arguments of libcloud's driver class: ``key``, ``secret``, ``region``,
            ``host``, ``port`` and whatever else it takes.

    Raises:
        InvalidUrlError: The provider is unknown or refuses the arguments.
        CredentialsError: There is no key.
    """

    def __init__(
        self,
        provider: str,
        container: str,
        provider_init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._provider = provider
        self._container = container
        scheme = f"libcloud+{provider_name(provider)}"
        # No request is made here: a credential that may write need not be able to look.
        self._plain = open_libcloud(
            StoreUrl(scheme=scheme, bucket=container, prefix=""),
            uri=f"{provider}://{container}",
            **dict(provider_init_kwargs or {}),
        )
        self._store: Store = self._plain
        if isinstance(self._plain, LibcloudStore):
            self._store = RetryStore(self._plain, _DEFAULT_POLICY)

    def __repr__(self) -> str:
        return f"ObjectStoreProvider({self._provider!r}, {self._container!r})"

    @property
    def provider_name(self) -> str:
        """The provider, as it was given."""
        return self._provider

    @property
    def container_name(self) -> str:
        """The container's name."""
        return self._container

    @property
    def store(self) -> Store:
        """The store that does the work."""
        return self._store

    def upload_object(
        self,
        file_path: str | os.PathLike[str],
        object_name: str,
        verify_hash: bool = True,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Upload a file.

        Args:
            file_path: The file.
            object_name: Its key.
            verify_hash: Compare size and, where the store gives one, checksum afterwards.
            extra: libcloud's extra attributes: ``content_type``, ``meta_data``, ``acl``.
            headers: Further request headers.

        Raises:
            FileNotFoundError: There is no such file.
            CorruptedError: The store holds other bytes than were sent.
        """
        if extra or headers:
            self._put(object_name, Path(file_path), extra, headers)
        elif verify_hash:
            upload_file(self._store, object_name, file_path)
        else:
            self._store.put(object_name, Path(file_path))

    def upload_object_via_stream(
        self,
        obj: bytes | Iterable[bytes],
        object_name: str,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Upload bytes.

        Args:
            obj: Bytes, or an iterable of them.
            object_name: Its key.
            extra: libcloud's extra attributes.
            headers: Further request headers.
        """
        self._put(object_name, obj, extra, headers)

    def get_object_size(self, object_name: str) -> int:
        """Bytes of an object.

        Args:
            object_name: Its key.

        Raises:
            NotFoundError: There is none.
        """
        return self._store.head(object_name).size

    def download_object(
        self,
        object_name: str,
        destination_path: str | os.PathLike[str],
        overwrite_existing: bool = False,
        delete_on_failure: bool = True,
    ) -> None:
        """Download to a file, which appears whole or not at all.

        Args:
            object_name: The key.
            destination_path: The file; for an existing folder a file of the object's last name
                in it.
            overwrite_existing: Replace what is there.
            delete_on_failure: Kept for compatibility: nothing half-made is ever left.

        Raises:
            NotFoundError: There is no such object.
            AlreadyExistsError: The file exists and ``overwrite_existing`` is off.
        """
        target = Path(destination_path)
        if target.is_dir():
            target /= object_name.rpartition("/")[2]
        download_file(self._store, object_name, target, overwrite=overwrite_existing)

    def download_object_as_stream(
        self, object_name: str, chunk_size: int | None = None
    ) -> Iterator[bytes]:
        """The bytes of an object, piece by piece.

        Args:
            object_name: The key.
            chunk_size: Bytes of each piece but the last; None for what is convenient.

        Raises:
            NotFoundError: There is no such object.
            ValueError: ``chunk_size`` is not positive.
        """
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size={chunk_size} must be positive")
        return _rechunked(self._store.get(object_name), chunk_size or CHUNK_SIZE)

    def _put(
        self,
        key: str,
        source: Source,
        extra: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        if not extra and not headers:
            self._store.put(key, source)
        elif isinstance(self._plain, LibcloudStore):
            self._plain.put_with(key, source, extra=extra or {}, headers=headers or {})
        else:
            raise ValueError("the provider 'local' keeps neither extra attributes nor headers")


def _rechunked(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)
