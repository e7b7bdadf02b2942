"""A store over obstore: S3, Google Cloud Storage and Azure through one class."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, cast

import obstore

from stretto.object_store.backends.obstore_errors import (
    RangeRefusedError,
    UncleanKeyListedError,
    is_obstore_error,
    map_obstore_error,
)
from stretto.object_store.backends.obstore_service import ClientUse, Service
from stretto.object_store.backends.parts import (
    MIB,
    READ_AT_ONCE,
    SINGLE_PUT,
    SMALL_BODY,
    Parts,
    plan_parts,
    take,
)
from stretto.object_store.errors import (
    BucketNotFoundError,
    CredentialsError,
    NotFoundError,
    ObjectStoreError,
)
from stretto.object_store.get_result import GetResult, check_range, clip_range
from stretto.object_store.keys import validate_key, validate_prefix
from stretto.object_store.metadata import normalize_metadata, read_metadata
from stretto.object_store.source import iter_chunks, known_size
from stretto.object_store.store import Store
from stretto.object_store.types import (
    ByteRange,
    Capabilities,
    Mode,
    ObjectMeta,
    PutMode,
    PutResult,
    ReplaceIf,
    Source,
)

CONDITIONAL_LIMIT = 64 * MIB
"""obstore sends a put with a condition in one request, so it is held in memory."""
_READ_CHUNK = 2 * MIB
_LIST_PAGE = 1000
_obs = cast("Any", obstore)  # its stubs need a package that it does not install
_owner = os.getpid()


class ObstoreStore(Store):
    """Objects in a bucket, through obstore.

    Args:
        service: Which service and how to reach it.

    Raises:
        CredentialsError: There is no credential.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._uri = service.uri
        self._capabilities = service.capabilities
        self._lock = threading.Lock()
        self._bucket_seen = False
        self._clients: dict[ClientUse, Any] = {}
        self._small = self._client(ClientUse.SMALL)

    def __repr__(self) -> str:
        return f"ObstoreStore({self._uri!r})"

    def __reduce__(self) -> tuple[type[ObstoreStore], tuple[Service]]:
        return (ObstoreStore, (self._service,))

    @property
    def capabilities(self) -> Capabilities:
        """What the service promises through obstore."""
        return self._capabilities

    def put(
        self,
        key: str,
        source: Source,
        *,
        mode: Mode = PutMode.OVERWRITE,
        metadata: Mapping[str, str] | None = None,
    ) -> PutResult:
        """See `Store.put`; over 8 MiB in parallel parts."""
        self._validate(key)
        attributes = self._attributes(metadata) if metadata else None
        condition = None if mode is PutMode.OVERWRITE else self._condition(mode)
        if type(source) is bytes and len(source) <= SINGLE_PUT:
            return self._put_bytes(key, source, condition, attributes)
        plan = plan_parts(known_size(source))
        chunks = iter_chunks(source, plan.part_size)
        limit = SINGLE_PUT if condition is None else CONDITIONAL_LIMIT
        data, complete = take(chunks, limit)
        if complete:
            return self._put_bytes(key, data, condition, attributes)
        if condition is not None:
            raise ValueError(
                f"key {key!r}: {self._uri} can put at most {CONDITIONAL_LIMIT // MIB} MiB with "
                f"{mode}; overwrite instead, or create a small object that names a large one"
            )
        parts = Parts(itertools.chain([data], chunks), plan.part_size)
        del data
        answer = self._run(
            key,
            _obs.put,
            self._client(ClientUse.PARTS),
            key,
            iter(parts),
            attributes=attributes,
            use_multipart=True,
            chunk_size=plan.part_size,
            max_concurrency=plan.concurrency,
        )
        return self._put_result(answer, parts.size)

    def _put_bytes(
        self, key: str, data: bytes, condition: Any, attributes: dict[str, str] | None
    ) -> PutResult:
        client = self._small if len(data) <= SMALL_BODY else self._client(ClientUse.LARGE)
        options: dict[str, Any] = {"use_multipart": False}
        if condition is not None:
            options["mode"] = condition
        if attributes is not None:
            options["attributes"] = attributes
        return self._put_result(self._run(key, _obs.put, client, key, data, **options), len(data))

    def _attributes(self, metadata: Mapping[str, str]) -> dict[str, str]:
        if not self._capabilities.metadata:
            raise ValueError(f"{self._uri} keeps no metadata; see capabilities.metadata")
        return normalize_metadata(metadata)

    def _condition(self, mode: Mode) -> Any:
        supported = self._capabilities
        if isinstance(mode, ReplaceIf):
            if not supported.replace_if:
                raise ValueError(f"{self._uri} cannot replace by version; see capabilities")
            return self._service.condition(mode.version)
        if not supported.create:
            raise ValueError(f"{self._uri} cannot create atomically; see capabilities")
        return "create"

    def _put_result(self, answer: Mapping[str, str | None], size: int) -> PutResult:
        etag = _bare(answer["e_tag"])
        return PutResult(
            etag=etag,
            version=self._service.version(etag, answer["version"]),
            size=size,
            checksum=self._service.checksum(etag),
        )

    def get(self, key: str, *, byte_range: ByteRange | None = None) -> GetResult:
        """See `Store.get`."""
        self._validate(key)
        if check_range(byte_range) and byte_range and byte_range[0] == byte_range[1]:
            return self._empty(key, byte_range)
        cut: ByteRange | None = None
        try:
            options = None if byte_range is None else {"range": byte_range}
            result = self._run(key, _obs.get, self._small, key, options=options)
        except RangeRefusedError as error:
            if error.beyond_end:
                return self._empty(key, byte_range)
            # The service sends the right bytes with a wrong status, which obstore refuses.
            cut = byte_range
            result = self._run(key, _obs.get, self._small, key)
        meta = self._meta(result.meta, key, result.attributes)
        start, end = clip_range(cut, meta.size) if cut else result.range
        if end - start <= READ_AT_ONCE and cut is None:
            data = bytes(self._run(key, result.bytes))
            return GetResult(meta, iter([data]), byte_range=(start, end), store=self._uri)
        stream = self._stream(key, result, (start, end) if cut else None)
        return GetResult(meta, stream, byte_range=(start, end), close=stream.close, store=self._uri)

    def _empty(self, key: str, byte_range: ByteRange | None) -> GetResult:
        meta = self.head(key)
        start, _ = clip_range(byte_range, meta.size)
        return GetResult(meta, iter(()), byte_range=(start, start), store=self._uri)

    def _stream(self, key: str, result: Any, cut: ByteRange | None) -> Generator[bytes]:
        chunks = result.stream(min_chunk_size=_READ_CHUNK)
        position = 0
        while cut is None or position < cut[1]:
            chunk = self._run(key, next, chunks, None)
            if chunk is None:
                return
            begin = position
            position += len(chunk)
            if cut is not None:
                chunk = chunk[max(0, cut[0] - begin) : cut[1] - begin]
            yield chunk

    def head(self, key: str) -> ObjectMeta:
        """See `Store.head`."""
        self._validate(key)
        result = self._run(key, _obs.get, self._small, key, options={"head": True})
        return self._meta(result.meta, key, result.attributes)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self.head(key)  # services call the deletion of nothing a success
        self._run(key, _obs.delete, self._small, key)

    def copy(self, source_key: str, destination_key: str) -> None:
        """See `Store.copy`."""
        self._validate(source_key)
        self._validate(destination_key)
        self._run(source_key, _obs.copy, self._small, source_key, destination_key)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """See `Store.list`."""
        return self._list(validate_prefix(prefix, store=self._uri))

    def _list(self, prefix: str) -> Iterator[ObjectMeta]:
        last: str | None = None
        if not prefix and self._has_leading_slashes():
            yield from self._service.list_exactly("", None)
            return
        pages = _obs.list(self._small, prefix or None, chunk_size=_LIST_PAGE)
        while True:
            try:
                page = self._call(prefix or None, next, pages, None)
            except NotFoundError as error:
                raise BucketNotFoundError(
                    "the bucket does not exist; create it first", store=self._uri
                ) from error
            except UncleanKeyListedError:
                yield from self._service.list_exactly(f"{prefix}/" if prefix else "", last)
                return
            if page is None:
                return
            for item in page:
                last = self._true_key(item["path"], item["size"])
                yield self._meta(item, last, {})

    def _has_leading_slashes(self) -> bool:
        """Whether somebody stored '/a', which obstore would list as 'a'."""
        try:
            return next(self._service.list_exactly("/", None), None) is not None
        except ObjectStoreError:
            return False  # there is no other way to list here

    def _true_key(self, key: str, size: int) -> str:
        # obstore lists the empty object 'a/', which consoles make for a folder, as 'a'.
        if size == 0:
            try:
                self._call(key, _obs.head, self._small, key)
            except NotFoundError:
                return f"{key}/"
        return key

    def uri(self, key: str) -> str:
        """See `Store.uri`."""
        return f"{self._uri}/{key}" if key else self._uri

    def _meta(self, item: Any, key: str, attributes: Mapping[str, str]) -> ObjectMeta:
        etag = _bare(item["e_tag"])
        return ObjectMeta(
            key=key,
            size=item["size"],
            last_modified=item["last_modified"],
            etag=etag,
            version=self._service.version(etag, item["version"]),
            checksum=self._service.checksum(etag),
            metadata=read_metadata(attributes),
        )

    def _validate(self, key: str) -> None:
        validate_key(key, store=self._uri, refused=self._capabilities.refused_characters)

    def _require_bucket(self) -> None:
        """A bare 404 does not say what is missing; a listing does."""
        if self._bucket_seen:
            return
        try:
            self.check()
        except BucketNotFoundError:
            raise
        except ObjectStoreError:
            return  # not allowed to look; missing is what the store said
        self._bucket_seen = True

    def _client(self, use: ClientUse) -> Any:
        with self._lock:
            if use not in self._clients:
                self._clients[use] = self._service.connect(use)
            return self._clients[use]

    def _run(
        self, key: str | None, function: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        try:
            return self._call(key, function, *args, **options)
        except BucketNotFoundError:
            raise
        except NotFoundError:
            self._require_bucket()
            raise

    def _call(
        self, key: str | None, function: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        if os.getpid() != _owner:
            raise ObjectStoreError(
                "this process was forked after obstore had started, and its threads are not here; "
                "start processes with 'spawn', or open the store with backend='libcloud'",
                store=self._uri,
                key=key,
            )
        try:
            return function(*args, **options)
        except Exception as error:
            if not is_obstore_error(error):
                raise
            mapped = map_obstore_error(error, store=self._uri, key=key)
            # A refusal's text can quote the credential that was sent.
            raise mapped from (None if isinstance(mapped, CredentialsError) else error)


def _bare(etag: str | None) -> str | None:
    return etag.removeprefix("W/").strip('"') if etag else None
