"""The closed tree of errors that a store may raise.

::

    ObjectStoreError
    ├── NotFoundError               (FileNotFoundError)   no such object
    │   └── BucketNotFoundError                           no such bucket or container
    ├── AlreadyExistsError          (FileExistsError)     a create found the key taken
    ├── PreconditionFailedError                           the version is not the expected one
    ├── PermissionDeniedError       (PermissionError)     known to the store, but not allowed
    │   └── CredentialsError                              missing, wrong or expired credential
    ├── InvalidKeyError             (ValueError)          a key that no store may hold
    ├── InvalidUrlError             (ValueError)          a URL or option that cannot be used
    ├── MissingExtraError           (ImportError)         an SDK that is not installed
    ├── StoreFullError              (OSError)             no space, or a quota is used up
    ├── CorruptedError                                    stored bytes differ from those sent
    └── TransientError              (ConnectionError)     may succeed when tried again
        ├── StoreTimeoutError       (TimeoutError)        no answer in time
        └── ThrottledError                                asked to slow down

Whether a call is worth repeating is decided by class alone: ``error.retryable``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, ClassVar


class ObjectStoreError(Exception):
    """Base of everything a store raises on purpose.

    Args:
        message: What was wrong, with which value, and what to do.
        store: URI of the store, without secrets.
        key: The key in question, if one was.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, store: str | None = None, key: str | None = None) -> None:
        super().__init__(message)
        self.store = store
        self.key = key

    @property
    def message(self) -> str:
        """The bare message, without store and key."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        where = [f"store {self.store}"] if self.store else []
        if self.key is not None:
            where.append(f"key {self.key!r}")
        return f"{self.message} ({', '.join(where)})" if where else self.message

    def _state(self) -> dict[str, Any]:
        return {"store": self.store, "key": self.key}

    def __reduce__(self) -> tuple[Callable[..., ObjectStoreError], tuple[Any, ...]]:
        return (_rebuild, (type(self), self.message, self._state()))


def _rebuild(cls: type[ObjectStoreError], message: str, state: dict[str, Any]) -> ObjectStoreError:
    return cls(message, **state)


class NotFoundError(ObjectStoreError, FileNotFoundError):
    """There is no object under this key."""

    errno = errno.ENOENT


class BucketNotFoundError(NotFoundError):
    """The bucket, container or root itself does not exist."""


class AlreadyExistsError(ObjectStoreError, FileExistsError):
    """A put with ``PutMode.CREATE`` (or a download) found its destination taken."""

    errno = errno.EEXIST


class PreconditionFailedError(ObjectStoreError):
    """A put with ``ReplaceIf`` found another version than the expected one."""


class PermissionDeniedError(ObjectStoreError, PermissionError):
    """The credential is known but may not do this. Never means that a key is missing."""

    errno = errno.EACCES


class CredentialsError(PermissionDeniedError):
    """The credential is missing, wrong or expired."""


class InvalidKeyError(ObjectStoreError, ValueError):
    """The key is not a clean relative path; see `validate_key`."""


class InvalidUrlError(ObjectStoreError, ValueError):
    """A store URL, provider name or option that cannot be used."""


class MissingExtraError(ObjectStoreError, ImportError):
    """The library behind a back end is not installed; the message names the extra."""


class StoreFullError(ObjectStoreError, OSError):
    """The store has no room left, or a quota is used up."""

    errno = errno.ENOSPC


class CorruptedError(ObjectStoreError):
    """What the store holds or sent is not what was written."""


class TransientError(ObjectStoreError, ConnectionError):
    """The call failed in a way that may pass: a cut connection, a 5xx answer."""

    retryable: ClassVar[bool] = True


class StoreTimeoutError(TransientError, TimeoutError):
    """No answer came within the time allowed."""

    errno = errno.ETIMEDOUT


class ThrottledError(TransientError):
    """The store asked to slow down.

    Args:
        message: What was wrong, with which value, and what to do.
        store: URI of the store, without secrets.
        key: The key in question, if one was.
        retry_after: Seconds the store asked to wait, if it said.
    """

    def __init__(
        self,
        message: str,
        *,
        store: str | None = None,
        key: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, store=store, key=key)
        self.retry_after = retry_after

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "retry_after": self.retry_after}
