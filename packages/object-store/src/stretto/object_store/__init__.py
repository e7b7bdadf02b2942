"""One small storage interface over memory, local disk, S3, GCS, Azure and libcloud's providers.

>>> from stretto.object_store import open_store
>>> store = open_store("memory://example")
>>> store.put("greeting.txt", b"hello").size
5
>>> store.get("greeting.txt").read()
b'hello'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from stretto.object_store.errors import (
    AlreadyExistsError,
    BucketNotFoundError,
    CorruptedError,
    CredentialsError,
    InvalidKeyError,
    InvalidUrlError,
    MissingExtraError,
    NotFoundError,
    ObjectStoreError,
    PermissionDeniedError,
    PreconditionFailedError,
    StoreFullError,
    StoreTimeoutError,
    ThrottledError,
    TransientError,
)
from stretto.object_store.get_result import GetResult
from stretto.object_store.keys import is_clean_key, validate_key
from stretto.object_store.registry import known_schemes, open_store
from stretto.object_store.retry import RetryPolicy
from stretto.object_store.store import Store
from stretto.object_store.types import (
    Capabilities,
    Checksum,
    ObjectMeta,
    PutMode,
    PutResult,
    ReplaceIf,
)
from stretto.object_store.url import StoreUrl, parse_url

if TYPE_CHECKING:
    from stretto.object_store.backends.local import LocalStore
    from stretto.object_store.backends.memory import MemoryStore
    from stretto.object_store.provider import ObjectStoreProvider, ObjectStoreProviderHparams
    from stretto.object_store.transfer import (
        copy_between,
        download_file,
        exists,
        upload_file,
        walk,
    )
    from stretto.object_store.wrappers.prefix import PrefixStore
    from stretto.object_store.wrappers.retry import RetryStore

_LAZY = {
    "LocalStore": "stretto.object_store.backends.local",
    "MemoryStore": "stretto.object_store.backends.memory",
    "ObjectStoreProvider": "stretto.object_store.provider",
    "ObjectStoreProviderHparams": "stretto.object_store.provider",
    "PrefixStore": "stretto.object_store.wrappers.prefix",
    "RetryStore": "stretto.object_store.wrappers.retry",
    "copy_between": "stretto.object_store.transfer",
    "download_file": "stretto.object_store.transfer",
    "exists": "stretto.object_store.transfer",
    "upload_file": "stretto.object_store.transfer",
    "walk": "stretto.object_store.transfer",
}

__all__ = [
    "AlreadyExistsError",
    "BucketNotFoundError",
    "Capabilities",
    "Checksum",
    "CorruptedError",
    "CredentialsError",
    "GetResult",
    "InvalidKeyError",
    "InvalidUrlError",
    "LocalStore",
    "MemoryStore",
    "MissingExtraError",
    "NotFoundError",
    "ObjectMeta",
    "ObjectStoreError",
    "ObjectStoreProvider",
    "ObjectStoreProviderHparams",
    "PermissionDeniedError",
    "PreconditionFailedError",
    "PrefixStore",
    "PutMode",
    "PutResult",
    "ReplaceIf",
    "RetryPolicy",
    "RetryStore",
    "Store",
    "StoreFullError",
    "StoreTimeoutError",
    "StoreUrl",
    "ThrottledError",
    "TransientError",
    "copy_between",
    "download_file",
    "exists",
    "is_clean_key",
    "known_schemes",
    "open_store",
    "parse_url",
    "upload_file",
    "validate_key",
    "walk",
]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
