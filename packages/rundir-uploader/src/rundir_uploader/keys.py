"""From a path in the directory to the key of its object."""

from __future__ import annotations

import hashlib
import re

STATE_FOLDER = ".rundir-uploader"
"""Our own folder, in the directory and under the prefix in the store. Never mirrored."""

POINTER_SUFFIX = ".symlink"
"""What the key of a symbolic link ends in."""

_UNCLEAN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def escape_path(path: str) -> str:
    """Turn a relative path into a clean key.

    Nearly every path is its own key. A part with bytes that are not UTF-8, or with control
    characters, gets these percent-encoded and a short digest of its bytes appended, so that two
    names never share a key. The manifest keeps the original.

    Args:
        path: Relative path, parts joined by ``/``, ``surrogateescape`` for foreign bytes.
    """
    if _UNCLEAN.search(path) is None:
        return path
    return "/".join(_escape_part(part) for part in path.split("/"))


def _escape_part(part: str) -> str:
    if _UNCLEAN.search(part) is None:
        return part
    raw = part.encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(raw, digest_size=4).hexdigest()

    def encode(match: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape"))

    return f"{_UNCLEAN.sub(encode, part)}~{digest}"


def join_prefix(prefix: str, name: str) -> str:
    """Put a prefix before a key.

    Args:
        prefix: Whole parts, or empty.
        name: A key, or empty for the prefix itself.
    """
    return f"{prefix}/{name}" if prefix and name else prefix or name


def object_key(prefix: str, path: str, *, pointer: bool = False) -> str:
    """Return the key of the object that holds a file, or a symbolic link.

    Args:
        prefix: Whole parts, or empty.
        path: Relative path of the file.
        pointer: Whether the path is a symbolic link.
    """
    key = escape_path(path)
    if pointer:
        key += POINTER_SUFFIX
    return f"{prefix}/{key}" if prefix else key


def printable(path: str) -> str:
    """Return a path for people to read: foreign bytes and control characters made visible.

    Args:
        path: Relative path, ``surrogateescape`` for foreign bytes.
    """
    return _UNCLEAN.sub(
        lambda match: "".join(
            f"\\x{byte:02x}" for byte in match[0].encode("utf-8", "surrogateescape")
        ),
        path,
    )
