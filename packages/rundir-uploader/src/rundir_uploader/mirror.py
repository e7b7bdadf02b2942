"""The machine itself, in the threads of whatever process runs it.

One thread scans, several transfer, one keeps house (journal to disk, manifest to the store). All
of them are daemons of a `Mirror`, which knows nothing of trainers and processes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rundir_uploader.conditions import Conditions
from rundir_uploader.journal import Journal
from rundir_uploader.keys import STATE_FOLDER
from rundir_uploader.manifest import ManifestWriter
from rundir_uploader.outcomes import Outcomes
from rundir_uploader.planner import Planner, ScanReport
from rundir_uploader.queue import UploadQueue
from rundir_uploader.reconcile import adopt, forget_missing
from rundir_uploader.rounds import Round, Rounds
from rundir_uploader.settings import MirrorSettings
from rundir_uploader.status import UploadStatus
from rundir_uploader.transfer import Transfer
from stretto.object_store import ObjectStoreError, Store

if TYPE_CHECKING:
    from rundir_uploader.staging import Stager

Missing = list[tuple[str, str]]
"""Pairs of a path that is not stored, and the reason."""

_HOUSEKEEPING = 1.0
_MANIFEST_EVERY = 10.0
_POLL = 0.05
_SECOND_CHANCE = 10.0
_LAST_LOOKS = 3


class Mirror:
    """Mirrors one directory to one store until it is closed.

    Args:
        settings: What to do.
        store: Where to; stays the caller's.
        journal: What is stored; stays the caller's.
        conditions: Where what is wrong is reported.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        store: Store,
        journal: Journal,
        conditions: Conditions,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._store = store
        self._journal = journal
        self._conditions = conditions
        self._clock = clock
        self._queue = UploadQueue(clock=clock)
        self._planner = Planner(
            settings.root,
            settings.selection,
            journal,
            self._queue,
            pacing=settings.pacing,
            conditions=conditions,
            clock=clock,
        )
        self._rounds = Rounds()
        self._gave_up = False
        self._outcomes = Outcomes(
            self._queue,
            self._planner,
            conditions,
            settle=settings.pacing.settle,
            rescan=self.trigger,
            clock=clock,
        )
        self._transfer = Transfer(
            settings.root, store, settings.prefix, journal, progress=self._outcomes.on_progress
        )
        self._manifest = ManifestWriter(store, settings.prefix, journal)
        self._report = ScanReport(0)
        self._state: str = "running"
        self._threads: list[threading.Thread] = []

    @property
    def report(self) -> ScanReport:
        """The last scan."""
        return self._report

    def reconcile(self) -> bool:
        """Find out whether the store still holds what the journal says.

        One small request where both remember each other. An emptied store is listed; an empty
        journal is filled from the manifests in the store.

        Returns:
            Whether something has to be sent again.

        Raises:
            ObjectStoreError: The store refuses.
        """
        trusted = self._manifest.open()
        if self._journal.is_new:
            settings = self.settings
            adopt(settings.root, self._store, settings.prefix, self._journal)
        if trusted:
            return False
        missing = forget_missing(self._store, self.settings.prefix, self._journal)
        if missing:
            self._conditions.info(
                f"{len(missing)} file(s) were stored once and are not in the store now; "
                "they are sent again"
            )
        return bool(missing)

    def start(self, *, scan: bool = True) -> None:
        """Begin to scan at every trigger and at intervals.

        Args:
            scan: Begin with a scan.
        """
        names: list[tuple[str, Callable[[], None]]] = [("scan", self._scan_loop)]
        names += [("house", self._house_loop)]
        names += [
            (f"transfer-{index}", self._transfer_loop)
            for index in range(self.settings.num_concurrent_uploads)
        ]
        if scan:
            self.trigger()
        for name, loop in names:
            thread = threading.Thread(target=loop, name=f"rundir-uploader-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def trigger(self) -> None:
        """Ask for a scan soon; many at once are one."""
        self._rounds.ask()

    def scan_now(
        self, *, urgent: bool, timeout: float | None = None, stager: Stager | None = None
    ) -> int | None:
        """Scan, and wait for its end.

        Args:
            urgent: Whether nothing that it finds is held back.
            timeout: Seconds to wait; None for as long as it takes.
            stager: Takes copies of what is to be sent; None for none.

        Returns:
            The number of a scan that began after the call; None if it did not end in time.
        """
        number = self._rounds.ask(urgent=urgent, stager=stager)
        return number if self._rounds.wait(number, timeout) else None

    def flush(self, timeout: float | None = None) -> Missing:
        """Store everything that is on disk now.

        Waits while anything still succeeds, but not for what failed for good.

        Args:
            timeout: Seconds after which to give up; None for no limit of its own.

        Returns:
            What is not stored; empty if all is.
        """
        missing, _ = self._drain(timeout)
        if not (missing and self._conditions.holds("store:")):
            self._write_manifest(finished=False)
        return missing

    def close(self, timeout: float | None = None) -> Missing:
        """Store everything, end all threads.

        Args:
            timeout: As for `flush`.

        Returns:
            As for `flush`.
        """
        self._state = "draining"
        deadline = None if timeout is None else self._clock() + timeout
        looks = 1
        before = self._outcomes.done
        missing, ended = self._drain(timeout)
        # What was sent may have changed while it was under way, so look again.
        while ended and not missing and self._outcomes.done > before and looks < _LAST_LOOKS:
            looks += 1
            before = self._outcomes.done
            left = None if deadline is None else max(0.0, deadline - self._clock())
            missing, ended = self._drain(left)
        self.stop()  # so that the manifest knows of every transfer
        if not (missing and self._conditions.holds("store:")):
            missing += self.finish(not missing)
        self._state = "incomplete" if missing else "finished"
        return missing

    def stop(self) -> None:
        """End all threads after the transfers in flight; what is not stored stays so."""
        self._rounds.stop()
        self._queue.stop()
        for thread in self._threads:
            thread.join()
        self._journal.sync()
        self._state = "stopped"

    def finish(self, complete: bool) -> Missing:
        """Write the manifest for the last time.

        Args:
            complete: Whether everything is stored.

        Returns:
            What is wrong with it, in the form of a missing file; empty if nothing is.
        """
        self._journal.sync()
        problem = self._write_manifest(finished=complete)
        self._state = "finished" if complete and not problem else "incomplete"
        return [(STATE_FOLDER, f"the manifest: {problem}")] if problem else []

    def progress(self) -> tuple[int, int]:
        """Return how many files are done, and how many there are; costs nothing."""
        total = self._report.files
        return max(0, total - len(self._queue)), total

    def status(self) -> UploadStatus:
        """Return how things are; what counts as stored survives a power cut."""
        self._journal.sync()
        pending = self._queue.pending()
        now = self._clock()
        held = self._planner.held.copy()
        objects = [
            record
            for record in self._journal.snapshot().values()
            if record.kind.has_object and record.deleted_at is None
        ]
        ages = [item.age for item in pending] + [now - since for since in held.values()]
        return UploadStatus(
            state=self._state,
            stored=len(objects),
            stored_bytes=sum(record.size for record in objects),
            pending=len(pending) + len(held),
            pending_bytes=sum(item.size for item in pending),
            in_flight=self._queue.running,
            failed=tuple((item.path, item.reason) for item in pending if item.failed),
            retries=self._outcomes.failures,
            sent_bytes=self._outcomes.sent + self._manifest.sent,
            gone=self._planner.gone,
            lag=max(ages, default=0.0),
            scans=self._rounds.ended,
            scan_seconds=self._report.seconds,
            problem=str(self._journal.trouble or ""),
        )

    def _drain(self, timeout: float | None) -> tuple[Missing, bool]:
        """Store what is there; return what is missing, and whether there was a scan at all."""
        began = self._clock()
        deadline = None if timeout is None else began + timeout
        left: Callable[[], float | None] = lambda: (  # noqa: E731
            None if deadline is None else max(0.0, deadline - self._clock())
        )
        if not self._manifest.is_known:
            with contextlib.suppress(ObjectStoreError):  # the transfers meet it too, and report it
                self.reconcile()
        number = self.scan_now(urgent=True, timeout=left())
        if number is None:
            return [(".", "the scan did not end in time")], False
        why = ""
        counted, limit = began, self.settings.no_progress_timeout
        if self._gave_up:
            # Waited for in vain before: not the whole time again, but a store may have come back.
            counted -= max(0.0, limit - _SECOND_CHANCE)
        while self._queue.unsettled(number, began):
            now = self._clock()
            if deadline is not None and now >= deadline:
                why = f"not stored within {timeout:g} s"
            elif now - max(counted, self._outcomes.last_success) >= limit:
                why = f"nothing could be stored for {limit:g} s"
                self._gave_up = True
            if why or self._rounds.stopped:
                break
            self._queue.wait(_POLL)
        missing = [
            (item.path, f"{item.reason}; {why}" if why else item.reason)
            for item in self._queue.pending(number)
        ]
        missing += self._report.errors
        self._journal.sync()
        return missing, True

    def _scan_loop(self) -> None:
        while True:
            interval = max(self.settings.scan_interval, 100 * self._report.seconds)
            found = self._rounds.begin(interval)
            if found is None:
                return
            self._report = self._scan(found)
            self._rounds.end()

    def _scan(self, found: Round) -> ScanReport:
        try:
            return self._planner.scan(found.number, urgent=found.urgent, stager=found.stager)
        except Exception as error:  # a scan that fails must not be the last one
            reason = f"cannot be scanned: {type(error).__name__}: {error}"
            self._conditions.begin("scan", f"{self.settings.directory} {reason}")
            return ScanReport(found.number, errors=[(".", reason)])

    def _transfer_loop(self) -> None:
        while self._transfer_next():
            pass

    def _transfer_next(self) -> bool:
        """Carry out one task; in a function of its own, so that nothing of it is kept after."""
        task = self._queue.take()
        if task is None:
            return False
        rested = self._queue.age(task.entry.path) >= self.settings.pacing.max_settle
        outcome = self._transfer.run(task, patient=not task.urgent and not rested)
        self._outcomes.settle(task, outcome)
        return True

    def _house_loop(self) -> None:
        due = self._clock() + _MANIFEST_EVERY
        while not self._rounds.pause(_HOUSEKEEPING):
            self._journal.sync()
            if self._journal.trouble is not None:
                self._conditions.begin(
                    "journal",
                    f"the journal cannot be written ({self._journal.trouble}); it is kept in "
                    "memory, and a restart would have to compare more",
                )
            else:
                self._conditions.end("journal", "the journal can be written again")
            if self._clock() >= due and not self._conditions.holds("store:"):
                self._write_manifest(finished=False)
                due = self._clock() + _MANIFEST_EVERY

    def _write_manifest(self, *, finished: bool) -> str:
        """Write the manifest; return what is wrong, empty if nothing is."""
        try:
            if not self._manifest.is_known and self.reconcile():
                self.trigger()
                return "the store had lost files, which are being sent again"
            self._manifest.write(pending=len(self._queue), finished=finished)
        except Exception as error:  # a back end's bug must not end the run
            problem = f"{type(error).__name__}: {error}"
            self._conditions.begin("manifest", f"the manifest could not be stored: {problem}")
            return problem
        self._conditions.end("manifest", "the manifest can be stored again")
        return ""
