"""Bring one path into the store, and say how it went."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

from rundir_uploader.checked_reader import CheckedReader
from rundir_uploader.journal import Journal
from rundir_uploader.keys import POINTER_SUFFIX, object_key
from rundir_uploader.planner import bare_record, entry_at, is_gone
from rundir_uploader.pointers import is_pointer_file
from rundir_uploader.reader import (
    ChangedWhileReadError,
    GoneError,
    NotARegularFileError,
    SourceError,
    digest_of,
    edges_at,
    open_regular,
    read_whole,
    same_content,
    settled,
)
from rundir_uploader.records import WHOLE, Record, RecordKind
from rundir_uploader.task import StagedCopy, Task
from stretto.object_store import (
    BucketNotFoundError,
    CredentialsError,
    InvalidKeyError,
    NotFoundError,
    ObjectStoreError,
    Store,
    StoreFullError,
    TransientError,
)
from stretto.run_directory import FileEntry, FileKind, Fingerprint

_OF_THE_WHOLE_STORE = (BucketNotFoundError, CredentialsError, StoreFullError, TransientError)


class Result(Enum):
    """How a transfer ended."""

    SENT = auto()
    SAME = auto()
    """The store had it already; only the record changed."""
    RECORDED = auto()
    GONE = auto()
    CHANGED = auto()
    """It is being written to; try again soon."""
    OUTDATED = auto()
    """The path is something else than the scan saw; scan again."""
    FAILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a transfer ended, with what belongs to it.

    Attributes:
        result: The kind of end.
        sent: Bytes that went to the store.
        reason: Why it failed; empty otherwise.
        condition: What is wrong, for recognition, where it failed.
        final: Whether another try is unlikely to help.
        entry: What is at the path now, where that is not what the scan saw.
    """

    result: Result
    sent: int = 0
    reason: str = ""
    condition: str = ""
    final: bool = False
    entry: FileEntry | None = None


class Transfer:
    """Carries out tasks; one instance serves many threads.

    Args:
        root: The mirrored directory, its own links resolved.
        store: Where to.
        prefix: Before every key.
        journal: Where what is stored is recorded.
        progress: Called with the number of bytes after each read of a large file.
        now: Seconds since the epoch.
    """

    def __init__(
        self,
        root: str,
        store: Store,
        prefix: str,
        journal: Journal,
        *,
        progress: Callable[[int], None] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._root = root
        self._store = store
        self._prefix = prefix
        self._journal = journal
        self._progress = progress
        self._now = now

    def run(self, task: Task, *, patient: bool = False) -> Outcome:
        """Store, or record, what a task names; never raises for what a file or a store may do.

        Args:
            task: What to do.
            patient: Whether a file that changed since the scan is left alone for now.
        """
        path = task.entry.path
        try:
            return self._carry_out(task, patient=patient)
        except GoneError:
            return Outcome(result=Result.GONE)
        except NotARegularFileError:
            return Outcome(result=Result.OUTDATED)
        except ChangedWhileReadError:
            return Outcome(result=Result.CHANGED)
        except ObjectStoreError as error:
            return _store_failed(error, path)
        except (OSError, SourceError) as error:
            return _source_failed(error, path)
        except Exception as error:  # a back end's bug must not end the run
            return _failed(f"{type(error).__name__}: {error}", f"bug:{type(error).__name__}")

    def _carry_out(self, task: Task, *, patient: bool) -> Outcome:
        if task.copy is not None:
            return self._send_copy(task.entry, task.copy)
        if task.entry.kind is FileKind.FILE:
            return self._send_file(task.entry, patient=patient)
        if task.entry.kind is FileKind.SYMLINK:
            return self._send_link(task.entry, task.target)
        return self._record_only(task.entry)

    def _send_file(self, entry: FileEntry, *, patient: bool) -> Outcome:
        descriptor, found = open_regular(self._root, entry.path, entry.fingerprint)
        try:
            before = settled(descriptor, found)
            if before != entry.fingerprint:
                if is_pointer_file(entry.path):
                    return Outcome(result=Result.OUTDATED)
                entry = replace(entry, fingerprint=before)
                if patient:
                    return Outcome(result=Result.CHANGED, entry=entry)
            return self._send_version(entry, descriptor, before)
        finally:
            os.close(descriptor)

    def _send_copy(self, entry: FileEntry, copy: StagedCopy) -> Outcome:
        descriptor = os.open(copy.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self._send_version(entry, descriptor, Fingerprint.of(os.fstat(descriptor)))
        finally:
            os.close(descriptor)

    def _send_version(self, entry: FileEntry, descriptor: int, before: Fingerprint) -> Outcome:
        known = self._journal.records.get(entry.path)
        if known is not None and known.kind is RecordKind.FILE and known.deleted_at is None:
            if known.fingerprint == entry.fingerprint:
                return Outcome(result=Result.SAME)
        else:
            self._remove_other_object(known, RecordKind.FILE)
        if before.size <= WHOLE:
            return self._send_small(entry, descriptor, before, known)
        return self._send_large(entry, descriptor, before, known)

    def _send_small(
        self, entry: FileEntry, descriptor: int, before: Fingerprint, known: Record | None
    ) -> Outcome:
        data = read_whole(descriptor, before)
        digest = hashlib.sha256(data).hexdigest()
        same = _holds_content(known, len(data), digest)
        if not same:
            self._put(entry.path, data)
        self._stored(entry, digest)
        return Outcome(result=Result.SAME) if same else Outcome(result=Result.SENT, sent=len(data))

    def _send_large(
        self, entry: FileEntry, descriptor: int, before: Fingerprint, known: Record | None
    ) -> Outcome:
        edges = edges_at(descriptor, before.size)
        reader = CheckedReader(descriptor, before, progress=self._progress)
        if (
            known is not None
            and known.size == before.size
            and (known.head_crc, known.tail_crc) == edges
            and _holds_content(known, before.size, digest_of(descriptor, before.size))
        ):
            # Touched, not changed: as good as sent, if it still stands still.
            if not same_content(before, descriptor):
                raise ChangedWhileReadError
            self._stored(entry, known.sha256, edges)
            return Outcome(result=Result.SAME)
        try:
            self._put(entry.path, reader)
        except Exception:
            if reader.failure is not None:
                raise reader.failure from None
            raise
        self._stored(entry, reader.hexdigest(), edges)
        return Outcome(result=Result.SENT, sent=before.size)

    def _send_link(self, entry: FileEntry, target: str | None) -> Outcome:
        """Store where a link led when it was scanned; where it leads now may not be stored."""
        if target is None:
            if is_gone(self._root, entry.path):
                return Outcome(result=Result.GONE)
            return self._record_only(entry)
        goal = self._journal.records.get(target)
        if goal is None or goal.kind is not RecordKind.FILE:
            return Outcome(result=Result.OUTDATED)
        body = object_key(self._prefix, target).encode()
        digest = hashlib.sha256(body).hexdigest()
        known = self._journal.records.get(entry.path)
        self._remove_other_object(known, RecordKind.POINTER)
        same = (
            known is not None
            and known.kind is RecordKind.POINTER
            and _holds_content(known, len(body), digest)
        )
        if not same:
            self._put(entry.path, body, pointer=True)
        self._journal.put(
            Record(
                entry.path,
                RecordKind.POINTER,
                entry.fingerprint,
                len(body),
                digest,
                0,
                0,
                entry.mode,
                entry.target,
                self._now(),
            )
        )
        return Outcome(result=Result.SAME) if same else Outcome(result=Result.SENT, sent=len(body))

    def _record_only(self, entry: FileEntry) -> Outcome:
        kind = {
            FileKind.SYMLINK: RecordKind.LINK,
            FileKind.DIRECTORY: RecordKind.EMPTY_DIRECTORY,
        }.get(entry.kind, RecordKind.SPECIAL)
        self._remove_other_object(self._journal.records.get(entry.path), kind)
        self._journal.put(bare_record(entry, kind, self._now()))
        return Outcome(result=Result.RECORDED)

    def _remove_other_object(self, known: Record | None, kind: RecordKind) -> None:
        """Remove the object of a path that was a file and is a link now, or the reverse."""
        if known is not None and known.kind.has_object and known.kind is not kind:
            self._remove(known)
            self._journal.forget(known.path)

    def _remove(self, record: Record) -> None:
        pointer = record.kind is RecordKind.POINTER
        if self._is_shared(record):
            return
        try:
            self._store.delete(object_key(self._prefix, record.path, pointer=pointer))
        except NotFoundError:
            return

    def _is_shared(self, record: Record) -> bool:
        """Whether the object of a path has the name of another path's object, and is that one's.

        A link ``l`` and a file ``l.symlink`` would have the same.
        """
        if record.kind is RecordKind.POINTER:
            return entry_at(self._root, record.path + POINTER_SUFFIX) is not None
        link = self._journal.records.get(record.path.removesuffix(POINTER_SUFFIX))
        return link is not None and link.kind is RecordKind.POINTER and link.deleted_at is None

    def _put(self, path: str, source: bytes | CheckedReader, *, pointer: bool = False) -> None:
        key = object_key(self._prefix, path, pointer=pointer)
        try:
            self._store.put(key, source)
        except InvalidKeyError:
            if not self._make_way(path):
                raise
            if isinstance(source, CheckedReader):
                source.seek(0)
            self._store.put(key, source)

    def _make_way(self, path: str) -> bool:
        """Remove kept objects of deleted files that stand in the way of a folder, or the reverse.

        Only stores that are made of real folders refuse such keys.
        """
        in_the_way = [
            record
            for other, record in self._journal.snapshot().items()
            if record.kind.has_object
            and (other.startswith(path + "/") or path.startswith(other + "/"))
            and is_gone_as_file(self._root, record)
        ]
        for record in in_the_way:
            self._remove(record)
            self._journal.forget(record.path)
        return bool(in_the_way)

    def _stored(self, entry: FileEntry, digest: str, edges: tuple[int, int] = (0, 0)) -> None:
        self._journal.put(
            Record(
                entry.path,
                RecordKind.FILE,
                entry.fingerprint,
                entry.fingerprint.size,
                digest,
                *edges,
                entry.mode,
                None,
                self._now(),
            )
        )


def is_gone_as_file(root: str, record: Record) -> bool:
    """Whether the file of a record is not there any more, be it that a folder took its path.

    Args:
        root: The mirrored directory.
        record: Of a path with an object.
    """
    try:
        status = os.lstat(f"{root}/{record.path}")
    except OSError:
        return is_gone(root, record.path)
    return stat.S_ISDIR(status.st_mode)


def _holds_content(known: Record | None, size: int, digest: str) -> bool:
    return known is not None and known.size == size and known.sha256 == digest != ""


def _failed(reason: str, condition: str, *, final: bool = False) -> Outcome:
    return Outcome(result=Result.FAILED, reason=reason, condition=condition, final=final)


def _source_failed(error: Exception, path: str) -> Outcome:
    said = error.strerror if isinstance(error, OSError) else None
    reason = f"cannot be read: {said or error}" if isinstance(error, OSError) else str(error)
    return _failed(reason, f"source:{path}", final=True)


def _store_failed(error: ObjectStoreError, path: str) -> Outcome:
    kind = type(error).__name__
    if isinstance(error, InvalidKeyError):
        condition = f"key:{path}"
    elif isinstance(error, _OF_THE_WHOLE_STORE):
        condition = f"store:{kind}"
    else:
        condition = f"refused:{kind}"
    return _failed(f"{kind}: {error.message}", condition, final=not error.retryable)
