"""Servers, once for all test modules, and a fresh bucket for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stretto.object_store import Store, open_store
from stretto.object_store.conformance.running import serving
from stretto.object_store.conformance.servers import (
    ACCESS_KEY,
    SECRET_KEY,
    Ministack,
    Rclone,
    Server,
)

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def no_credentials_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever this machine is configured with plays no part."""
    import os

    for name in list(os.environ):
        if name.startswith(("AWS_", "S3_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="session")
def ministack() -> Iterator[Ministack]:
    yield from serving(Ministack)


@pytest.fixture(scope="session")
def rclone() -> Iterator[Rclone]:
    yield from serving(Rclone)


@pytest.fixture
def bucket_on() -> Callable[..., Store]:
    """``bucket_on(server, **options)``: a store on a new bucket."""

    def make(server: Server, **options: Any) -> Store:
        name = f"bucket-{next(_numbers):05d}"
        server.make_bucket(name)
        return open_on(server, name, **options)

    return make


def open_on(server: Server, bucket: str, **options: Any) -> Store:
    settings: dict[str, Any] = {
        "endpoint": server.url,
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
        "conditional_puts": isinstance(server, Ministack),
    }
    return open_store(f"s3://{bucket}", **(settings | options))


@pytest.fixture
def reach() -> Callable[..., Store]:
    """``reach(server, bucket, **options)``: a store on a bucket that may not exist."""
    return open_on
