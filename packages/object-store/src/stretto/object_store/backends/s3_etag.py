"""What an S3 ETag says about the bytes."""

from __future__ import annotations

import re

from stretto.object_store.types import Checksum

_MD5 = re.compile(r"[0-9a-f]{32}")
_PARTS = re.compile(r"[0-9a-f]{32}-[1-9][0-9]*")


def etag_checksum(etag: str | None, *, trusted: bool) -> Checksum | None:
    """The checksum behind an ETag.

    Args:
        etag: Without quotes.
        trusted: Whether ETags are MD5s at all; with KMS encryption they only look like it.
    """
    if etag is None or not trusted:
        return None
    if _MD5.fullmatch(etag):
        return Checksum("md5", etag)
    lowered = etag.lower()
    if _MD5.fullmatch(lowered):
        return Checksum("md5", lowered)
    if _PARTS.fullmatch(lowered):
        return Checksum("md5-parts", lowered)
    return None
