"""The tree of errors."""

from __future__ import annotations

import pickle

import pytest

import stretto.object_store as package
from stretto.object_store import ObjectStoreError, ThrottledError, TransientError
from stretto.object_store.backends.service_errors import service_error

BUILT_IN = {
    "NotFoundError": FileNotFoundError,
    "BucketNotFoundError": FileNotFoundError,
    "AlreadyExistsError": FileExistsError,
    "PermissionDeniedError": PermissionError,
    "CredentialsError": PermissionError,
    "InvalidKeyError": ValueError,
    "InvalidUrlError": ValueError,
    "MissingExtraError": ImportError,
    "StoreFullError": OSError,
    "TransientError": ConnectionError,
    "StoreTimeoutError": TimeoutError,
    "ThrottledError": ConnectionError,
    "PreconditionFailedError": Exception,
    "CorruptedError": Exception,
}
EXPORTED = {
    name: value
    for name in package.__all__
    if isinstance(value := getattr(package, name), type) and issubclass(value, ObjectStoreError)
}


def test_the_tree_is_closed() -> None:
    assert set(EXPORTED) == {*BUILT_IN, "ObjectStoreError"}


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_error_is_the_matching_built_in_too(name: str) -> None:
    error = EXPORTED[name]("what happened", store="s3://bucket", key="a/b")
    assert isinstance(error, BUILT_IN[name])
    assert isinstance(error, ObjectStoreError)
    assert str(error) == "what happened (store s3://bucket, key 'a/b')"
    assert (error.store, error.key, error.message) == ("s3://bucket", "a/b", "what happened")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.store, again.key) == (str(error), error.store, error.key)


def test_only_transient_errors_are_worth_another_try() -> None:
    for error in EXPORTED.values():
        assert error.retryable == issubclass(error, TransientError)


def test_the_time_to_wait_survives_a_pickle() -> None:
    error = ThrottledError("slow down", retry_after=7.5)
    assert pickle.loads(pickle.dumps(error)).retry_after == 7.5


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, None, "NotFoundError"),
        (404, "NoSuchKey", "NotFoundError"),
        (404, "NoSuchBucket", "BucketNotFoundError"),
        (404, "ContainerNotFound", "BucketNotFoundError"),
        (403, None, "PermissionDeniedError"),
        (403, "AccessDenied", "PermissionDeniedError"),
        (403, "SignatureDoesNotMatch", "CredentialsError"),
        (403, "InvalidAccessKeyId", "CredentialsError"),
        (400, "ExpiredToken", "CredentialsError"),
        (401, None, "CredentialsError"),
        (409, "BlobAlreadyExists", "AlreadyExistsError"),
        (409, "ConditionalRequestConflict", "TransientError"),
        (412, None, "PreconditionFailedError"),
        (429, None, "ThrottledError"),
        (503, "SlowDown", "ThrottledError"),
        (503, None, "ThrottledError"),
        (500, None, "TransientError"),
        (502, None, "TransientError"),
        (504, None, "StoreTimeoutError"),
        (400, "RequestTimeout", "StoreTimeoutError"),
        (400, "BadDigest", "TransientError"),
        (507, None, "StoreFullError"),
        (400, "InvalidBucketName", "InvalidUrlError"),
        (301, "PermanentRedirect", "InvalidUrlError"),
        (400, "SomethingNew", "ObjectStoreError"),
        (418, None, "ObjectStoreError"),
    ],
)
def test_answers_have_one_meaning_for_every_back_end(
    status: int, code: str | None, expected: str
) -> None:
    error = service_error(status, code, store="s3://b", key="k")
    assert type(error).__name__ == expected
    assert str(status) in str(error)
