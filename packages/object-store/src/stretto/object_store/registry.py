"""From a URL to a store: which factory serves which scheme."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from stretto.object_store.errors import (
    CredentialsError,
    InvalidUrlError,
    MissingExtraError,
    PermissionDeniedError,
)
from stretto.object_store.retry import RetryPolicy
from stretto.object_store.store import Store
from stretto.object_store.url import StoreUrl, parse_url

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

StoreFactory: TypeAlias = Callable[..., Store]
"""``factory(url: StoreUrl, *, create: bool, **options) -> Store`` for the whole bucket.

The store's keys are relative to the bucket (for ``file``: to the path); the prefix is put on by
`open_store`. A factory refuses options it does not know with InvalidUrlError.
"""

ENTRY_POINT_GROUP = "stretto.object_store"
"""Packages add schemes of their own under this group: ``scheme = module:factory``."""

_BUILT_IN = {
    "file": "stretto.object_store.backends.local:open_local",
    "memory": "stretto.object_store.backends.memory:open_memory",
    "s3": "stretto.object_store.backends.obstore_s3:open_s3",
    "gs": "stretto.object_store.backends.obstore_gcs:open_gcs",
    "azure": "stretto.object_store.backends.obstore_azure:open_azure",
    "az": "stretto.object_store.backends.obstore_azure:open_azure",
}
_LIBCLOUD = "stretto.object_store.backends.libcloud_open:open_libcloud"
_BACKENDS = {
    ("s3", "libcloud"): "stretto.object_store.backends.libcloud_open:open_libcloud_s3",
    ("s3", "obstore"): _BUILT_IN["s3"],
    ("gs", "obstore"): _BUILT_IN["gs"],
    ("azure", "obstore"): _BUILT_IN["azure"],
    ("az", "obstore"): _BUILT_IN["az"],
}
_EXTRAS = {"boto3": "s3", "google": "gcs", "oci": "oci", "paramiko": "sftp", "click": "cli"}


def open_store(
    url: str | os.PathLike[str],
    *,
    create: bool = False,
    check: bool = True,
    backend: str | None = None,
    retry: RetryPolicy | None = RetryPolicy(),  # noqa: B008 - frozen
    **options: Any,
) -> Store:
    """Open the store that a URL names.

    Args:
        url: ``scheme://bucket/prefix``, or a local path; taken literally.
        create: Make the bucket or container if it is missing. A local root and a ``memory``
            store are always made.
        check: Ask the store once whether it is there and lets us in.
        backend: Another library than the scheme's own, such as ``libcloud`` for ``s3``.
        retry: How network calls are repeated; None for not at all.
        **options: What the back end takes: for ``s3`` see `S3Arguments`, and so on.

    Raises:
        InvalidUrlError: The URL, the scheme or an option cannot be used.
        BucketNotFoundError: The bucket does not exist and ``create`` is off.
        CredentialsError: There is no credential, or the store refuses it.
        MissingExtraError: The library behind the scheme is not installed.
    """
    parsed = parse_url(url)
    store = _make(parsed, backend, create=create, options=options)
    prefix = "" if parsed.scheme == "file" else parsed.prefix
    return finish_store(store, prefix=prefix, retry=retry, check=check)


def finish_store(
    store: Store, *, prefix: str = "", retry: RetryPolicy | None = None, check: bool = True
) -> Store:
    """Put around a back end what every store gets: repetition, one question, the prefix.

    Args:
        store: A back end.
        prefix: What `PrefixStore` puts before keys; empty for nothing.
        retry: How calls are repeated where a network is between; None for not at all.
        check: Ask the store once whether it is there and lets us in.

    Raises:
        ObjectStoreError: The store is not there, or does not let us in.
    """
    if retry is not None and store.capabilities.remote:
        from stretto.object_store.wrappers.retry import RetryStore

        store = RetryStore(store, retry)
    if check:
        _check(store)
    if prefix:
        from stretto.object_store.wrappers.prefix import PrefixStore

        store = PrefixStore(store, prefix)
    return store


def known_schemes() -> tuple[str, ...]:
    """All schemes that `open_store` knows, sorted; ``libcloud+<provider>`` stands for many."""
    found = {point.name for point in _entry_points()}
    return tuple(sorted({*_BUILT_IN, *found, "libcloud+<provider>"}))


def _factory(url: StoreUrl, backend: str | None) -> StoreFactory:
    if backend is not None:
        target = _BACKENDS.get((url.scheme, backend))
        if target is None:
            served = sorted(name for scheme, name in _BACKENDS if scheme == url.scheme)
            raise InvalidUrlError(
                f"back end {backend!r} does not serve {url.scheme}://; "
                f"known for it: {', '.join(served) or 'its own only'}"
            )
        return _load(target)
    if url.scheme.startswith("libcloud+"):
        return _load(_LIBCLOUD)
    if url.scheme in _BUILT_IN:
        return _load(_BUILT_IN[url.scheme])
    for point in _entry_points():
        if point.name == url.scheme:
            return cast("StoreFactory", point.load())
    raise InvalidUrlError(
        f"unknown scheme {url.scheme!r} in {str(url)!r}; known: {', '.join(known_schemes())}"
    )


def _entry_points() -> EntryPoints:
    from importlib.metadata import entry_points  # takes longer than the rest of this module

    return entry_points(group=ENTRY_POINT_GROUP)


def _load(target: str) -> StoreFactory:
    module, _, name = target.partition(":")
    return cast("StoreFactory", getattr(importlib.import_module(module), name))


def _make(url: StoreUrl, backend: str | None, *, create: bool, options: dict[str, Any]) -> Store:
    try:
        return _factory(url, backend)(url, create=create, **options)
    except ModuleNotFoundError as error:
        raise missing_extra(error, f"{url.scheme}://") from error


def missing_extra(error: ModuleNotFoundError, needed_for: str) -> MissingExtraError:
    """The error that names what to install.

    Args:
        error: What the import of an SDK raised.
        needed_for: A scheme or a back end's name, for the message.
    """
    module = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(module)
    package = f"stretto-object-store[{extra}]" if extra else "stretto-object-store"
    return MissingExtraError(
        f"{needed_for} needs the module {module!r}, which is not installed; "
        f"run: pip install '{package}'"
    )


def _check(store: Store) -> None:
    try:
        store.check()
    except CredentialsError:
        raise
    except PermissionDeniedError:
        # A credential that may write but not list is a good one; the first put will tell.
        return
