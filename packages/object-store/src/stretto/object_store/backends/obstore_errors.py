"""What obstore raises, in this package's errors. obstore tells more only in its text."""

from __future__ import annotations

import re

from stretto.object_store.backends.service_errors import service_error
from stretto.object_store.errors import (
    AlreadyExistsError,
    CredentialsError,
    NotFoundError,
    ObjectStoreError,
    PermissionDeniedError,
    StoreTimeoutError,
    TransientError,
)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_CREDENTIAL = ("169.254.169.254", "fd00:ec2", "metadata.google.internal", "latest/api/token")
_BEYOND_END = ("status code: 416", "StartTooLarge")
_TIMEOUT = ("kind: Timeout", "TimedOut", "operation timed out", "deadline has elapsed")
_BROKEN = (
    "HTTP error",
    "error sending request",
    "kind: Connect",
    "kind: Body",
    "kind: Decode",
    "connection closed",
    "Connection reset",
    "kind: Interrupted",
    "kind: Request",
)

_BY_NAME: dict[str, tuple[type[ObjectStoreError], str]] = {
    "AlreadyExistsError": (AlreadyExistsError, "the key is taken"),
    "FileNotFoundError": (NotFoundError, "there is no such object"),
    "UnauthenticatedError": (CredentialsError, "no usable credential"),
    "PermissionDeniedError": (PermissionDeniedError, "the credential may not do this"),
}


class RangeRefusedError(ObjectStoreError):
    """A range was not served; never leaves this package.

    Args:
        message: What happened.
        beyond_end: The range begins behind the last byte.
    """

    def __init__(self, message: str, *, beyond_end: bool = False) -> None:
        super().__init__(message)
        self.beyond_end = beyond_end


class UncleanKeyListedError(ObjectStoreError):
    """A listing met a key that obstore cannot represent; never leaves this package."""


def is_obstore_error(error: BaseException) -> bool:
    """Whether an exception comes from obstore itself, not from a source that it was reading.

    Args:
        error: What a call raised.
    """
    if type(error).__module__ == "obstore.exceptions":
        return True
    # Two of its classes are the built-in ones; its own texts tell them from a source's.
    return type(error) is FileNotFoundError and "Debug source:" in str(error)


def map_obstore_error(error: BaseException, *, store: str, key: str | None) -> ObjectStoreError:
    """The error of ours that an obstore exception stands for.

    Args:
        error: What obstore raised.
        store: URI of the store.
        key: The key in question.
    """
    text, name = str(error), type(error).__name__
    if name == "InvalidPathError":
        return UncleanKeyListedError("a foreign key")
    if any(mark in text for mark in _BEYOND_END):
        return RangeRefusedError("range refused", beyond_end=True)
    if "NotPartial" in text:
        return RangeRefusedError("range refused")
    if any(mark in text for mark in _NO_CREDENTIAL):
        return CredentialsError(
            "no credential was found, and the machine's metadata service gives none; set it in "
            "the environment or pass it as an option",
            store=store,
            key=key,
        )
    if "redirect without LOCATION" in text:
        return service_error(301, None, store=store, key=key)
    if name == "PreconditionError":
        # A replace of an object that is gone is answered with 404.
        return service_error(412, "PreconditionFailed", store=store, key=key)
    status, code = _STATUS.search(text), _CODE.search(text)
    if name != "AlreadyExistsError" and (status or code):
        return service_error(
            int(status[1]) if status else None, code[1] if code else None, store=store, key=key
        )
    return _by_name(name, text, store=store, key=key)


def _by_name(name: str, text: str, *, store: str, key: str | None) -> ObjectStoreError:
    kind, message = _BY_NAME.get(name, (ObjectStoreError, ""))
    if not message and any(mark in text for mark in _TIMEOUT):
        kind, message = StoreTimeoutError, "no answer in time"
    elif not message and any(mark in text for mark in _BROKEN):
        kind, message = TransientError, "the connection failed"
    summary = text.partition("Debug source:")[0].strip()[:200]
    return kind(message or f"obstore failed: {name}: {summary}", store=store, key=key)
