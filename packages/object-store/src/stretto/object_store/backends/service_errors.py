"""One table from a service's answer to our error, shared by all HTTP back ends."""

from __future__ import annotations

from stretto.object_store.errors import (
    AlreadyExistsError,
    BucketNotFoundError,
    CredentialsError,
    InvalidUrlError,
    NotFoundError,
    ObjectStoreError,
    PermissionDeniedError,
    PreconditionFailedError,
    StoreFullError,
    StoreTimeoutError,
    ThrottledError,
    TransientError,
)

_BY_CODE: dict[str, tuple[type[ObjectStoreError], str]] = {
    **dict.fromkeys(
        ("NoSuchBucket", "ContainerNotFound", "BucketNotFound"),
        (BucketNotFoundError, "the bucket does not exist; create it, or open with create=True"),
    ),
    **dict.fromkeys(
        ("NoSuchKey", "BlobNotFound", "ObjectNotFound"),
        (NotFoundError, "there is no such object"),
    ),
    **dict.fromkeys(
        (
            "SignatureDoesNotMatch",
            "InvalidAccessKeyId",
            "ExpiredToken",
            "ExpiredTokenException",
            "InvalidToken",
            "TokenRefreshRequired",
            "AuthorizationHeaderMalformed",
            "AuthenticationFailed",
            "InvalidAuthenticationInfo",
            "MissingSecurityHeader",
            "NotAuthenticated",
            "RequestTimeTooSkewed",
        ),
        (CredentialsError, "the store refuses the credential; check the key, secret and clock"),
    ),
    **dict.fromkeys(
        ("SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "ServerBusy"),
        (ThrottledError, "the store asks to slow down"),
    ),
    **dict.fromkeys(
        ("RequestTimeout", "OperationTimedOut"),
        (StoreTimeoutError, "the store waited too long for the request"),
    ),
    **dict.fromkeys(
        ("BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "Md5Mismatch"),
        (TransientError, "the bytes were damaged on their way"),
    ),
    **dict.fromkeys(
        ("QuotaExceeded", "InsufficientCapacity", "InsufficientStorage", "XMinioStorageFull"),
        (StoreFullError, "the store has no room left"),
    ),
    **dict.fromkeys(
        ("PermanentRedirect", "IllegalLocationConstraintException"),
        (InvalidUrlError, "the bucket is in another region; pass region=..."),
    ),
    **dict.fromkeys(
        ("InvalidBucketName", "InvalidResourceName"),
        (InvalidUrlError, "the store does not allow such a bucket name"),
    ),
    **dict.fromkeys(
        ("ConditionalRequestConflict", "OperationAborted"),
        (TransientError, "another writer is at the same key; try again"),
    ),
    "AccessDenied": (PermissionDeniedError, "the credential may not do this"),
    "PreconditionFailed": (PreconditionFailedError, "the object is not at the expected version"),
    "BlobAlreadyExists": (AlreadyExistsError, "the key is taken"),
}

_BY_STATUS: dict[int, tuple[type[ObjectStoreError], str]] = {
    301: _BY_CODE["PermanentRedirect"],
    401: _BY_CODE["SignatureDoesNotMatch"],
    403: _BY_CODE["AccessDenied"],
    404: _BY_CODE["NoSuchKey"],
    408: _BY_CODE["RequestTimeout"],
    412: _BY_CODE["PreconditionFailed"],
    429: _BY_CODE["SlowDown"],
    503: _BY_CODE["SlowDown"],
    504: _BY_CODE["RequestTimeout"],
    507: _BY_CODE["QuotaExceeded"],
}


def service_error(
    status: int | None,
    code: str | None,
    *,
    store: str,
    key: str | None,
    retry_after: float | None = None,
) -> ObjectStoreError:
    """The error for an HTTP answer. The body never gets into it: bodies can hold credentials.

    Args:
        status: The HTTP status, if known.
        code: The service's own code, such as ``NoSuchKey``, if it sent one.
        store: URI of the store.
        key: The key in question.
        retry_after: Seconds the service asked to wait.
    """
    found = _BY_CODE.get(code or "") or _BY_STATUS.get(status or 0)
    seen = " ".join(str(part) for part in (status, code) if part)
    if found is not None:
        kind, text = found
        message = f"{text} [{seen}]"
        if issubclass(kind, ThrottledError):
            return kind(message, store=store, key=key, retry_after=retry_after)
        return kind(message, store=store, key=key)
    if status is not None and status >= 500:
        return TransientError(f"the store failed [{seen}]", store=store, key=key)
    return ObjectStoreError(f"the store refused the request [{seen}]", store=store, key=key)
