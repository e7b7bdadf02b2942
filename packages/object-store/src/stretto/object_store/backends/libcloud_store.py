"""Any of libcloud's storage providers as a store, made safe where libcloud is not."""

from __future__ import annotations

import email.utils
import itertools
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stretto.object_store.backends.libcloud_driver import DriverRecipe, Drivers
from stretto.object_store.backends.libcloud_errors import mapped_errors
from stretto.object_store.backends.parts import SINGLE_PUT, Parts, take
from stretto.object_store.errors import BucketNotFoundError, NotFoundError
from stretto.object_store.get_result import GetResult, check_range, clip_range
from stretto.object_store.keys import validate_key, validate_prefix
from stretto.object_store.metadata import read_metadata
from stretto.object_store.source import CHUNK_SIZE, iter_chunks
from stretto.object_store.store import Store
from stretto.object_store.types import (
    ByteRange,
    Capabilities,
    Mode,
    ObjectMeta,
    PutMode,
    PutResult,
    Source,
)

_CONTENT_TYPE = "application/octet-stream"
_EPOCH = datetime.fromtimestamp(0, UTC)


class LibcloudStore(Store):
    """Objects in a container, through libcloud's common interface.

    Args:
        recipe: How to make drivers.
        container: The container's name.
    """

    def __init__(self, recipe: DriverRecipe, container: str) -> None:
        self._recipe = recipe
        self._uri = recipe.uri
        self._container_name = container
        self._drivers = Drivers(recipe)
        self._drivers.get()  # wrong settings are an error here, not later

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._uri!r})"

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[DriverRecipe, str]]:
        return (type(self), (self._recipe, self._container_name))

    @property
    def capabilities(self) -> Capabilities:
        """Only what every provider of libcloud can be trusted with."""
        return Capabilities(
            picklable=not self._recipe.holds_secret,
            refused_characters="\\" if self._recipe.provider == "azure_blobs" else "",
        )

    @property
    def driver(self) -> Any:
        """This thread's libcloud driver."""
        return self._drivers.get()

    def _container(self, driver: Any) -> Any:
        # Made here, not asked for: `get_container` needs rights of its own and hides a 403.
        from libcloud.storage.base import Container

        return Container(name=self._container_name, extra={}, driver=driver)

    def put(
        self,
        key: str,
        source: Source,
        *,
        mode: Mode = PutMode.OVERWRITE,
        metadata: Mapping[str, str] | None = None,
    ) -> PutResult:
        """See `Store.put`."""
        self._validate(key)
        if mode is not PutMode.OVERWRITE:
            raise ValueError(f"{self._uri} can only overwrite; see capabilities")
        if metadata:
            raise ValueError(f"{self._uri} keeps no metadata; see capabilities.metadata")
        return self.put_with(key, source)

    def put_with(
        self,
        key: str,
        source: Source,
        *,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PutResult:
        """A put with libcloud's own attributes.

        Args:
            key: Where to.
            source: As for `Store.put`.
            extra: libcloud's extra attributes, such as ``content_type`` and ``meta_data``.
            headers: Further request headers.
        """
        self._validate(key)
        driver = self._drivers.get()
        container = self._container(driver)
        arguments: dict[str, Any] = {
            "extra": {"content_type": _CONTENT_TYPE, **(extra or {})},
            "headers": dict(headers or {}),
        }
        if isinstance(source, os.PathLike) and Path(source).stat().st_size > SINGLE_PUT:
            with mapped_errors(driver, store=self._uri, key=key):
                # Read from the file, for drivers that would hold a stream in memory.
                found = driver.upload_object(
                    os.fspath(source), container, key, verify_hash=False, **arguments
                )
                size = int(found.size)
        else:
            chunks = iter_chunks(source)
            data, complete = take(chunks, SINGLE_PUT)
            parts = Parts([data] if complete else itertools.chain([data], chunks), SINGLE_PUT)
            stream = iter(parts) if data else iter([b""])
            with mapped_errors(driver, store=self._uri, key=key):
                found = driver.upload_object_via_stream(stream, container, key, **arguments)
            size = parts.size
        return PutResult(etag=_etag(found), version=None, size=size)

    def get(self, key: str, *, byte_range: ByteRange | None = None) -> GetResult:
        """See `Store.get`."""
        check_range(byte_range)
        driver = self._drivers.get()
        found = self._find(driver, key)
        meta = self._meta(found, key)
        start, end = clip_range(byte_range, meta.size)
        chunks = self._stream(driver, found, key, start, end)
        return GetResult(meta, chunks, byte_range=(start, end), close=chunks.close, store=self._uri)

    def _stream(self, driver: Any, found: Any, key: str, start: int, end: int) -> Generator[bytes]:
        if start == end:
            return
        with mapped_errors(driver, store=self._uri, key=key):
            if (start, end) == (0, int(found.size)):
                stream = driver.download_object_as_stream(found, CHUNK_SIZE)
            else:
                stream = driver.download_object_range_as_stream(found, start, end, CHUNK_SIZE)
            for chunk in stream:
                yield bytes(chunk)

    def head(self, key: str) -> ObjectMeta:
        """See `Store.head`."""
        driver = self._drivers.get()
        return self._meta(self._find(driver, key), key)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        driver = self._drivers.get()
        found = self._find(driver, key)
        with mapped_errors(driver, store=self._uri, key=key):
            if not driver.delete_object(found):
                raise NotFoundError("there is no such object", store=self._uri, key=key)

    def copy(self, source_key: str, destination_key: str) -> None:
        """See `Store.copy`; through this process."""
        with self.get(source_key) as result:
            self.put(destination_key, result)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """See `Store.list`."""
        prefix = validate_prefix(prefix, store=self._uri)
        return self._list(f"{prefix}/" if prefix else None)

    def _list(self, prefix: str | None) -> Iterator[ObjectMeta]:
        driver = self._drivers.get()
        with mapped_errors(driver, store=self._uri, key=prefix):
            for found in driver.iterate_container_objects(self._container(driver), prefix=prefix):
                yield self._meta(found, found.name)

    def check(self) -> None:
        """See `Store.check`."""
        driver = self._drivers.get()
        with mapped_errors(driver, store=self._uri, key=None):
            driver.get_container(self._container_name)
            objects = driver.iterate_container_objects(
                self._container(driver), prefix=".rundir-uploader/probe"
            )
            next(iter(objects), None)

    def make_container(self) -> None:
        """Make the container unless it is there."""
        try:
            self.check()
        except BucketNotFoundError:
            driver = self._drivers.get()
            with mapped_errors(driver, store=self._uri, key=None):
                driver.create_container(self._container_name)

    def uri(self, key: str) -> str:
        """See `Store.uri`."""
        return f"{self._uri}/{key}" if key else self._uri

    def _validate(self, key: str) -> None:
        validate_key(key, store=self._uri, refused=self.capabilities.refused_characters)

    def _find(self, driver: Any, key: str) -> Any:
        self._validate(key)
        with mapped_errors(driver, store=self._uri, key=key):
            return driver.get_object(self._container_name, key)

    def _meta(self, found: Any, key: str) -> ObjectMeta:
        extra: Mapping[str, Any] = found.extra or {}
        metadata: Mapping[str, Any] = found.meta_data or {}
        return ObjectMeta(
            key=key,
            size=int(found.size),
            last_modified=parse_time(extra.get("last_modified")),
            etag=_etag(found),
            metadata=read_metadata({k: v for k, v in metadata.items() if isinstance(v, str)}),
        )


def parse_time(value: object) -> datetime:
    """A service's idea of a time; the epoch where it cannot be read.

    Args:
        value: An ISO 8601 or RFC 5322 string, or a datetime.
    """
    try:
        if isinstance(value, str):
            found = (
                datetime.fromisoformat(value)
                if value[:4].isdigit()
                else email.utils.parsedate_to_datetime(value)
            )
        elif isinstance(value, datetime):
            found = value
        else:
            return _EPOCH
    except ValueError:
        return _EPOCH
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _etag(found: Any) -> str | None:
    extra: Mapping[str, Any] = found.extra or {}
    tag = found.hash or extra.get("etag")
    return str(tag).strip('"') if tag else None
