"""The conformance suite against the stores that need no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.object_store import (
    LocalStore,
    MemoryStore,
    PrefixStore,
    RetryPolicy,
    RetryStore,
    Store,
)
from stretto.object_store.conformance.suite import MissingBucketConformance, StoreConformance


class TestMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore("test")


class TestLocal(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        # Without fsync: thousands of files, and no power failure in sight.
        return LocalStore(tmp_path / "root", durable=False)


class TestLocalWithoutItsRoot(MissingBucketConformance):
    @pytest.fixture
    def bucketless(self, tmp_path: Path) -> Store:
        store = LocalStore(tmp_path / "root")
        (tmp_path / "root").rmdir()
        return store


class TestPrefixOverMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Store:
        whole = MemoryStore("test")
        whole.put("outside", b"x")
        whole.put("prefix-and-more/x", b"x")
        return PrefixStore(whole, "prefix")


class TestRetryOverMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Store:
        return RetryStore(MemoryStore("test"), RetryPolicy())
