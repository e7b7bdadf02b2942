"""A mirror with all that belongs to it: the lock, the open store, the journal.

The same in the uploader's own process, in threads of the trainer and in the command line.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rundir_uploader.conditions import Conditions, Report
from rundir_uploader.destination import Destination, require_apart
from rundir_uploader.errors import DirectoryLockedError
from rundir_uploader.journal import Journal, journal_name
from rundir_uploader.keys import STATE_FOLDER
from rundir_uploader.lock import DirectoryLock, nested_holder, state_folder
from rundir_uploader.mirror import Mirror, Missing
from rundir_uploader.processes import ProcessIdentity
from rundir_uploader.settings import MirrorSettings, Staging
from rundir_uploader.status import UploadStatus
from stretto.object_store import ObjectStoreError, Store

if TYPE_CHECKING:
    from rundir_uploader.ranks import RankPlan
    from rundir_uploader.staging import Stager

_FIRST_SCAN = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """Everything that a session needs to know; can be pickled.

    Attributes:
        mirror: What to mirror.
        destination: Where to.
        owner: The process on whose behalf.
        strict: Whether a store that refuses at the start ends the session, rather than being
            warned about and tried again.
        check: Whether the store is asked at the start whether it is there and lets us in.
        probe: Whether a small object is written, read and deleted at the start.
        recheck: Whether the store is compared with the directory at the start, object by object.
        ranks: Which other ranks write to the directory; None for none.
        lock_patience: Seconds to wait for an earlier uploader that is leaving.
        staging: Whether copies are taken while the training loop waits.
    """

    mirror: MirrorSettings
    destination: Destination
    owner: ProcessIdentity = field(default_factory=ProcessIdentity.current)
    strict: bool = True
    check: bool = True
    probe: bool = True
    recheck: bool = False
    ranks: RankPlan | None = None
    lock_patience: float = float("inf")
    staging: Staging = field(default_factory=Staging)

    def lenient(self) -> SessionPlan:
        """Return the same plan for a session that is to begin whatever the store says."""
        return replace(self, strict=False)


class Session:
    """An open session; see `SessionPlan`.

    Args:
        plan: What to do.
        report: Where sentences about what is wrong go.

    Raises:
        DirectoryLockedError: Another uploader has the directory.
        ObjectStoreError: The store refuses, and the plan is strict.
    """

    def __init__(self, plan: SessionPlan, report: Report) -> None:
        self.plan = plan
        self._conditions = Conditions(report)
        self._stager: Stager | None = None
        self._refused = False
        directory = plan.mirror.directory
        plan.destination.require_apart(directory, plan.mirror.prefix)
        self.store = self._open_store()
        require_apart(directory, self.store, plan.mirror.prefix)
        was_new = not (directory / STATE_FOLDER).exists()
        self.lock = DirectoryLock.acquire(
            directory,
            owner=plan.owner,
            patience=plan.lock_patience,
            waiting=self._conditions.info,
        )
        try:
            destination = plan.destination.uri(plan.mirror.prefix)
            path = state_folder(directory) / journal_name(destination)
            self.journal = Journal(path, destination)
            self.mirror = Mirror(plan.mirror, self.store, self.journal, self._conditions)
            self._meet_store()
            self._stager = self._open_stager()
        except BaseException:
            self.lock.release()
            if was_new:
                shutil.rmtree(directory / STATE_FOLDER, ignore_errors=True)
            raise

    def start(self, *, scan: bool = True) -> None:
        """Begin to mirror.

        Args:
            scan: Scan at once, and look for uploaders of folders below this one.

        Raises:
            DirectoryLockedError: Another uploader has a folder below this one.
        """
        self.mirror.start(scan=False)
        if scan:
            self.mirror.scan_now(urgent=False, timeout=_FIRST_SCAN)
            self.refuse_nested()

    def refuse_nested(self) -> None:
        """Look at the folders of other uploaders that the last scan met.

        Raises:
            DirectoryLockedError: Another uploader has a folder below this one; this session is
                closed.
        """
        for folder in self.mirror.report.state_folders:
            holder = nested_holder(folder)
            if holder is not None:
                self.abandon()
                raise DirectoryLockedError(
                    f"{folder.parent}, inside {self.plan.mirror.directory}, is already being "
                    f"mirrored by {holder}. End that first, or mirror only one of the two."
                )

    def stage(self) -> None:
        """Scan, and take copies of what changed; without ``staging="blocking"`` just ask for it."""
        if self._stager is None:
            self.mirror.trigger()
        else:
            self.mirror.scan_now(urgent=False, stager=self._stager)

    def flush(self, timeout: float | None = None) -> Missing:
        """See `Mirror.flush`.

        Args:
            timeout: Seconds after which to give up.
        """
        return self.mirror.flush(timeout)

    def close(self, timeout: float | None = None) -> Missing:
        """See `Mirror.close`; lets go of everything.

        Args:
            timeout: Seconds after which to give up.
        """
        try:
            return self.mirror.close(timeout)
        finally:
            self._release()

    def abandon(self) -> None:
        """End after the transfers in flight; the journal tells the next one where to go on."""
        try:
            self.mirror.stop()
        finally:
            self._release()

    def status(self) -> UploadStatus:
        """See `Mirror.status`."""
        return self.mirror.status()

    def _open_stager(self) -> Stager | None:
        if not self.plan.staging.blocking:
            return None
        from rundir_uploader.staging import Stager

        return Stager(
            self.plan.staging,
            self.plan.mirror.root,
            lambda sentence: self._conditions.warn_once("staging", sentence),
        )

    def _release(self) -> None:
        if self._stager is not None:
            self._stager.close()
        self.journal.close()
        if self.plan.destination.is_ours:
            self.store.close()
        self.lock.release()

    def _open_store(self) -> Store:
        if self.plan.strict:
            return self.plan.destination.open(check=self.plan.check)
        try:
            return self.plan.destination.open(check=self.plan.check)
        except ObjectStoreError as error:
            self._warn(error)
            self._refused = True
            return self.plan.destination.open(check=False)

    def _meet_store(self) -> None:
        if self._refused:
            return
        try:
            if self.plan.probe:
                self.store.probe()
            self.mirror.reconcile()
            if self.plan.recheck:
                self._recheck()
        except ObjectStoreError as error:
            if self.plan.strict:
                raise
            self._warn(error)

    def _recheck(self) -> None:
        """Compare both sides, and forget what the store does not hold as it should."""
        from rundir_uploader.verify import verify

        destination = self.plan.destination.uri(self.plan.mirror.prefix)
        found = verify(self.plan.mirror, self.store, destination)
        wrong = [difference.path for difference in found.differences if difference.path]
        for path in wrong:
            self.journal.forget(path)
        if wrong:
            self._conditions.info(f"{len(wrong)} file(s) are missing or differ and are sent again")

    def _warn(self, error: ObjectStoreError) -> None:
        self._conditions.begin(
            f"store:{type(error).__name__}",
            f"THE STORE REFUSES US, nothing of this run is stored until that is mended: {error}. "
            "The run goes on and uploads are tried again; afterwards, "
            f"`rundir-uploader sync {self.plan.mirror.directory} "
            f"{self.plan.destination.uri(self.plan.mirror.prefix)}` brings what is missing.",
        )
