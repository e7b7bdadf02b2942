"""The few S3 requests that obstore cannot make: exact listings, and making a bucket."""

from __future__ import annotations

import hashlib
import hmac
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from stretto.object_store.backends.s3_credentials import Keys
from stretto.object_store.backends.s3_options import DEFAULT_REGION, S3Options
from stretto.object_store.backends.s3_xml import error_code, parse_list_page
from stretto.object_store.backends.service_errors import service_error
from stretto.object_store.errors import (
    BucketNotFoundError,
    ObjectStoreError,
    StoreTimeoutError,
    TransientError,
)
from stretto.object_store.types import ObjectMeta

_SERVICE = "s3"


class S3Requests:
    """Signed requests to a bucket (AWS Signature Version 4), with a time-out.

    Args:
        options: How to reach it.

    Raises:
        ObjectStoreError: The credential is one that only obstore can fetch.
    """

    def __init__(self, options: S3Options) -> None:
        self._options = options
        self._keys = options.keys()
        if self._keys is None and not options.credentials.anonymous:
            raise ObjectStoreError(
                "this needs a credential from the environment, the options or boto3; "
                "run: pip install 'stretto-object-store[s3]'",
                store=options.uri,
            )

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        """All objects whose keys begin with a prefix, whatever their names.

        Args:
            prefix: A plain string prefix.
            start_after: Begin behind this key.
        """
        query = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
        if start_after:
            query["start-after"] = start_after
        while True:
            page = parse_list_page(self._send("GET", query), etag_is_md5=self._options.etag_is_md5)
            yield from page.objects
            if page.next_token is None:
                return
            query["continuation-token"] = page.next_token

    def make_bucket(self) -> None:
        """Make the bucket unless it is there."""
        try:
            self._send("GET", {"list-type": "2", "max-keys": "1"})
            return
        except BucketNotFoundError:
            pass
        region = self._options.region
        body = b""
        if region != DEFAULT_REGION:
            body = (
                '<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                f"<LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
            ).encode()
        self._send("PUT", {}, body)

    def _send(self, method: str, query: Mapping[str, str], body: bytes = b"") -> bytes:
        base = urlsplit(self._options.base_url)
        path = base.path or "/"
        encoded = "&".join(f"{_quote(k)}={_quote(v)}" for k, v in sorted(query.items()))
        headers = {"host": base.netloc, "x-amz-content-sha256": hashlib.sha256(body).hexdigest()}
        if self._keys is not None:
            _sign(method, path, encoded, headers, self._keys(), self._options.region)
        url = f"{base.scheme}://{base.netloc}{path}" + (f"?{encoded}" if encoded else "")
        del headers["host"]
        request = urllib.request.Request(
            url, method=method, data=body if method == "PUT" else None, headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=self._options.timeouts.read) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            code = error_code(error.read())
            raise service_error(error.code, code, store=self._options.uri, key=None) from None
        except TimeoutError as error:
            raise StoreTimeoutError("no answer in time", store=self._options.uri) from error
        except OSError as error:
            raise TransientError("the connection failed", store=self._options.uri) from error


def _sign(
    method: str, path: str, query: str, headers: dict[str, str], keys: Keys, region: str
) -> None:
    """Add the headers that prove who asks."""
    now = datetime.now(UTC)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers["x-amz-date"] = stamp
    if keys.session_token is not None:
        headers["x-amz-security-token"] = keys.session_token.reveal()
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join([method, path, query, lines, names, headers["x-amz-content-sha256"]])
    scope = f"{day}/{region}/{_SERVICE}/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    key = f"AWS4{keys.secret_access_key.reveal()}".encode()
    for part in (day, region, _SERVICE, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key_id}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )


def _quote(text: str) -> str:
    return quote(text, safe="-_.~", errors="surrogateescape")
