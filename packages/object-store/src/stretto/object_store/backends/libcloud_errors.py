"""What libcloud and requests raise, in this package's errors."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from stretto.object_store.backends.service_errors import service_error
from stretto.object_store.errors import (
    BucketNotFoundError,
    CredentialsError,
    NotFoundError,
    ObjectStoreError,
    StoreTimeoutError,
    ThrottledError,
    TransientError,
)

_CODE = re.compile(r"<Code>(\w+)</Code>")
_TIMEOUTS = {"ConnectTimeout", "ReadTimeout", "Timeout"}


@contextmanager
def mapped_errors(driver: Any, *, store: str, key: str | None) -> Generator[None]:
    """Turn what libcloud raises into this package's errors.

    Args:
        driver: The driver that is used inside; its last answer says more than its errors.
        store: URI of the store.
        key: The key in question.
    """
    forget_answer(driver)
    try:
        yield
    except ObjectStoreError:
        raise
    except Exception as error:
        mapped = _map(error, driver, store=store, key=key)
        if mapped is None:
            raise
        raise mapped from (None if isinstance(mapped, CredentialsError) else error)


def forget_answer(driver: Any) -> None:
    """Make sure that an old answer explains no new error.

    Args:
        driver: Any driver.
    """
    connection = getattr(driver.connection, "connection", None)
    if connection is not None:
        connection.response = None


def raise_for_answer(answer: Any, *, store: str, key: str | None) -> None:
    """Raise unless an answer is a success.

    Args:
        answer: A ``requests.Response``.
        store: URI of the store.
        key: The key in question.
    """
    status = int(answer.status_code)
    if status >= 300:
        raise _error_of(answer, store=store, key=key)


def _error_of(answer: Any, *, store: str, key: str | None) -> ObjectStoreError:
    try:
        body = str(answer.text or "")
    except Exception:  # the connection may break in the error's own body
        body = ""
    code = _CODE.search(body)
    return service_error(
        int(answer.status_code),
        code[1] if code else None,
        store=store,
        key=key,
        retry_after=_seconds(answer.headers.get("retry-after")),
    )


def _seconds(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:
        return None  # a date: rare, and the back-off covers it


def _map(error: Exception, driver: Any, *, store: str, key: str | None) -> ObjectStoreError | None:
    name, module = type(error).__name__, type(error).__module__
    if name == "ContainerDoesNotExistError":
        return BucketNotFoundError(
            "the container does not exist; create it, or open with create=True",
            store=store,
            key=key,
        )
    if name == "ObjectDoesNotExistError":
        return NotFoundError("there is no such object", store=store, key=key)
    if module.startswith(("requests.", "urllib3.", "http.client")):
        kind = StoreTimeoutError if _is_timeout(error) else TransientError
        text = "no answer in time" if kind is StoreTimeoutError else "the connection failed"
        return kind(text, store=store, key=key)
    if isinstance(error, (ConnectionError, TimeoutError)):
        return TransientError("the connection failed", store=store, key=key)
    if not module.startswith("libcloud."):
        return None
    answer = getattr(getattr(driver.connection, "connection", None), "response", None)
    if answer is not None and int(answer.status_code) >= 300:
        return _error_of(answer, store=store, key=key)
    if name == "InvalidCredsError":
        return CredentialsError("the store refuses the credential", store=store, key=key)
    if name == "RateLimitReachedError":
        return ThrottledError("the store asks to slow down", store=store, key=key)
    return ObjectStoreError(f"libcloud failed: {name}", store=store, key=key)


def _is_timeout(error: Exception) -> bool:
    return type(error).__name__ in _TIMEOUTS or "timed out" in str(error)
