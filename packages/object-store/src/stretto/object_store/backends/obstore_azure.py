"""Azure Blob Storage through obstore."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.object_store.backends.obstore_service import (
    ClientUse,
    client_settings,
    no_exact_listing,
)
from stretto.object_store.backends.obstore_store import CONDITIONAL_LIMIT, ObstoreStore
from stretto.object_store.backends.options import check_options
from stretto.object_store.backends.s3_credentials import read_variable
from stretto.object_store.backends.timeouts import Timeouts
from stretto.object_store.errors import CredentialsError, InvalidUrlError
from stretto.object_store.secret import Secret
from stretto.object_store.types import Capabilities, Checksum, ObjectMeta
from stretto.object_store.url import StoreUrl

_NAME_VARIABLES = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureOptions:
    """All that is needed to reach a container.

    Attributes:
        container: Its name.
        account_name: The storage account.
        account_key: Its key, given by argument.
        account_key_environ: Name of the variable that holds the key.
        endpoint: Address of another service; None for Azure.
        anonymous: Send unsigned requests.
        timeouts: How long to wait.
        uri: How the store calls itself.
    """

    container: str
    account_name: str
    account_key: Secret | None = None
    account_key_environ: str | None = None
    endpoint: str | None = None
    anonymous: bool = False
    timeouts: Timeouts = field(default_factory=Timeouts)
    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureService:
    """A container of Azure Blob Storage; see `Service`.

    Attributes:
        options: How to reach it.
    """

    options: AzureOptions

    @property
    def uri(self) -> str:
        """How the store calls itself."""
        return self.options.uri

    @property
    def capabilities(self) -> Capabilities:
        """What Azure promises; its names of metadata are narrower than ours, so none is kept."""
        return Capabilities(
            create=True,
            replace_if=True,
            server_side_copy=True,
            multipart=True,
            ordered=True,
            picklable=self.options.account_key is None,
            max_conditional_size=CONDITIONAL_LIMIT,
            refused_characters="\\",  # Azure takes it for a slash
        )

    def connect(self, use: ClientUse) -> Any:
        """See `Service.connect`."""
        options = self.options
        settings: dict[str, Any] = {
            "account_name": options.account_name,
            "skip_signature": options.anonymous,
            **client_settings(
                options.timeouts,
                use,
                allow_http=bool(options.endpoint and options.endpoint.startswith("http://")),
            ),
        }
        if options.endpoint is not None:
            settings["endpoint"] = options.endpoint
        if options.account_key is not None:
            settings["account_key"] = options.account_key.reveal()
        elif options.account_key_environ is not None:
            settings["account_key"] = read_variable(options.account_key_environ, self.uri)
        store: Any = importlib.import_module("obstore.store")
        return store.AzureStore(options.container, **settings)

    def checksum(self, etag: str | None) -> Checksum | None:
        """Azure's ETags say nothing about the bytes."""
        return None

    def version(self, etag: str | None, version: str | None) -> str | None:
        """Azure compares ETags."""
        return etag

    def condition(self, version: str) -> Mapping[str, str]:
        """See `Service.condition`."""
        return {"e_tag": f'"{version}"'}

    def list_exactly(self, prefix: str, start_after: str | None) -> Iterator[ObjectMeta]:
        """See `Service.list_exactly`."""
        raise no_exact_listing(self.uri)


def make_azure_options(
    container: str,
    *,
    uri: str | None = None,
    account_name: str | None = None,
    account_name_environ: str | None = None,
    account_key: str | None = None,
    account_key_environ: str | None = None,
    endpoint: str | None = None,
    anonymous: bool = False,
    connect_timeout: float = 10.0,
    read_timeout: float = 60.0,
    upload_timeout: float = 600.0,
) -> AzureOptions:
    """Settle what was said about a container.

    Args:
        container: Its name.
        uri: How the store calls itself; None for ``azure://<container>``.
        account_name: Else ``AZURE_STORAGE_ACCOUNT_NAME`` or ``AZURE_ACCOUNT_NAME``.
        account_name_environ: Name of another variable for it.
        account_key: Else ``AZURE_STORAGE_ACCOUNT_KEY`` or ``AZURE_ACCOUNT_ACCESS_KEY``, then what
            Azure's identities give.
        account_key_environ: Name of another variable for it.
        endpoint: Address of another service.
        anonymous: Send unsigned requests.
        connect_timeout: Seconds to connect.
        read_timeout: Seconds without a byte after which a request is given up.
        upload_timeout: Seconds for a large body, or one part of a larger one, to be sent.

    Raises:
        InvalidUrlError: The endpoint is no HTTP address.
        CredentialsError: There is no account name, or a named variable is not set.
    """
    uri = uri or f"azure://{container}"
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise InvalidUrlError(f"the endpoint {endpoint!r} must begin with http:// or https://")
    if account_name is None and account_name_environ is not None:
        account_name = read_variable(account_name_environ, uri)
    if account_name is None:
        account_name = next((v for n in _NAME_VARIABLES if (v := os.environ.get(n))), None)
    if account_name is None:
        raise CredentialsError(
            f"no Azure account was named; set {_NAME_VARIABLES[0]} or pass account_name", store=uri
        )
    if account_key_environ is not None:
        read_variable(account_key_environ, uri)
    elif account_key is None and os.environ.get("AZURE_ACCOUNT_ACCESS_KEY"):
        account_key_environ = "AZURE_ACCOUNT_ACCESS_KEY"
    return AzureOptions(
        container=container,
        account_name=account_name,
        account_key=Secret(account_key) if account_key else None,
        account_key_environ=account_key_environ,
        endpoint=endpoint.rstrip("/") if endpoint else None,
        anonymous=anonymous,
        timeouts=Timeouts(connect=connect_timeout, read=read_timeout, upload=upload_timeout),
        uri=uri,
    )


def open_azure(url: StoreUrl, *, create: bool = False, **options: Any) -> ObstoreStore:
    """The store of an Azure container, through obstore.

    Args:
        url: Its container.
        create: Refused: obstore makes no containers.
        **options: See `make_azure_options`.

    Raises:
        InvalidUrlError: An option is unknown, or ``create`` is on.
        CredentialsError: There is no account name.
    """
    check_options(make_azure_options, options, f"{url.scheme}://")
    if create:
        raise InvalidUrlError("azure:// cannot make containers; make it first, then open it")
    options.setdefault("uri", f"{url.scheme}://{url.bucket}")
    return ObstoreStore(AzureService(options=make_azure_options(url.bucket, **options)))
