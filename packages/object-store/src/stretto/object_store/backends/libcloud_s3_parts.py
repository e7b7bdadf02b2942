"""A multipart upload to S3 over any way of sending requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from stretto.object_store.backends.s3_xml import child_text, error_code
from stretto.object_store.backends.service_errors import service_error
from stretto.object_store.errors import ObjectStoreError, TransientError
from stretto.object_store.retry import RetryPolicy, call_with_retry

PART_POLICY = RetryPolicy(attempts=5, deadline=120.0)


class PartsUpload:
    """Sends parts one after another, each repeated by itself; aborted if it does not end well.

    Args:
        send: Sends a request; see `LibcloudS3Store.send`.
        key: Where to.
        store: URI of the store, for errors.
    """

    def __init__(self, send: Callable[..., Any], key: str, *, store: str) -> None:
        self._send = send
        self._key = key
        self._store = store

    def run(
        self, parts: Iterable[bytes], headers: Mapping[str, str], conditions: Mapping[str, str]
    ) -> str | None:
        """Upload all parts and make them an object.

        Args:
            parts: All but the last at least 5 MiB.
            headers: Content type and metadata.
            conditions: ``If-Match`` or ``If-None-Match``, judged when the object is made.

        Returns:
            The ETag, without quotes.
        """
        answer = self._send("POST", self._key, params={"uploads": ""}, headers=headers)
        upload_id = self._text(answer.content, "UploadId")
        try:
            done = [
                self._put_part(upload_id, number, part)
                for number, part in enumerate(parts, start=1)
            ]
            return self._complete(upload_id, done, conditions)
        except BaseException:
            with contextlib.suppress(ObjectStoreError):
                self._send("DELETE", self._key, params={"uploadId": upload_id})
            raise

    def _put_part(self, upload_id: str, number: int, data: bytes) -> tuple[int, str]:
        params = {"partNumber": str(number), "uploadId": upload_id}

        def send() -> str:
            answer = self._send("PUT", self._key, params=params, data=data)
            etag = str(answer.headers.get("etag", ""))
            if not etag:
                raise TransientError("an answer without an ETag", store=self._store, key=self._key)
            return etag

        return number, call_with_retry(send, PART_POLICY)

    def _complete(
        self, upload_id: str, done: list[tuple[int, str]], conditions: Mapping[str, str]
    ) -> str | None:
        root = ElementTree.Element("CompleteMultipartUpload")
        for number, etag in done:
            part = ElementTree.SubElement(root, "Part")
            ElementTree.SubElement(part, "PartNumber").text = str(number)
            ElementTree.SubElement(part, "ETag").text = etag
        answer = self._send(
            "POST",
            self._key,
            params={"uploadId": upload_id},
            data=ElementTree.tostring(root),
            headers=conditions,
        )
        code = error_code(answer.content)  # a completion can fail after its 200
        if code:
            raise service_error(500, code, store=self._store, key=self._key)
        return self._text(answer.content, "ETag").strip('"')

    def _text(self, body: bytes, name: str) -> str:
        try:
            found = child_text(ElementTree.fromstring(body), name)
        except ElementTree.ParseError:
            found = None
        if not found:
            raise TransientError(f"an answer without {name}", store=self._store, key=self._key)
        return found
