"""What may be kept beside an object."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)
MAX_METADATA_BYTES = 2048

_HEADERS = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "storage-class",
    }
)


def normalize_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Check metadata by what every service can hold, and lower-case its names.

    Args:
        metadata: Names of letters, digits, ``-`` and ``_``; values of printable ASCII without
            spaces at their ends; 2,048 bytes in all.

    Raises:
        ValueError: A name or value breaks these rules, or two names differ by case only.
    """
    if not metadata:
        return {}
    kept: dict[str, str] = {}
    for name, value in metadata.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"metadata name {name!r} must be letters, digits, '-' and '_'")
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise ValueError(
                f"metadata {name}={value!r} must be printable ASCII without outer spaces; "
                "encode it first"
            )
        if name.lower() in _HEADERS:
            raise ValueError(f"metadata name {name!r} is a header's; choose another")
        if name.lower() in kept:
            raise ValueError(f"metadata name {name!r} is given twice in different case")
        kept[name.lower()] = value
    if sum(len(name) + len(value) for name, value in kept.items()) > MAX_METADATA_BYTES:
        raise ValueError(f"metadata exceeds {MAX_METADATA_BYTES} bytes; keep it in an object")
    return kept


def read_metadata(found: Mapping[str, str]) -> dict[str, str]:
    """What a service sent back, by the names that were given.

    Args:
        found: Names in any case (some servers change it), with headers among them.
    """
    lowered = ((name.lower(), value) for name, value in found.items())
    return {name: value for name, value in lowered if name not in _HEADERS}
