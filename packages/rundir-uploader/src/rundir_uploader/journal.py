"""What is stored, on the local disk: an append-only file that survives being cut anywhere.

Each line is a CRC-32 and a JSON list. The first one names the format, the writer and the
destination; the others are records (``"r"``), forgotten paths (``"x"``) and marks of manifests
that are in the store (``"m"``). A file is read up to its first line that is not whole; whatever
lies behind is cut off before anything is appended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rundir_uploader.records import Record

FORMAT = "rundir-uploader journal"
VERSION = 1
_COMPACT_FROM = 1000
_COMPACT_LATER = 20_000
_MAX_HEADER = 1 << 16
_WRITER = "writer"
_WRITER_BYTES = 6
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def journal_name(destination: str) -> str:
    """Return the name of the journal for one destination.

    Args:
        destination: Its URI, without secrets.
    """
    return f"journal-{hashlib.sha256(destination.encode()).hexdigest()[:12]}.log"


def encode_line(said: str) -> bytes:
    """Return one line of the journal.

    Args:
        said: What it says: a JSON list in ASCII.
    """
    body = said.encode("ascii")
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode_lines(data: bytes) -> Iterator[tuple[int, list[Any]]]:
    """Read lines up to the first one that is not whole.

    Args:
        data: Content of a journal, perhaps torn.

    Yields:
        The offset behind each whole line, and what it says.
    """
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        line = data[start:end]
        start = end + 1
        if len(line) < 10 or line[8:9] != b" ":
            return
        try:
            if int(line[:8], 16) != zlib.crc32(line[9:]):
                return
            row = json.loads(line[9:])
        except ValueError:
            return
        if not isinstance(row, list) or not row:
            return
        yield start, row


def read_writer(path: Path) -> str | None:
    """Return the name of the writer of a journal, without opening it; None if there is none.

    Args:
        path: The file.
    """
    try:
        with path.open("rb") as file:
            first = file.readline(_MAX_HEADER)
    except OSError:
        return None
    for _, row in decode_lines(first):
        if row[:2] == [FORMAT, VERSION] and isinstance(row[2], str):
            return row[2]
    return None


class Journal:
    """The records of one directory and one destination, in memory and on disk.

    Thread-safe. A disk that refuses to be written to costs nothing but the memory of a restart:
    the error is kept in `trouble`, and everything is written anew when the disk recovers.

    The name of the writer lies in a file of its own beside the journals, so that a directory keeps
    its name in the store though a journal may be lost.

    Args:
        path: The file; its folder exists.
        destination: URI of the destination, without secrets.

    Attributes:
        records: All known records by path; look up in it, but iterate over `snapshot`.
        writer: Name of this journal's writer in the store's manifest, made once and kept.
        writer_is_new: Whether it was made just now, so that no store can know it.
        mark: Sequence number of the last manifest that is known to be in the store; 0 for none.
        mark_token: What tells that manifest from others of the same number.
        unmarked: Paths that changed after that manifest.
        trouble: Why the file cannot be written at present; None while it can.
    """

    def __init__(self, path: Path, destination: str) -> None:
        self.path = path
        self.destination = destination
        self.records: dict[str, Record] = {}
        self.writer, self.writer_is_new = _writer_name(path.with_name(_WRITER))
        self.mark = 0
        self.mark_token = ""
        self.unmarked: set[str] = set()
        self.trouble: OSError | None = None
        self._lock = threading.Lock()
        self._descriptor = -1
        self._size = 0
        self._lines = 0
        self._unsynced = False
        self._open()

    @property
    def is_new(self) -> bool:
        """Whether nothing was known when the journal was opened, and nothing is yet."""
        return not self.records and self.mark == 0

    def put(self, record: Record) -> None:
        """Remember a record.

        Args:
            record: Of a path that is stored, or of one that only needs recording.
        """
        with self._lock:
            self.records[record.path] = record
            self.unmarked.add(record.path)
            self._append(record.to_json("r"))

    def forget(self, path: str) -> None:
        """Take back that a path is stored.

        Args:
            path: Which one; unknown paths are ignored.
        """
        with self._lock:
            if self.records.pop(path, None) is not None:
                self.unmarked.add(path)
                self._append(_encode(["x", path]))

    def snapshot(self) -> dict[str, Record]:
        """Return a copy of all records, consistent though others go on putting."""
        with self._lock:
            return self.records.copy()

    def take_unmarked(self) -> set[str]:
        """Return the paths that no manifest in the store knows yet, and start a new set."""
        with self._lock:
            taken, self.unmarked = self.unmarked, set()
            return taken

    def give_back(self, paths: set[str]) -> None:
        """Undo `take_unmarked`, when the manifest could not be written.

        Args:
            paths: What it returned.
        """
        with self._lock:
            self.unmarked |= paths

    def set_mark(self, sequence: int, token: str = "") -> None:
        """Remember that a manifest is in the store.

        The mark is followed by the records that changed while the manifest was written, so that
        a restart finds them after it.

        Args:
            sequence: Its number.
            token: What tells it from others of the same number.
        """
        with self._lock:
            self.mark, self.mark_token = sequence, token
            self._append(_encode(["m", sequence, token]))
            for path in self.unmarked:
                record = self.records.get(path)
                self._append(record.to_json("r") if record else _encode(["x", path]))

    def forget_all(self) -> None:
        """Take back everything: the store does not hold what this journal says."""
        with self._lock:
            self.records.clear()
            self.unmarked.clear()
            self.mark, self.mark_token = 0, ""
            self._rewrite()

    def sync(self) -> None:
        """Make what was put survive a power cut; does nothing if nothing was put."""
        with self._lock:
            if self.trouble is not None or self._is_mostly_old(_COMPACT_LATER):
                self._rewrite()
            if not self._unsynced or self._descriptor < 0:
                return
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:
                self.trouble = error
                return
            self._unsynced = False

    def close(self) -> None:
        """Sync and let go of the file."""
        self.sync()
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags, 0o600)
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            data = file.read()
        whole = self._replay(data)
        if whole == 0:
            self._rewrite()
            return
        os.ftruncate(self._descriptor, whole)
        os.lseek(self._descriptor, whole, os.SEEK_SET)
        self._size = whole
        if self._is_mostly_old(_COMPACT_FROM):
            self._rewrite()

    def _is_mostly_old(self, least: int) -> bool:
        return self._lines > max(least, 2 * len(self.records))

    def _replay(self, data: bytes) -> int:
        """Take in what the file says; return how many bytes are whole, 0 if it is not ours."""
        whole = 0
        for offset, row in decode_lines(data):
            if whole == 0:
                if row[:2] != [FORMAT, VERSION] or row[3:] != [self.destination]:
                    return 0
                self.writer, self.writer_is_new = row[2], False
            elif not self._replay_row(row):
                break
            whole = offset
            self._lines += 1
        return whole

    def _replay_row(self, row: list[Any]) -> bool:
        try:
            if row[0] == "r":
                record = Record.from_row(row[1:])
                self.records[record.path] = record
                self.unmarked.add(record.path)
            elif row[0] == "x":
                self.records.pop(row[1], None)
                self.unmarked.add(row[1])
            elif row[0] == "m":
                self.mark, self.mark_token = row[1], row[2] if len(row) > 2 else ""
                self.unmarked.clear()
            else:
                return False
        except (ValueError, IndexError):
            return False
        return True

    def _append(self, said: str) -> None:
        if self.trouble is not None or self._descriptor < 0:
            return
        line = encode_line(said)
        try:
            written = os.write(self._descriptor, line)
            if written != len(line):
                raise OSError(28, "the disk took only a part of a line", str(self.path))
        except OSError as error:
            self.trouble = error
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
                os.lseek(self._descriptor, self._size, os.SEEK_SET)
            return
        self._size += len(line)
        self._lines += 1
        self._unsynced = True

    def _rewrite(self) -> None:
        """Write everything that is known into a new file that takes the old one's place."""
        temporary = self.path.with_suffix(".new")
        header = encode_line(_encode([FORMAT, VERSION, self.writer, self.destination]))
        try:
            descriptor = os.open(
                temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            self.trouble = error
            return
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(header)
                file.writelines(self._all_lines())
                file.flush()
                os.fsync(descriptor)
                size = file.tell()
            temporary.replace(self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            os.close(descriptor)
            self.trouble = error
            return
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._size = size
        self._lines = 1 + len(self.records)
        self._unsynced = False
        self.trouble = None

    def _all_lines(self) -> Iterator[bytes]:
        for path, record in self.records.items():
            if path not in self.unmarked:
                yield encode_line(record.to_json("r"))
        if self.mark:
            yield encode_line(_encode(["m", self.mark, self.mark_token]))
        for path in self.unmarked:
            record = self.records.get(path)
            yield encode_line(record.to_json("r") if record else _encode(["x", path]))


def _writer_name(path: Path) -> tuple[str, bool]:
    """Return the name in a file, made if it is missing, and whether it was made now."""
    try:
        name = path.read_text().strip()
    except (OSError, ValueError):
        name = ""
    if len(name) == 2 * _WRITER_BYTES and name.isalnum():
        return name, False
    name = secrets.token_hex(_WRITER_BYTES)
    with contextlib.suppress(OSError):  # a full disk: the journal's first line has it too
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            os.write(descriptor, name.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return name, True


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot, and need not
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
