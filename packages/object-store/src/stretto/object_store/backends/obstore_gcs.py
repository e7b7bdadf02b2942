"""Google Cloud Storage through obstore."""

from __future__ import annotations

import importlib
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
from stretto.object_store.backends.timeouts import Timeouts
from stretto.object_store.errors import InvalidUrlError
from stretto.object_store.secret import Secret
from stretto.object_store.types import Capabilities, Checksum, ObjectMeta
from stretto.object_store.url import StoreUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsOptions:
    """All that is needed to reach a bucket.

    Attributes:
        bucket: Its name.
        endpoint: Address of another service; None for Google.
        service_account: Path of a service account's JSON file.
        service_account_key: The content of such a file.
        anonymous: Send unsigned requests.
        timeouts: How long to wait.
        uri: How the store calls itself.
    """

    bucket: str
    endpoint: str | None = None
    service_account: str | None = None
    service_account_key: Secret | None = None
    anonymous: bool = False
    timeouts: Timeouts = field(default_factory=Timeouts)
    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsService:
    """A bucket of Google Cloud Storage; see `Service`.

    Attributes:
        options: How to reach it.
    """

    options: GcsOptions

    @property
    def uri(self) -> str:
        """How the store calls itself."""
        return self.options.uri

    @property
    def capabilities(self) -> Capabilities:
        """What Google promises; obstore shows none of its checksums."""
        return Capabilities(
            create=True,
            replace_if=True,
            metadata=True,
            server_side_copy=True,
            multipart=True,
            ordered=True,
            picklable=self.options.service_account_key is None,
            max_object_size=5 << 40,
            max_conditional_size=CONDITIONAL_LIMIT,
        )

    def connect(self, use: ClientUse) -> Any:
        """See `Service.connect`."""
        options = self.options
        settings: dict[str, Any] = {
            "skip_signature": options.anonymous,
            **client_settings(
                options.timeouts,
                use,
                allow_http=bool(options.endpoint and options.endpoint.startswith("http://")),
            ),
        }
        if options.endpoint is not None:
            settings["base_url"] = options.endpoint
        if options.service_account is not None:
            settings["service_account"] = options.service_account
        if options.service_account_key is not None:
            settings["service_account_key"] = options.service_account_key.reveal()
        store: Any = importlib.import_module("obstore.store")
        return store.GCSStore(options.bucket, **settings)

    def checksum(self, etag: str | None) -> Checksum | None:
        """Google's ETags say nothing about the bytes."""
        return None

    def version(self, etag: str | None, version: str | None) -> str | None:
        """The object's generation."""
        return version

    def condition(self, version: str) -> Mapping[str, str]:
        """See `Service.condition`."""
        return {"version": version}

    def list_exactly(self, prefix: str, start_after: str | None) -> Iterator[ObjectMeta]:
        """See `Service.list_exactly`."""
        raise no_exact_listing(self.uri)


def make_gcs_options(
    bucket: str,
    *,
    uri: str | None = None,
    endpoint: str | None = None,
    service_account: str | None = None,
    service_account_key: str | None = None,
    anonymous: bool = False,
    connect_timeout: float = 10.0,
    read_timeout: float = 60.0,
    upload_timeout: float = 600.0,
) -> GcsOptions:
    """Settle what was said about a bucket.

    Args:
        bucket: Its name.
        uri: How the store calls itself; None for ``gs://<bucket>``.
        endpoint: Address of another service.
        service_account: Path of a service account's JSON file; else
            ``GOOGLE_APPLICATION_CREDENTIALS`` and the machine's own.
        service_account_key: The content of such a file.
        anonymous: Send unsigned requests.
        connect_timeout: Seconds to connect.
        read_timeout: Seconds without a byte after which a request is given up.
        upload_timeout: Seconds for a large body, or one part of a larger one, to be sent.

    Raises:
        InvalidUrlError: The endpoint is no HTTP address.
    """
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise InvalidUrlError(f"the endpoint {endpoint!r} must begin with http:// or https://")
    return GcsOptions(
        bucket=bucket,
        endpoint=endpoint.rstrip("/") if endpoint else None,
        service_account=service_account,
        service_account_key=Secret(service_account_key) if service_account_key else None,
        anonymous=anonymous,
        timeouts=Timeouts(connect=connect_timeout, read=read_timeout, upload=upload_timeout),
        uri=uri or f"gs://{bucket}",
    )


def open_gcs(url: StoreUrl, *, create: bool = False, **options: Any) -> ObstoreStore:
    """The store of a Google Cloud Storage bucket, through obstore.

    Args:
        url: Its bucket.
        create: Refused: obstore makes no buckets.
        **options: See `make_gcs_options`.

    Raises:
        InvalidUrlError: An option is unknown, or ``create`` is on.
    """
    check_options(make_gcs_options, options, "gs://")
    if create:
        raise InvalidUrlError("gs:// cannot make buckets; make it first, then open it")
    return ObstoreStore(GcsService(options=make_gcs_options(url.bucket, **options)))
