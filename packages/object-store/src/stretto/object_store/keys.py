"""Which keys a store may hold."""

from __future__ import annotations

import re

from stretto.object_store.errors import InvalidKeyError

MAX_KEY_BYTES = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# One pass that accepts nearly every key there is; what it refuses is looked at more closely.
_SURELY_CLEAN = re.compile(r"(?:[\w@=+,-][\w@=+,.-]*/)*[\w@=+,-][\w@=+,.-]*", re.ASCII)


def validate_key(key: str, *, store: str | None = None, refused: str = "") -> str:
    """Check that a key is a clean relative path, and give it back.

    A key is UTF-8, its parts joined by ``/``: no empty part, no ``.`` or ``..`` part, no leading
    or trailing slash, no control character, at most 1,024 bytes.

    Args:
        key: The key to look at.
        store: URI of the store, for the error.
        refused: Further characters, which the service at hand cannot keep.

    Raises:
        InvalidKeyError: The key breaks one of these rules; the message says which.
    """
    if len(key) <= MAX_KEY_BYTES and _SURELY_CLEAN.fullmatch(key):
        return key
    problem = _problem(key)
    if problem is None and refused:
        bad = [char for char in refused if char in key]
        problem = f"has {bad[0]!r}, which this service cannot keep in a key" if bad else None
    if problem:
        raise InvalidKeyError(f"key {key[:200]!r} {problem}", store=store, key=key)
    return key


def is_clean_key(key: str) -> bool:
    """Whether `validate_key` would accept the key."""
    return _problem(key) is None


def validate_prefix(prefix: str, *, store: str | None = None) -> str:
    """Check a prefix of whole path parts; one trailing slash is taken off.

    Args:
        prefix: Empty for everything, else a key-like path.
        store: URI of the store, for the error.

    Raises:
        InvalidKeyError: It is not empty and not a clean path.
    """
    prefix = prefix.removesuffix("/") if prefix != "/" else prefix
    return validate_key(prefix, store=store) if prefix else ""


def _problem(key: str) -> str | None:
    if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return "is not a string; keys are str, parts joined by '/'"
    if not key:
        return "is empty; give at least one path part"
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        return "is not valid UTF-8; escape such names before they become keys"
    if length > MAX_KEY_BYTES:
        return f"has {length} bytes; stores hold at most {MAX_KEY_BYTES}"
    if _CONTROL.search(key):
        return "has a control character; escape it before it becomes a key"
    if key.startswith("/") or key.endswith("/"):
        return "begins or ends with '/'; keys are relative paths of objects, not folders"
    parts = key.split("/")
    if "" in parts:
        return "has an empty part ('//'); join parts with a single '/'"
    if "." in parts or ".." in parts:
        return "has a '.' or '..' part; resolve it first"
    return None
