"""S3 and its look-alikes through obstore."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.object_store.backends.obstore_service import ClientUse, client_settings
from stretto.object_store.backends.obstore_store import CONDITIONAL_LIMIT, ObstoreStore
from stretto.object_store.backends.options import check_options
from stretto.object_store.backends.s3_credentials import KeyProvider
from stretto.object_store.backends.s3_etag import etag_checksum
from stretto.object_store.backends.s3_options import S3Arguments, S3Options
from stretto.object_store.backends.s3_requests import S3Requests
from stretto.object_store.types import Capabilities, Checksum, ObjectMeta
from stretto.object_store.url import StoreUrl

_MAX_OBJECT = 10_000 * (5 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Service:
    """A bucket of an S3 service; see `Service`.

    Attributes:
        options: How to reach it.
    """

    options: S3Options

    @property
    def uri(self) -> str:
        """How the store calls itself."""
        return self.options.uri

    @property
    def capabilities(self) -> Capabilities:
        """What S3 promises. Some look-alikes ignore conditions without a word."""
        return Capabilities(
            create=self.options.conditional_puts,
            replace_if=self.options.conditional_puts,
            metadata=True,
            server_side_copy=True,
            checksum_algorithms=("md5", "md5-parts") if self.options.etag_is_md5 else (),
            multipart=True,
            ordered=True,
            picklable=not self.options.credentials.holds_secret,
            max_object_size=min(_MAX_OBJECT, 5 << 40),
            max_conditional_size=CONDITIONAL_LIMIT,
        )

    def connect(self, use: ClientUse) -> Any:
        """See `Service.connect`."""
        options = self.options
        provider = options.keys()
        settings: dict[str, Any] = {
            "region": options.region,
            "virtual_hosted_style_request": options.virtual_hosted_style,
            "disable_bulk_delete": True,
            "skip_signature": options.credentials.anonymous,
            **client_settings(options.timeouts, use, allow_http=options.allow_http),
        }
        if options.endpoint is not None:
            settings["endpoint"] = options.endpoint
            settings["aws_endpoint_url_s3"] = options.endpoint  # else the environment's would win
        if provider is not None:
            # Through a callback the secret is in no configuration that obstore shows or pickles.
            settings["credential_provider"] = _provider(provider)
        store: Any = importlib.import_module("obstore.store")
        return store.S3Store(options.bucket, **settings)

    def checksum(self, etag: str | None) -> Checksum | None:
        """See `Service.checksum`."""
        return etag_checksum(etag, trusted=self.options.etag_is_md5)

    def version(self, etag: str | None, version: str | None) -> str | None:
        """S3 compares ETags; its own version ids play no part."""
        return etag

    def condition(self, version: str) -> Mapping[str, str]:
        """See `Service.condition`."""
        return {"e_tag": f'"{version}"'}

    def list_exactly(self, prefix: str, start_after: str | None) -> Iterator[ObjectMeta]:
        """See `Service.list_exactly`."""
        return S3Requests(self.options).list(prefix, start_after)


def _provider(keys: KeyProvider) -> Any:
    def credential() -> dict[str, Any]:
        found = keys()
        return {
            "access_key_id": found.access_key_id,
            "secret_access_key": found.secret_access_key.reveal(),
            "token": found.session_token.reveal() if found.session_token else None,
            "expires_at": found.expires_at,
        }

    return credential


def open_s3(url: StoreUrl, *, create: bool = False, **options: Any) -> ObstoreStore:
    """The store of an S3 bucket, through obstore.

    Args:
        url: Its bucket; the prefix is `open_store`'s business.
        create: Make the bucket if it is missing.
        **options: See `stretto.object_store.backends.s3_options.S3Arguments`.

    Raises:
        InvalidUrlError: An option is unknown or cannot be used.
        CredentialsError: There is no credential.
    """
    check_options(S3Arguments, options, f"{url.scheme}://")
    settled = S3Arguments(**options).settle(url.bucket)
    if create:
        S3Requests(settled).make_bucket()
    return ObstoreStore(S3Service(options=settled))
