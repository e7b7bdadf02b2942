"""What is stored, said in the store itself, so that another machine can tell and restore.

Under ``<prefix>/.rundir-uploader/<writer>/`` lie a ``head.json``, a snapshot and a few deltas.
The head names the others and is replaced last, so whoever reads it sees one consistent state. Each
row is a record in the form of the journal, or ``["x", path]`` for one that is to be forgotten.
Everything is written after what it describes.
"""

from __future__ import annotations

import gzip
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from rundir_uploader.journal import Journal
from rundir_uploader.keys import STATE_FOLDER, join_prefix, object_key
from rundir_uploader.manifest_head import ManifestHead
from rundir_uploader.processes import host_name
from rundir_uploader.records import Record, RecordKind
from stretto.object_store import NotFoundError, Store
from stretto.object_store.errors import CorruptedError

MAX_DELTAS = 16
HEAD = "head.json"
_SMALL = 64
_READ_ATTEMPTS = 5
_ANCESTORS = 32
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def encode_rows(rows: Iterable[str]) -> bytes:
    """Return the content of a snapshot or delta.

    Args:
        rows: Each a JSON list, ``["r", *record]`` or ``["x", path]``.
    """
    text = "".join(f"{row}\n" for row in rows)
    return gzip.compress(text.encode("ascii"), compresslevel=3, mtime=0)


def decode_rows(data: bytes) -> list[list[Any]]:
    """Read the content of a snapshot or delta.

    Args:
        data: What `encode_rows` gave.

    Raises:
        CorruptedError: It is something else.
    """
    try:
        lines = gzip.decompress(data).decode("ascii").splitlines()
        return [json.loads(line) for line in lines]
    except (OSError, EOFError, ValueError) as error:
        raise CorruptedError(f"a manifest cannot be read: {error}") from error


def _folder(prefix: str, writer: str) -> str:
    return join_prefix(prefix, f"{STATE_FOLDER}/{writer}")


def read_head(store: Store, prefix: str, writer: str) -> ManifestHead | None:
    """Read the head of one writer; None if it never wrote one.

    Args:
        store: Where.
        prefix: What is before every key.
        writer: Which one.

    Raises:
        ObjectStoreError: The store refuses, or the head is damaged.
    """
    key = f"{_folder(prefix, writer)}/{HEAD}"
    try:
        with store.get(key) as found:
            data = found.read()
    except NotFoundError as error:
        if type(error) is NotFoundError:
            return None
        raise
    return ManifestHead.decode(data, where=store.uri(key))


def find_writers(store: Store, prefix: str) -> list[str]:
    """Return the names of all writers under a prefix.

    Args:
        store: Where.
        prefix: What is before every key.
    """
    folder = join_prefix(prefix, STATE_FOLDER)
    ending = f"/{HEAD}"
    return sorted(
        meta.key[len(folder) + 1 : -len(ending)]
        for meta in store.list(folder)
        if meta.key.endswith(ending)
    )


def read_records(store: Store, prefix: str, head: ManifestHead) -> dict[str, Record]:
    """Read all records that a head names.

    Args:
        store: Where.
        prefix: What is before every key.
        head: From `read_head`.

    Raises:
        ObjectStoreError: The store refuses, or a part is damaged.
    """
    records: dict[str, Record] = {}
    names = [head.snapshot, *head.deltas] if head.snapshot else list(head.deltas)
    for name in names:
        with store.get(f"{_folder(prefix, head.writer)}/{name}") as found:
            rows = decode_rows(found.read())
        for row in rows:
            if row[0] == "r":
                record = Record.from_row(row[1:])
                records[record.path] = record
            else:
                records.pop(row[1], None)
    return records


@dataclass(slots=True)
class Merged:
    """What all writers under a prefix say together.

    Attributes:
        heads: One for each writer.
        records: By path, the newest where several know one.
        keys: The same by key, for records with an object.
        writers: By path, whose record that is.
    """

    heads: list[ManifestHead] = field(default_factory=list[ManifestHead])
    records: dict[str, Record] = field(default_factory=dict[str, Record])
    keys: dict[str, Record] = field(default_factory=dict[str, Record])
    writers: dict[str, str] = field(default_factory=dict[str, str])


def read_merged(store: Store, prefix: str) -> Merged:
    """Read what all writers say.

    Args:
        store: Where.
        prefix: What is before every key.

    Raises:
        ObjectStoreError: The store refuses, or a part is damaged.
    """
    merged = Merged()
    for writer in find_writers(store, prefix):
        head, records = _read_writer(store, prefix, writer)
        if head is None:
            continue
        merged.heads.append(head)
        for path, record in records.items():
            known = merged.records.get(path)
            if known is None or known.stored_at <= record.stored_at:
                merged.records[path] = record
                merged.writers[path] = writer
    for record in merged.records.values():
        if record.kind.has_object:
            pointer = record.kind is RecordKind.POINTER
            merged.keys[object_key(prefix, record.path, pointer=pointer)] = record
    return merged


def _read_writer(
    store: Store, prefix: str, writer: str
) -> tuple[ManifestHead | None, dict[str, Record]]:
    for attempt in range(_READ_ATTEMPTS):
        head = read_head(store, prefix, writer)
        if head is None:
            break
        try:
            return head, read_records(store, prefix, head)
        except NotFoundError:  # replaced since the head was read
            if attempt == _READ_ATTEMPTS - 1:
                raise
    return None, {}


class ManifestWriter:
    """Writes the manifest of one journal.

    Args:
        store: Where.
        prefix: What is before every key.
        journal: What is stored.
        now: Seconds since the epoch.

    Attributes:
        sent: Bytes of manifests that went to the store.
    """

    def __init__(
        self, store: Store, prefix: str, journal: Journal, *, now: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._journal = journal
        self._now = now
        self._lock = threading.Lock()
        self._head: ManifestHead | None = None
        self._replaced: ManifestHead | None = None
        self._since_snapshot: set[str] | None = None
        self._snapshot_rows = 0
        self.sent = 0

    @property
    def is_known(self) -> bool:
        """Whether the manifest in the store has been looked at."""
        return self._head is not None

    def open(self) -> bool:
        """Look at the manifest in the store.

        Returns:
            Whether the store can still hold what the journal says. False after somebody emptied
            it, or where the same name stands for another store now.

        Raises:
            ObjectStoreError: The store refuses.
        """
        with self._lock:
            if self._head is not None:
                return True
            head = None
            if not (self._journal.is_new and self._journal.writer_is_new):
                head = read_head(self._store, self._prefix, self._journal.writer)
            if head is None:
                self._head = ManifestHead(writer=self._journal.writer, sequence=0)
                return self._journal.mark == 0
            if not self._knows(head):
                # Nothing in it is built upon: what it names is replaced as a whole.
                self._replaced = head
                self._head = replace(head, snapshot=None, deltas=())
                return False
            if head.sequence > self._journal.mark:
                self._take_back(head)
            self._head = head
            return True

    def _knows(self, head: ManifestHead) -> bool:
        """Whether a manifest is the one that the journal remembers, or was built upon that one.

        Numbers alone do not tell: the store may have been put back to an earlier state, or be
        another one under the same name, and count from there.
        """
        mark, token = self._journal.mark, self._journal.mark_token
        return mark == 0 or (
            head.token == token if head.sequence == mark else token in head.ancestors
        )

    def _take_back(self, head: ManifestHead) -> None:
        """Learn from the manifest what the journal lost, in a power cut for instance."""
        for path, record in read_records(self._store, self._prefix, head).items():
            known = self._journal.records.get(path)
            if known is None or known.stored_at < record.stored_at:
                self._journal.put(record)

    def write(self, *, pending: int, finished: bool) -> bool:
        """Write what changed since the last time.

        Args:
            pending: How many paths are not stored.
            finished: Whether this is the last time, and everything is stored.

        Returns:
            Whether there was anything to write.

        Raises:
            ObjectStoreError: The store refuses; everything is written the next time.
        """
        self.open()
        with self._lock:
            head = cast("ManifestHead", self._head)
            paths = self._journal.take_unmarked()
            if not paths and head.sequence and (head.finished, head.pending) == (finished, pending):
                return False
            if not paths and head.sequence and not finished and not head.finished:
                return False  # only a counter changed: not worth two requests
            try:
                self._head = self._write(head, paths, pending=pending, finished=finished)
            except BaseException:
                self._journal.give_back(paths)
                self._since_snapshot = None
                raise
            self._journal.set_mark(self._head.sequence, self._head.token)
            old, self._replaced = self._replaced or head, None
            self._remove_obsolete(old, self._head)
            return True

    def _write(
        self, head: ManifestHead, paths: set[str], *, pending: int, finished: bool
    ) -> ManifestHead:
        records = self._journal.snapshot()
        sequence = head.sequence + 1
        snapshot, deltas = head.snapshot, head.deltas
        if self._since_snapshot is not None:
            self._since_snapshot |= paths
        changed = self._since_snapshot
        many = changed is None or len(changed) > max(_SMALL, self._snapshot_rows // 2)
        if snapshot is None or (many and (changed is not None or len(deltas) >= MAX_DELTAS)):
            snapshot, deltas = f"snapshot-{sequence}.jsonl.gz", ()
            self._put(snapshot, [record.to_json("r") for record in records.values()])
            self._since_snapshot, self._snapshot_rows = set(), len(records)
        elif paths:
            name = f"delta-{sequence}.jsonl.gz"
            if changed is not None and len(deltas) >= MAX_DELTAS:
                paths, deltas = changed, ()
            self._put(name, _rows(paths, records))
            deltas = (*deltas, name)
        with_object = [r for r in records.values() if r.kind.has_object and r.deleted_at is None]
        new = replace(
            head,
            sequence=sequence,
            token=secrets.token_hex(8),
            ancestors=(head.token, *head.ancestors)[:_ANCESTORS] if head.token else (),
            snapshot=snapshot,
            deltas=deltas,
            host=host_name(),
            updated_at=self._now(),
            finished=finished,
            pending=pending,
            files=len(with_object),
            size=sum(record.size for record in with_object),
        )
        data = new.encode()
        self._store.put(f"{_folder(self._prefix, new.writer)}/{HEAD}", data)
        self.sent += len(data)
        return new

    def _put(self, name: str, rows: list[str]) -> None:
        data = encode_rows(rows)
        self._store.put(f"{_folder(self._prefix, self._journal.writer)}/{name}", data)
        self.sent += len(data)

    def _remove_obsolete(self, old: ManifestHead, new: ManifestHead) -> None:
        obsolete = {old.snapshot, *old.deltas} - {new.snapshot, *new.deltas}
        for name in obsolete:
            if name is None:
                continue
            try:
                self._store.delete(f"{_folder(self._prefix, new.writer)}/{name}")
            except Exception:  # a left-over does no harm
                return


def _rows(paths: Iterable[str], records: Mapping[str, Record]) -> list[str]:
    return [
        record.to_json("r") if (record := records.get(path)) else _encode(["x", path])
        for path in sorted(paths)
    ]
