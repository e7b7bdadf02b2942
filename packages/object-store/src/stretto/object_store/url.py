"""Take a store's URL apart, literally."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from stretto.object_store.errors import InvalidKeyError, InvalidUrlError
from stretto.object_store.keys import validate_prefix

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUrl:
    """The parts of a store's address.

    Attributes:
        scheme: Lower case, such as ``s3``; ``file`` for plain paths.
        bucket: Bucket or container; empty for local paths.
        prefix: Clean prefix inside the bucket, or the absolute local path.
    """

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file://{self.prefix}"
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def parse_url(url: str | os.PathLike[str]) -> StoreUrl:
    """Parse ``scheme://bucket/prefix``, or a local path.

    Nothing is percent-decoded, ``?`` and ``#`` are ordinary characters, case is kept. One
    trailing slash means nothing.

    Args:
        url: A URL, or a local path where there is no scheme.

    Raises:
        InvalidUrlError: The address is empty, has no bucket, has a prefix that is not a clean
            path, or holds what looks like a credential.
    """
    text = os.fspath(url)
    if not text:
        raise InvalidUrlError("the store URL is empty; give scheme://bucket/prefix or a path")
    match = _SCHEME.match(text)
    if _CONTROL.search(text):
        raise InvalidUrlError(f"store URL {_safe(text)!r} has a control character; remove it")
    if match is None:
        return _local(text)
    scheme, rest = match[1].lower(), text[match.end() :]
    if scheme == "file":
        return _parse_file(rest, text)
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket or (":" in bucket and (scheme != "sftp" or "@" in rest)):
        raise InvalidUrlError(
            f"store URL {_safe(text)!r} holds a credential or a port; pass credentials through "
            "the environment and the endpoint as an option"
        )
    if not bucket and scheme != "memory":
        raise InvalidUrlError(
            f"store URL {_safe(text)!r} names no bucket; write {scheme}://BUCKET/PREFIX"
        )
    try:
        return StoreUrl(scheme=scheme, bucket=bucket, prefix=validate_prefix(prefix))
    except InvalidKeyError as error:
        raise InvalidUrlError(f"store URL {_safe(text)!r}: its prefix {error.message}") from None


def _parse_file(rest: str, text: str) -> StoreUrl:
    if not rest.startswith("/"):
        raise InvalidUrlError(f"store URL {text!r} is not absolute; write file:///abs/path")
    return _local(rest)


def _local(path: str) -> StoreUrl:
    from pathlib import Path  # not needed for stores elsewhere, and slow to import

    return StoreUrl(scheme="file", bucket="", prefix=str(Path(path).absolute()))


def _safe(text: str) -> str:
    """The URL without anything before its last ``@``: secrets hold slashes and ``@`` too."""
    return re.sub(r"://.*@", "://***@", text, flags=re.DOTALL)
