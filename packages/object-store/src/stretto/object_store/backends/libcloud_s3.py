"""S3 through libcloud's signing and connections, with requests of our own.

libcloud's own S3 methods break on empty files, ask for the bucket before each call, know no
conditions, and send large streams in small parts that they cannot repeat.
"""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

from stretto.object_store.backends.libcloud_errors import mapped_errors, raise_for_answer
from stretto.object_store.backends.libcloud_s3_parts import PartsUpload
from stretto.object_store.backends.libcloud_store import LibcloudStore, parse_time
from stretto.object_store.backends.parts import (
    COPY_LIMIT,
    READ_AT_ONCE,
    SINGLE_PUT,
    SMALL_BODY,
    Parts,
    plan_parts,
    take,
)
from stretto.object_store.backends.s3_etag import etag_checksum
from stretto.object_store.backends.s3_xml import error_code, parse_list_page
from stretto.object_store.backends.service_errors import service_error
from stretto.object_store.errors import (
    AlreadyExistsError,
    BucketNotFoundError,
    NotFoundError,
    ObjectStoreError,
    PreconditionFailedError,
    TransientError,
)
from stretto.object_store.get_result import GetResult, check_range, clip_range
from stretto.object_store.keys import validate_key
from stretto.object_store.metadata import normalize_metadata, read_metadata
from stretto.object_store.source import CHUNK_SIZE, iter_chunks, known_size
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

_META = "x-amz-meta-"
_BEYOND_END = 416
ResultT = TypeVar("ResultT")


class LibcloudS3Store(LibcloudStore):
    """Objects in an S3 bucket, through libcloud."""

    _bucket_seen = False

    @property
    def capabilities(self) -> Capabilities:
        """What S3 promises. Some look-alikes ignore conditions without a word."""
        return Capabilities(
            create=self._recipe.conditional_puts,
            replace_if=self._recipe.conditional_puts,
            metadata=True,
            server_side_copy=True,
            checksum_algorithms=("md5", "md5-parts") if self._recipe.etag_is_md5 else (),
            multipart=True,
            ordered=True,
            picklable=not self._recipe.holds_secret,
            max_object_size=5 << 40,
        )

    def put(
        self,
        key: str,
        source: Source,
        *,
        mode: Mode = PutMode.OVERWRITE,
        metadata: Mapping[str, str] | None = None,
    ) -> PutResult:
        """See `Store.put`; over 8 MiB in parts, one after another."""
        headers = _metadata_headers(normalize_metadata(metadata))
        return self._put(key, source, mode, headers)

    def put_with(
        self,
        key: str,
        source: Source,
        *,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PutResult:
        """See `LibcloudStore.put_with`; knows ``content_type``, ``meta_data`` and ``acl``."""
        extra = extra or {}
        unknown = sorted(set(extra) - {"content_type", "meta_data", "acl"})
        if unknown:
            raise ValueError(
                f"extra attributes {', '.join(unknown)} are unknown; "
                "known: acl, content_type, meta_data"
            )
        sent = _metadata_headers(normalize_metadata(extra.get("meta_data"))) | dict(headers or {})
        if extra.get("content_type"):
            sent["Content-Type"] = str(extra["content_type"])
        if extra.get("acl"):
            sent["x-amz-acl"] = str(extra["acl"])
        return self._put(key, source, PutMode.OVERWRITE, sent)

    def _put(self, key: str, source: Source, mode: Mode, headers: dict[str, str]) -> PutResult:
        validate_key(key, store=self._uri)
        conditions = self._conditions(mode)
        headers = {"Content-Type": "application/octet-stream", **headers}
        plan = plan_parts(known_size(source))
        chunks = iter_chunks(source, plan.part_size)
        data, complete = take(chunks, SINGLE_PUT)
        if complete:
            etag = self._put_whole(key, data, headers | conditions, mode)
            size = len(data)
        else:
            parts = Parts(itertools.chain([data], chunks), plan.part_size)
            upload = PartsUpload(self.send, key, store=self._uri)
            etag = self._conditioned(mode, lambda: upload.run(parts, headers, conditions))
            size = parts.size
        return PutResult(etag=etag, version=etag, size=size, checksum=self._checksum(etag))

    def _put_whole(self, key: str, data: bytes, headers: dict[str, str], mode: Mode) -> str:
        answer = self._conditioned(mode, lambda: self.send("PUT", key, data=data, headers=headers))
        return self._etag(answer, key)

    def _conditions(self, mode: Mode) -> dict[str, str]:
        if mode is PutMode.OVERWRITE:
            return {}
        if not self._recipe.conditional_puts:
            raise ValueError(f"{self._uri} can only overwrite; see capabilities")
        if isinstance(mode, ReplaceIf):
            return {"If-Match": f'"{mode.version}"'}
        return {"If-None-Match": "*"}

    def _conditioned(self, mode: Mode, function: Callable[[], ResultT]) -> ResultT:
        try:
            return function()
        except BucketNotFoundError:
            raise
        except (PreconditionFailedError, NotFoundError) as error:
            # A replace of an object that is gone is answered with 404.
            if mode is PutMode.CREATE:
                raise AlreadyExistsError(
                    "the key is taken", store=self._uri, key=error.key
                ) from error
            if isinstance(mode, ReplaceIf):
                raise PreconditionFailedError(
                    "the object is not at the expected version", store=self._uri, key=error.key
                ) from error
            raise

    def get(self, key: str, *, byte_range: ByteRange | None = None) -> GetResult:
        """See `Store.get`."""
        validate_key(key, store=self._uri)
        headers: dict[str, str] = {}
        if check_range(byte_range) is not None and byte_range is not None:
            if byte_range[0] == byte_range[1]:
                return self._empty(key, byte_range)
            headers["Range"] = f"bytes={byte_range[0]}-{byte_range[1] - 1}"
        answer = self.send("GET", key, headers=headers, stream=True, accept=_BEYOND_END)
        if answer.status_code == _BEYOND_END:
            answer.close()
            return self._empty(key, byte_range)
        sent, total = _sent_range(answer.headers, self._length(answer, key))
        meta = self._meta_of(key, answer.headers, total)
        wanted = clip_range(byte_range, total)
        chunks = self._body(answer, key, wanted[0] - sent[0], wanted[1] - sent[0])
        if sent[1] - sent[0] <= READ_AT_ONCE:
            # A small object comes whole or not at all, so that a retry can cover its body too.
            return GetResult(meta, iter([b"".join(chunks)]), byte_range=wanted, store=self._uri)
        return GetResult(meta, chunks, byte_range=wanted, close=answer.close, store=self._uri)

    def _empty(self, key: str, byte_range: ByteRange | None) -> GetResult:
        meta = self.head(key)
        start, _ = clip_range(byte_range, meta.size)
        return GetResult(meta, iter(()), byte_range=(start, start), store=self._uri)

    def _body(self, answer: Any, key: str, start: int, end: int) -> Generator[bytes]:
        driver, position = self._drivers.get(), 0
        with mapped_errors(driver, store=self._uri, key=key):
            # Not decoded: the bytes are wanted as they are stored.
            for chunk in answer.raw.stream(CHUNK_SIZE, decode_content=False):
                begin, position = position, position + len(chunk)
                yield bytes(chunk[max(0, start - begin) : end - begin])
                if position >= end:
                    return

    def head(self, key: str) -> ObjectMeta:
        """See `Store.head`."""
        validate_key(key, store=self._uri)
        try:
            answer = self.send("HEAD", key)
        except BucketNotFoundError:
            raise
        except NotFoundError:
            self._require_bucket()
            raise
        return self._meta_of(key, answer.headers, self._length(answer, key))

    def _require_bucket(self) -> None:
        """A bare 404 does not say what is missing; a listing does."""
        if not self._bucket_seen:
            try:
                self.check()
            except BucketNotFoundError:
                raise
            except ObjectStoreError:
                return
            self._bucket_seen = True

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self.head(key)  # services call the deletion of nothing a success
        self.send("DELETE", key)

    def copy(self, source_key: str, destination_key: str) -> None:
        """See `Store.copy`."""
        validate_key(destination_key, store=self._uri)
        if self.head(source_key).size > COPY_LIMIT:
            super().copy(source_key, destination_key)
            return
        source = f"/{self._container_name}/{self.driver._clean_object_name(source_key)}"
        answer = self.send("PUT", destination_key, headers={"x-amz-copy-source": source})
        code = error_code(answer.content)  # a copy can fail after its 200
        if code:
            raise service_error(500, code, store=self._uri, key=source_key)

    def _list(self, prefix: str | None) -> Iterator[ObjectMeta]:
        query = {"list-type": "2", "encoding-type": "url", "prefix": prefix or ""}
        while True:
            answer = self.send("GET", "", params=query)
            page = parse_list_page(answer.content, etag_is_md5=self._recipe.etag_is_md5)
            yield from page.objects
            if page.next_token is None:
                return
            query["continuation-token"] = page.next_token

    def check(self) -> None:
        """See `Store.check`."""
        next(iter(self._list(".rundir-uploader/probe")), None)

    def send(
        self,
        method: str,
        key: str,
        *,
        params: Mapping[str, str] | None = None,
        data: bytes = b"",
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
        accept: int = 0,
    ) -> Any:
        """One signed request to the bucket.

        Args:
            method: Such as ``GET``.
            key: The key; empty for the bucket itself.
            params: The query.
            data: The body.
            headers: Further headers.
            stream: Leave the body on the wire.
            accept: A status to give back rather than raise.

        Returns:
            A ``requests.Response``.
        """
        driver = self._drivers.get()
        sent = dict(headers or {})
        body: Any = data
        if len(data) > SMALL_BODY:
            # As bytes it would have to be sent within one connect time-out; a file goes in blocks.
            # libcloud does not sign files, so the digest is what protects it.
            body = io.BytesIO(data)
            digest = hashlib.md5(data, usedforsecurity=False).digest()
            sent["Content-MD5"] = base64.b64encode(digest).decode()
        path = f"/{self._container_name}"
        if key:
            path += f"/{driver._clean_object_name(key)}"
        with mapped_errors(driver, store=self._uri, key=key or None):
            try:
                driver.connection.request(
                    path,
                    params=dict(params or {}),
                    data=body,
                    headers=sent,
                    method=method,
                    raw=True,
                    stream=stream,
                )
            except Exception:
                if _status(driver) != accept:
                    raise
            answer = driver.connection.connection.response
            if answer.status_code != accept:
                raise_for_answer(answer, store=self._uri, key=key or None)
        return answer

    def _meta_of(self, key: str, headers: Mapping[str, str], size: int) -> ObjectMeta:
        lowered = {name.lower(): value for name, value in headers.items()}
        etag = lowered.get("etag", "").strip('"') or None
        modified: datetime = parse_time(lowered.get("last-modified"))
        kept = {n[len(_META) :]: v for n, v in lowered.items() if n.startswith(_META)}
        return ObjectMeta(
            key=key,
            size=size,
            last_modified=modified,
            etag=etag,
            version=etag,
            checksum=self._checksum(etag),
            metadata=read_metadata(kept),
        )

    def _length(self, answer: Any, key: str) -> int:
        # Python's HTTP client takes a connection that ends within the headers for their end.
        found = answer.headers.get("content-length")
        if found is None:
            raise TransientError("an answer without its length", store=self._uri, key=key)
        return int(found)

    def _etag(self, answer: Any, key: str) -> str:
        found = str(answer.headers.get("etag", "")).strip('"')
        if not found:
            raise TransientError("an answer without an ETag", store=self._uri, key=key)
        return found

    def _checksum(self, etag: str | None) -> Any:
        return etag_checksum(etag, trusted=self._recipe.etag_is_md5)


def _status(driver: Any) -> int | None:
    answer = getattr(driver.connection.connection, "response", None)
    return None if answer is None else int(answer.status_code)


def _metadata_headers(metadata: Mapping[str, str]) -> dict[str, str]:
    return {_META + name: value for name, value in metadata.items()}


def _sent_range(headers: Mapping[str, str], length: int) -> tuple[ByteRange, int]:
    """Which bytes an answer holds, and how many there are in all."""
    described = headers.get("content-range", "")
    if not described.startswith("bytes "):
        return (0, length), length
    span, _, total = described.removeprefix("bytes ").partition("/")
    first, _, last = span.partition("-")
    return (int(first), int(last) + 1), int(total)
