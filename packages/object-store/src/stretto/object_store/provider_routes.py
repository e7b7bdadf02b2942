"""Which of libcloud's providers have a back end of their own here."""

from __future__ import annotations

from typing import Protocol

from stretto.object_store.backends.libcloud_open import open_local_provider
from stretto.object_store.backends.s3_credentials import read_variable
from stretto.object_store.store import Store
from stretto.object_store.url import StoreUrl


class ProviderSettings(Protocol):
    """What a route needs to know; `ObjectStoreProviderHparams` has it."""

    @property
    def container(self) -> str:
        """Name of the container."""
        ...

    @property
    def key_environ(self) -> str | None:
        """Name of the variable that holds the key."""
        ...

    @property
    def secret_environ(self) -> str | None:
        """Name of the variable that holds the secret."""
        ...

    @property
    def region(self) -> str | None:
        """Where the container is."""
        ...

    @property
    def host(self) -> str | None:
        """Another host than the provider's own."""
        ...

    @property
    def port(self) -> int | None:
        """Another port than the provider's own."""
        ...

    @property
    def uri(self) -> str:
        """How the store calls itself."""
        ...


def open_native(settings: ProviderSettings, provider: str, *, create: bool) -> Store | None:
    """The store of a provider that has a back end here; None for the others.

    Args:
        settings: Where the container is.
        provider: Canonical name.
        create: Make the container if it is missing.
    """
    if provider == "local":
        root = read_variable(settings.key_environ, settings.uri) if settings.key_environ else None
        return open_local_provider(root, settings.container, uri=settings.uri)
    if provider == "s3" or (provider == "minio" and settings.host):
        return _open_s3(settings, create=create)
    if provider == "azure_blobs" and settings.host is None and settings.port is None:
        return _open_azure(settings, create=create)
    return None


def _open_s3(settings: ProviderSettings, *, create: bool) -> Store:
    from stretto.object_store.backends.obstore_s3 import open_s3

    endpoint = f"https://{settings.host}" if settings.host else None
    if endpoint and settings.port:
        endpoint += f":{settings.port}"
    return open_s3(
        StoreUrl(scheme="s3", bucket=settings.container, prefix=""),
        create=create,
        uri=settings.uri,
        endpoint=endpoint,
        region=settings.region,
        access_key_id_environ=settings.key_environ,
        secret_access_key_environ=settings.secret_environ,
    )


def _open_azure(settings: ProviderSettings, *, create: bool) -> Store:
    from stretto.object_store.backends.obstore_azure import open_azure

    return open_azure(
        StoreUrl(scheme="azure", bucket=settings.container, prefix=""),
        create=create,
        uri=settings.uri,
        account_name_environ=settings.key_environ,
        account_key_environ=settings.secret_environ,
    )
