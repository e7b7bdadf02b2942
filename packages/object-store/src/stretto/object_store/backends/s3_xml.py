"""Read the XML that S3 services send, whatever namespace they put or forget."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from stretto.object_store.backends.s3_etag import etag_checksum
from stretto.object_store.errors import TransientError
from stretto.object_store.types import ObjectMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """One page of a listing.

    Attributes:
        objects: What is on it.
        next_token: How to ask for the next page; None at the end.
    """

    objects: tuple[ObjectMeta, ...]
    next_token: str | None


def parse_list_page(body: bytes, *, etag_is_md5: bool) -> ListPage:
    """Read an answer to ListObjectsV2 that was asked for with ``encoding-type=url``.

    Args:
        body: The XML.
        etag_is_md5: See `S3Options`.

    Raises:
        TransientError: It is no listing, or is cut off.
    """
    try:
        page = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise TransientError("a listing that is cut off") from error
    encoded = child_text(page, "EncodingType") == "url"
    objects = tuple(
        _meta(item, encoded=encoded, etag_is_md5=etag_is_md5)
        for item in page
        if _name(item) == "Contents"
    )
    truncated = child_text(page, "IsTruncated") == "true"
    token = child_text(page, "NextContinuationToken") if truncated else None
    return ListPage(objects=objects, next_token=token)


def child_text(element: ElementTree.Element, name: str) -> str | None:
    """The text of a child, by its local name.

    Args:
        element: The parent.
        name: Without namespace.
    """
    return next((child.text for child in element if _name(child) == name), None)


def error_code(body: bytes) -> str | None:
    """The ``Code`` of an error document; None for anything else.

    Args:
        body: What a service sent.
    """
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        return None
    return child_text(root, "Code") if _name(root) == "Error" else None


def _meta(item: ElementTree.Element, *, encoded: bool, etag_is_md5: bool) -> ObjectMeta:
    key = child_text(item, "Key") or ""
    etag = (child_text(item, "ETag") or "").strip('"') or None
    return ObjectMeta(
        key=unquote_plus(key, errors="surrogateescape") if encoded else key,
        size=int(child_text(item, "Size") or 0),
        last_modified=datetime.fromisoformat(child_text(item, "LastModified") or ""),
        etag=etag,
        version=etag,
        checksum=etag_checksum(etag, trusted=etag_is_md5),
    )


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
