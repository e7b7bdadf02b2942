"""Scan the directory and decide what has to be done about each path."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rundir_uploader.conditions import Conditions
from rundir_uploader.journal import Journal
from rundir_uploader.keys import POINTER_SUFFIX, STATE_FOLDER, printable
from rundir_uploader.pacing import Pacing
from rundir_uploader.pointers import (
    files_beside,
    follow_link,
    is_index,
    is_pointer_file,
    pointer_file_targets,
)
from rundir_uploader.queue import UploadQueue
from rundir_uploader.reader import digest_of, edges_at, open_inside
from rundir_uploader.records import WHOLE, Record, RecordKind
from rundir_uploader.selection import Selection
from rundir_uploader.task import Task
from stretto.run_directory import FileEntry, FileKind, scan

if TYPE_CHECKING:
    from rundir_uploader.staging import Stager


@dataclass(slots=True)
class ScanReport:
    """What a scan found.

    Attributes:
        generation: Its number.
        files: Regular files and links that are mirrored.
        size: Bytes in them.
        errors: Pairs of a path that could not be looked at, and the reason.
        seconds: How long it took.
        state_folders: Folders of other uploaders below the directory.
    """

    generation: int
    files: int = 0
    size: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    seconds: float = 0.0
    state_folders: list[Path] = field(default_factory=list[Path])


@dataclass(slots=True)
class _Pass:
    """The state of one scan."""

    report: ScanReport
    urgent: bool
    monotonic: float
    wall_ns: int
    seen: set[str] = field(default_factory=set[str])
    folders: dict[str, FileEntry] = field(default_factory=dict[str, FileEntry])
    filled: set[str] = field(default_factory=set[str])
    pointers: list[tuple[FileEntry, list[str]]] = field(
        default_factory=list[tuple[FileEntry, list[str]]]
    )
    stager: Stager | None = None


class Planner:
    """Compares the directory with the journal and fills the queue.

    Args:
        root: The mirrored directory, its own links resolved.
        selection: What is mirrored.
        journal: What is stored.
        queue: What is to be stored.
        pacing: When files that have not come to rest are sent.
        conditions: Where odd paths are reported.
        clock: Monotonic seconds.
        wall_ns: Nanoseconds since the epoch.

    Attributes:
        held: Paths of growing files that are not sent yet, with the moment their growth was seen.
        gone: How many files were deleted before they were stored.
    """

    def __init__(
        self,
        root: str,
        selection: Selection,
        journal: Journal,
        queue: UploadQueue,
        *,
        pacing: Pacing,
        conditions: Conditions,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._root = root
        self._selection = selection
        self._journal = journal
        self._queue = queue
        self._pacing = pacing
        self._conditions = conditions
        self._clock = clock
        self._wall_ns = wall_ns
        self.held: dict[str, float] = {}
        self.gone = 0

    def scan(self, generation: int, *, urgent: bool, stager: Stager | None = None) -> ScanReport:
        """Look at everything once.

        Args:
            generation: Number of this scan, larger than any before.
            urgent: Whether somebody waits for what it finds: nothing is held back.
            stager: Takes a copy of each file that is to be sent; None for none.
        """
        report = ScanReport(generation)
        this = _Pass(report, urgent, self._clock(), self._wall_ns(), stager=stager)

        def leaves_out(path: str) -> bool:
            if path.endswith("/" + STATE_FOLDER):
                report.state_folders.append(Path(self._root, path))
            return self._selection.leaves_out(path)

        def on_error(error: OSError) -> None:
            name = os.fsdecode(error.filename) if error.filename else self._root
            path = os.path.relpath(name, self._root)
            report.errors.append((path, f"cannot be scanned: {error.strerror or error}"))

        try:
            for entry in scan(self._root, exclude=leaves_out, on_error=on_error):
                self._look_at(entry, this)
        except OSError as error:
            report.errors.append((".", f"cannot be scanned: {error.strerror or error}"))
            return report
        self._plan_pointers(this)
        self._record_empty_folders(this)
        self._look_for_deleted(this)
        report.seconds = self._clock() - this.monotonic
        return report

    def wants(self, task: Task) -> bool:
        """Whether a version asked for earlier is still to be sent, by what is stored now.

        Args:
            task: The version.
        """
        record = self._journal.records.get(task.entry.path)
        if record is None or record.fingerprint != task.entry.fingerprint:
            return task.urgent or not self._holds(task.entry, record)
        return False

    def _look_at(self, entry: FileEntry, this: _Pass) -> None:
        path = entry.path
        folder, slash, _ = path.rpartition("/")
        if slash:
            this.filled.add(folder)
        if entry.kind is FileKind.DIRECTORY:
            this.folders[path] = entry
            return
        if not self._selection.takes_in(path):
            return
        this.seen.add(path)
        if entry.kind is FileKind.FILE:
            this.report.files += 1
            this.report.size += entry.fingerprint.size
            if is_pointer_file(path):
                named = [] if is_index(path) else pointer_file_targets(self._root, path)
                this.pointers.append((entry, named))
            else:
                self._plan_file(entry, this)
        elif entry.kind is FileKind.SYMLINK:
            self._plan_link(entry, this)
        else:
            self._record(entry, RecordKind.SPECIAL, this)

    def _plan_file(self, entry: FileEntry, this: _Pass) -> None:
        record = self._journal.records.get(entry.path)
        if record is not None and self._is_current(record, entry, RecordKind.FILE):
            return
        if this.urgent:
            self.held.pop(entry.path, None)
            self._queue.offer(Task(entry, this.report.generation, urgent=True))
            return
        if self._holds(entry, record):
            return
        copy = this.stager.copy(entry) if this.stager is not None else None
        if copy is not None:
            entry = replace(entry, fingerprint=copy.fingerprint)
            self._queue.offer(Task(entry, this.report.generation, copy=copy))
            return
        self.held.pop(entry.path, None)
        rest = (this.wall_ns - entry.fingerprint.mtime_ns) / 1e9
        wait = self._pacing.settle - rest if 0 <= rest < self._pacing.settle else 0.0
        self._queue.offer(
            Task(entry, this.report.generation), not_before=this.monotonic + wait if wait else 0.0
        )

    def _holds(self, entry: FileEntry, record: Record | None) -> bool:
        if record is None or record.kind is not RecordKind.FILE or record.deleted_at is not None:
            return False
        now = self._clock()
        since = self.held.get(entry.path, now)
        if not self._pacing.holds(record, entry.fingerprint, now - since):
            return False
        if not self._begins_like(entry, record):
            return False
        self.held[entry.path] = since
        return True

    def _begins_like(self, entry: FileEntry, record: Record) -> bool:
        """Whether the file still begins with what is stored; of a large one, the edges tell."""
        try:
            with open_inside(self._root, entry.path, entry.fingerprint) as (descriptor, _):
                if record.size <= WHOLE:
                    return digest_of(descriptor, record.size) == record.sha256
                return edges_at(descriptor, record.size) == (record.head_crc, record.tail_crc)
        except Exception:  # whatever it is, the transfer meets it too and reports it
            return False

    def _is_current(self, record: Record, entry: FileEntry, kind: RecordKind) -> bool:
        if record.kind is not kind or record.fingerprint != entry.fingerprint:
            return False
        if record.deleted_at is not None:
            self._journal.put(record.seen(entry.fingerprint, entry.mode))
        if entry.path in self._queue:
            self._queue.discard(entry.path)  # something else was there for a while
        return True

    def _plan_link(self, entry: FileEntry, this: _Pass) -> None:
        target = follow_link(self._root, entry.path, self._selection)
        beside = entry.path + POINTER_SUFFIX
        record = self._journal.records.get(beside)
        taken = record is not None and record.deleted_at is None
        if self._selection.takes_in(beside) and entry_at(self._root, beside) is not None:
            taken = True
            self._conditions.warn_once(
                f"taken:{entry.path}",
                f"the link {printable(entry.path)} is recorded, not stored: its object would have "
                f"the name of the file {printable(beside)}",
            )
        if target.dangling:
            self._conditions.warn_once(
                f"link:{entry.path}",
                f"the link {printable(entry.path)} {target.problem}; it is recorded, not stored",
            )
        if target.path is None or taken:
            self._record(entry, RecordKind.LINK, this)
        else:
            this.report.files += 1
            this.pointers.append((entry, [target.path]))

    def _plan_pointers(self, this: _Pass) -> None:
        pointers = {entry.path for entry, _ in this.pointers}
        for entry, listed in this.pointers:
            kind, targets = RecordKind.POINTER, listed
            if entry.kind is FileKind.FILE:
                kind = RecordKind.FILE
                beside = is_index(entry.path)
                if beside:
                    targets = files_beside(self._root, entry.path, self._selection)
                # No pointer waits for one that may wait for it.
                targets = [
                    path
                    for path in targets
                    if path not in pointers or (is_index(path) and not beside)
                ]
            record = self._journal.records.get(entry.path)
            if record is not None and self._is_current(record, entry, kind):
                continue
            self._send_first(targets, this)
            target = targets[0] if kind is RecordKind.POINTER else None
            task = Task(entry, this.report.generation, urgent=this.urgent, target=target)
            self._queue.offer(task, waits_for=targets)

    def _send_first(self, targets: Iterable[str], this: _Pass) -> None:
        """Queue what a pointer points to, as it is now.

        Whatever was there before the pointer is looked at after it, so nothing is overlooked that
        appeared, or grew, since the scan came by.
        """
        for path in targets:
            entry = entry_at(self._root, path)
            record = self._journal.records.get(path)
            if entry is None or (
                record is not None and self._is_current(record, entry, RecordKind.FILE)
            ):
                continue
            held = self.held.pop(path, None) is not None
            urgent = this.urgent or held
            self._queue.offer(Task(entry, this.report.generation, urgent=urgent))

    def _record_empty_folders(self, this: _Pass) -> None:
        for path, entry in this.folders.items():
            if path not in this.filled:
                this.seen.add(path)
                self._record(entry, RecordKind.EMPTY_DIRECTORY, this)
                continue
            record = self._journal.records.get(path)
            if path in self._queue or (record is not None and record.kind.has_object):
                self._queue.offer(Task(entry, this.report.generation, urgent=this.urgent))

    def _record(self, entry: FileEntry, kind: RecordKind, this: _Pass) -> None:
        """Record a path that has no object; one that had, or is to have, goes through the queue."""
        record = self._journal.records.get(entry.path)
        if entry.path in self._queue or (record is not None and record.kind.has_object):
            self._queue.offer(Task(entry, this.report.generation, urgent=this.urgent))
        elif record is None or not _says_the_same(record, entry, kind):
            self._journal.put(bare_record(entry, kind, self._wall_ns() / 1e9))

    def _look_for_deleted(self, this: _Pass) -> None:
        for path, record in self._journal.snapshot().items():
            if record.deleted_at is not None or path in this.seen:
                continue
            if record.kind is RecordKind.EMPTY_DIRECTORY:
                self._journal.forget(path)
            elif is_gone(self._root, path):
                if record.kind.has_object:
                    self._journal.put(record.deleted(self._wall_ns() / 1e9))
                else:
                    self._journal.forget(path)
        for path in self._queue.paths():
            if path not in this.seen and path not in this.folders and is_gone(self._root, path):
                self.gone += self._queue.discard(path)
        for path in self.held.copy().keys() - this.seen:
            self.held.pop(path, None)


def is_gone(root: str, path: str) -> bool:
    """Whether there is nothing at a path, as far as can be told.

    Args:
        root: The mirrored directory.
        path: Relative path.
    """
    try:
        os.lstat(f"{root}/{path}")
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def entry_at(root: str, path: str) -> FileEntry | None:
    """Look at one regular file; None where there is none.

    Args:
        root: The mirrored directory.
        path: Relative path.
    """
    from stat import S_ISREG

    from stretto.run_directory import Fingerprint

    try:
        status = os.lstat(f"{root}/{path}")
    except OSError:
        return None
    if not S_ISREG(status.st_mode):
        return None
    return FileEntry(path, FileKind.FILE, Fingerprint.of(status), None, status.st_mode)


def bare_record(entry: FileEntry, kind: RecordKind, when: float) -> Record:
    """Return the record of a path that has no object.

    Args:
        entry: What the scan saw.
        kind: What it is.
        when: Seconds since the epoch.
    """
    return Record(entry.path, kind, entry.fingerprint, 0, "", 0, 0, entry.mode, entry.target, when)


def _says_the_same(record: Record, entry: FileEntry, kind: RecordKind) -> bool:
    """Whether a record of a path without object would be the same if it were made anew.

    Times are left out: an empty folder's change with every temporary file in it.
    """
    return (record.kind, record.mode, record.target, record.deleted_at) == (
        kind,
        entry.mode,
        entry.target,
        None,
    )
