"""What a person can say about an S3 store, the same for every library behind it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from stretto.object_store.backends.s3_credentials import KeyProvider, S3Credentials
from stretto.object_store.backends.timeouts import Timeouts
from stretto.object_store.errors import InvalidUrlError
from stretto.object_store.secret import Secret

_ENDPOINT_VARIABLES = (
    "S3_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
)
DEFAULT_REGION = "us-east-1"


def endpoint_variable() -> str | None:
    """Name of the environment variable that says where S3 is; None where none does."""
    return next((name for name in _ENDPOINT_VARIABLES if os.environ.get(name)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """All that is needed to reach a bucket; can be pickled unless it holds a secret.

    Attributes:
        bucket: Its name.
        endpoint: Address of a service other than AWS, without a slash at its end; None for AWS.
        region: Where the bucket is.
        credentials: How to get a credential.
        virtual_hosted_style: The bucket is part of the host name.
        timeouts: How long to wait.
        etag_is_md5: Single-part ETags are MD5s (they are not with KMS encryption).
        conditional_puts: The service honours ``If-Match`` and ``If-None-Match``.
        uri: How the store calls itself, without a slash at its end.
    """

    bucket: str
    endpoint: str | None = None
    region: str = DEFAULT_REGION
    credentials: S3Credentials = field(default_factory=S3Credentials)
    virtual_hosted_style: bool = False
    timeouts: Timeouts = field(default_factory=Timeouts)
    etag_is_md5: bool = True
    conditional_puts: bool = True
    uri: str

    @property
    def allow_http(self) -> bool:
        """Whether the endpoint is plain HTTP."""
        return self.endpoint is not None and self.endpoint.startswith("http://")

    @property
    def base_url(self) -> str:
        """Address of the bucket."""
        if self.endpoint is None:
            return f"https://{self.bucket}.s3.{self.region}.amazonaws.com"
        return self.endpoint if self.virtual_hosted_style else f"{self.endpoint}/{self.bucket}"

    def keys(self) -> KeyProvider | None:
        """Where keys come from; see `S3Credentials.provider`."""
        return self.credentials.provider(store=self.uri, custom_endpoint=self.endpoint is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Arguments:
    """The options of ``s3://``, as `open_store` takes them.

    Attributes:
        uri: How the store calls itself; None for ``s3://<bucket>``.
        endpoint: Else ``S3_ENDPOINT_URL``, ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``.
        region: Else ``AWS_REGION``, ``AWS_DEFAULT_REGION``, ``us-east-1``.
        access_key_id: Else ``AWS_ACCESS_KEY_ID``, then boto3's chain where it is installed.
        secret_access_key: Else ``AWS_SECRET_ACCESS_KEY``. A store that was given it as an
            argument cannot be pickled.
        session_token: Of a temporary credential.
        access_key_id_environ: Name of another variable for the id.
        secret_access_key_environ: Name of another variable for the secret.
        session_token_environ: Name of another variable for the token.
        profile: An AWS profile; needs boto3.
        anonymous: Send unsigned requests.
        virtual_hosted_style: The bucket is part of the endpoint's host name.
        connect_timeout: Seconds to connect.
        read_timeout: Seconds without a byte after which a request is given up.
        upload_timeout: Seconds for a large body, or one part of a larger one, to be sent.
        etag_is_md5: Trust single-part ETags as MD5s; turn off with KMS encryption.
        conditional_puts: Turn off for services that ignore conditions (``rclone serve s3`` does),
            so that a create is refused rather than wrong.
    """

    uri: str | None = None
    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    access_key_id_environ: str | None = None
    secret_access_key_environ: str | None = None
    session_token_environ: str | None = None
    profile: str | None = None
    anonymous: bool = False
    virtual_hosted_style: bool = False
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    upload_timeout: float = 600.0
    etag_is_md5: bool = True
    conditional_puts: bool = True

    def settle(self, bucket: str) -> S3Options:
        """Fill in what was not said from the environment.

        Args:
            bucket: Name of the bucket.

        Raises:
            InvalidUrlError: The endpoint is no HTTP address, or a time-out is not positive.
        """
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return S3Options(
            bucket=bucket,
            endpoint=_settle_endpoint(self.endpoint),
            region=self.region or region or DEFAULT_REGION,
            credentials=self._credentials(),
            virtual_hosted_style=self.virtual_hosted_style,
            timeouts=Timeouts(
                connect=self.connect_timeout, read=self.read_timeout, upload=self.upload_timeout
            ),
            etag_is_md5=self.etag_is_md5,
            conditional_puts=self.conditional_puts,
            uri=self.uri or f"s3://{bucket}",
        )

    def _credentials(self) -> S3Credentials:
        return S3Credentials(
            anonymous=self.anonymous,
            access_key_id=self.access_key_id,
            secret_access_key=Secret(self.secret_access_key) if self.secret_access_key else None,
            session_token=Secret(self.session_token) if self.session_token else None,
            access_key_id_environ=self.access_key_id_environ,
            secret_access_key_environ=self.secret_access_key_environ,
            session_token_environ=self.session_token_environ,
            profile=self.profile,
        )


def _settle_endpoint(endpoint: str | None) -> str | None:
    if endpoint is None:
        found = (os.environ.get(name) for name in _ENDPOINT_VARIABLES)
        endpoint = next((value for value in found if value), None)
    if endpoint is None:
        return None
    endpoint = endpoint.rstrip("/")
    if not endpoint.startswith(("http://", "https://")) or "@" in endpoint:
        raise InvalidUrlError(
            "the S3 endpoint must be http://HOST[:PORT] or https://HOST[:PORT], "
            "without credentials in it"
        )
    return endpoint
