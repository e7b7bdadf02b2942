"""The conformance suite against S3 through both libraries, on real servers.

ministack has the semantics of S3; rclone checks signatures and keeps objects as files.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stretto.object_store import Store
from stretto.object_store.conformance.servers import Ministack, Rclone
from stretto.object_store.conformance.suite import (
    MissingBucketConformance,
    StoreConformance,
    WrongCredentialConformance,
)

pytestmark = pytest.mark.server
WRONG = "not-the-secret-4711"


class TestObstoreOnMinistack(StoreConformance, MissingBucketConformance):
    @pytest.fixture
    def store(self, bucket_on: Callable[..., Store], ministack: Ministack) -> Store:
        return bucket_on(ministack)

    @pytest.fixture
    def bucketless(self, reach: Callable[..., Store], ministack: Ministack) -> Store:
        return reach(ministack, "no-such-bucket", check=False)


class TestObstoreOnRclone(StoreConformance, MissingBucketConformance, WrongCredentialConformance):
    overwrites_atomically = False  # it truncates the file, then writes it

    @pytest.fixture
    def store(self, bucket_on: Callable[..., Store], rclone: Rclone) -> Store:
        return bucket_on(rclone)

    @pytest.fixture
    def bucketless(self, reach: Callable[..., Store], rclone: Rclone) -> Store:
        return reach(rclone, "no-such-bucket", check=False)

    @pytest.fixture
    def wrong_secret(self) -> str:
        return WRONG

    @pytest.fixture
    def mistrusted(self, reach: Callable[..., Store], rclone: Rclone) -> Store:
        return reach(rclone, "no-such-bucket", check=False, secret_access_key=WRONG)


class TestLibcloudOnMinistack(StoreConformance, MissingBucketConformance):
    @pytest.fixture
    def store(self, bucket_on: Callable[..., Store], ministack: Ministack) -> Store:
        return bucket_on(ministack, backend="libcloud")

    @pytest.fixture
    def bucketless(self, reach: Callable[..., Store], ministack: Ministack) -> Store:
        return reach(ministack, "no-such-bucket", check=False, backend="libcloud")


class TestLibcloudOnRclone(StoreConformance, MissingBucketConformance, WrongCredentialConformance):
    overwrites_atomically = False  # it truncates the file, then writes it

    @pytest.fixture
    def store(self, bucket_on: Callable[..., Store], rclone: Rclone) -> Store:
        return bucket_on(rclone, backend="libcloud")

    @pytest.fixture
    def bucketless(self, reach: Callable[..., Store], rclone: Rclone) -> Store:
        return reach(rclone, "no-such-bucket", check=False, backend="libcloud")

    @pytest.fixture
    def wrong_secret(self) -> str:
        return WRONG

    @pytest.fixture
    def mistrusted(self, reach: Callable[..., Store], rclone: Rclone) -> Store:
        return reach(
            rclone,
            "no-such-bucket",
            check=False,
            backend="libcloud",
            secret_access_key=WRONG,
        )
