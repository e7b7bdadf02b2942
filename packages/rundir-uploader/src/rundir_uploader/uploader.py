"""The mirror of a directory for any program that writes files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from rundir_uploader.conditions import Report
from rundir_uploader.destination import Destination, StoreProvider, require_apart
from rundir_uploader.errors import (
    IncompleteUploadError,
    UploaderError,
    UploaderSettingsError,
    WorkerError,
)
from rundir_uploader.keys import object_key
from rundir_uploader.mirror import Missing
from rundir_uploader.pacing import Pacing
from rundir_uploader.pointers import follow_link
from rundir_uploader.process import WorkerProcess
from rundir_uploader.selection import Selection
from rundir_uploader.session import Session, SessionPlan
from rundir_uploader.settings import MirrorSettings, Staging, check_directory, check_prefix
from rundir_uploader.status import UploadStatus
from stretto.object_store import Store

_logger = logging.getLogger("rundir_uploader")
_START_PATIENCE = 120.0
_LOCK_PATIENCE = 600.0


class Uploader:
    """Mirrors a directory to a store, while others write to it.

    Example:
        >>> with Uploader("runs/mine", "s3://bucket/mine") as uploader:  # doctest: +SKIP
        ...     train()
        ...     uploader.trigger()  # costs nothing; what changed goes up in the background

    Leaving the block stores everything that is on disk, or raises IncompleteUploadError with the
    list of what is missing.

    Args:
        directory: What to mirror; must exist.
        store_or_url: Where to: a URL, a local path, a `Store`, or the hyperparameters of a
            provider.
        prefix: Before every key in the store.
        use_procs: Upload from a process of its own, which outlives this one if it is killed;
            False for threads.
        num_concurrent_uploads: How many transfers run at once, at least 1.
        exclude: Globs of what is not mirrored, besides ``*.tmp``.
        include: Globs of what is mirrored; empty for everything.
        hidden: Whether names that begin with a dot are mirrored.
        pacing: When files that have not come to rest are sent.
        scan_interval: Seconds between scans that nobody asked for.
        no_progress_timeout: Seconds without one success after which `flush` and `close` give up.
        staging: ``"background"`` reads files from where they lie; ``"blocking"`` lets `trigger`
            copy what changed before it returns.
        upload_staging_folder: Where such copies are kept. Default: a private folder in the
            directory.
        store_options: What `stretto.object_store.open_store` takes besides a URL.

    Raises:
        FileNotFoundError: There is no such directory.
        UploaderSettingsError: An argument cannot be used, or the store cannot cross into another
            process and ``use_procs`` is on.
        ObjectStoreError: The store is not there or does not let us in.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        store_or_url: str | os.PathLike[str] | Store | StoreProvider,
        *,
        prefix: str = "",
        use_procs: bool = True,
        num_concurrent_uploads: int = 4,
        exclude: Iterable[str] = (),
        include: Iterable[str] = (),
        hidden: bool = True,
        pacing: Pacing | None = None,
        scan_interval: float = 30.0,
        no_progress_timeout: float = 600.0,
        staging: Literal["background", "blocking"] = "background",
        upload_staging_folder: str | os.PathLike[str] | None = None,
        store_options: Mapping[str, Any] | None = None,
    ) -> None:
        plan = SessionPlan(
            mirror=MirrorSettings(
                directory=check_directory(directory),
                prefix=check_prefix(prefix),
                selection=Selection(exclude=tuple(exclude), include=tuple(include), hidden=hidden),
                num_concurrent_uploads=num_concurrent_uploads,
                pacing=pacing or Pacing(),
                scan_interval=scan_interval,
                no_progress_timeout=no_progress_timeout,
            ),
            destination=Destination.of(store_or_url, store_options),
            staging=Staging.of(staging, upload_staging_folder),
        )
        if use_procs:
            plan.destination.require_process_boundary()
        plan.destination.require_apart(plan.mirror.directory, plan.mirror.prefix)
        store = plan.destination.open()
        try:
            require_apart(plan.mirror.directory, store, plan.mirror.prefix)
        finally:
            if plan.destination.is_ours:
                store.close()
        self._setup(plan, use_procs=use_procs)

    @classmethod
    def from_plan(
        cls,
        plan: SessionPlan,
        *,
        use_procs: bool,
        report: Report | None = None,
    ) -> Self:
        """Make an uploader from a plan, without asking the store anything.

        Args:
            plan: What to do.
            use_procs: As for the class.
            report: Where sentences about what is wrong go; None for the log.
        """
        made = cls.__new__(cls)
        made._setup(plan, use_procs=use_procs, report=report)
        return made

    def _setup(self, plan: SessionPlan, *, use_procs: bool, report: Report | None = None) -> None:
        self._plan = plan
        self._use_procs = use_procs
        self._report = report or _log
        self._pid = os.getpid()
        self._process: WorkerProcess | None = None
        self._session: Session | None = None
        self._closed = False
        self._last_status = UploadStatus()

    @property
    def directory(self) -> Path:
        """What is mirrored."""
        return self._plan.mirror.directory

    @property
    def url(self) -> str:
        """Where to, the prefix included; ``rundir-uploader verify DIR URL`` compares the two."""
        return self._plan.destination.uri(self._plan.mirror.prefix)

    @property
    def pid(self) -> int | None:
        """Number of the uploader's own process; None where there is none."""
        return self._process.pid if self._process is not None else None

    def get_uri_for_uploaded_file(self, path: str | os.PathLike[str]) -> str:
        """Return the address of the object that holds a file.

        Args:
            path: A file in the directory, absolute or relative to the working directory.

        Raises:
            UploaderSettingsError: It lies elsewhere.
        """
        return self._plan.destination.uri(
            find_key(self.directory, self._plan.mirror.prefix, path, self._plan.mirror.selection)
        )

    def start(self, timeout: float | None = _START_PATIENCE) -> Self:
        """Begin to mirror; what is there already counts.

        Args:
            timeout: Seconds to wait for the process to be ready; it goes on getting ready after.

        Returns:
            This object.

        Raises:
            DirectoryLockedError: Another uploader has the directory, a parent or a child of it.
            ObjectStoreError: The store refuses to be written to.
            WorkerError: The process could not be started.
            RuntimeError: It was started before.
        """
        if self._closed or self._process is not None or self._session is not None:
            raise RuntimeError("this uploader was started before; make a new one")
        if self._use_procs:
            process = WorkerProcess(self._plan, self._report)
            if not process.start(timeout):
                self._report(
                    "warning", f"the uploader is not ready after {timeout:g} s; it goes on"
                )
            self._process = process
            return self
        session = Session(replace(self._plan, lock_patience=_LOCK_PATIENCE), self._report)
        session.start()
        self._session = session
        return self

    def trigger(self) -> None:
        """Ask for a scan soon, which sends what changed. Costs a microsecond, never raises.

        With ``staging="blocking"`` it returns when what changed has been copied.
        """
        part = self._process or self._session
        if part is None or not self._is_mine:
            return
        if self._plan.staging.blocking:
            part.stage()
        elif isinstance(part, WorkerProcess):
            part.trigger()
        else:
            part.mirror.trigger()

    def flush(self, timeout: float | None = None) -> None:
        """Store everything that is on disk now, and wait for it.

        Args:
            timeout: Seconds after which to give up; None to wait as long as anything succeeds.

        Raises:
            IncompleteUploadError: With the list of what is not stored.
        """
        if not self._is_mine:
            return
        self._raise_if(self._run(lambda part: part.flush(timeout)))

    def close(self, timeout: float | None = None) -> None:
        """Store everything and end; does nothing the second time.

        Args:
            timeout: As for `flush`.

        Raises:
            IncompleteUploadError: With the list of what is not stored.
        """
        if self._closed or not self._is_mine:
            return
        self._closed = True
        if self._process is None and self._session is None:
            return
        try:
            missing = self._run(lambda part: part.close(timeout), closing=True)
        finally:
            self._last_status = self.status()
            self._process = self._session = None
        self._raise_if(missing)

    def status(self) -> UploadStatus:
        """Return how things are, or how they ended."""
        if not self._is_mine:
            return self._last_status
        if self._process is not None:
            self._last_status = self._process.status()
        elif self._session is not None:
            self._last_status = self._session.status()
        return self._last_status

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except UploaderError as error:
            if exc is None:
                raise
            exc.add_note(f"and the upload is incomplete: {error}")

    @property
    def _is_mine(self) -> bool:
        """Whether this is the process that made the object, not a forked copy of it."""
        return os.getpid() == self._pid

    def _run(
        self, work: Callable[[WorkerProcess | Session], Missing], *, closing: bool = False
    ) -> Missing:
        part = self._process or self._session
        if part is None:
            raise RuntimeError(
                "this uploader is not started; call start() or use it in a with block"
            )
        if closing and self._session is not None and self._plan.ranks is not None:
            self._plan.ranks.wait(self.directory)
        try:
            return work(part)
        except WorkerError as error:
            return [(".", str(error))]

    def _raise_if(self, missing: Missing) -> None:
        if missing:
            raise IncompleteUploadError(
                missing, directory=str(self.directory), destination=self.url
            )


def find_key(
    directory: Path, prefix: str, path: str | os.PathLike[str], selection: Selection
) -> str:
    """Return the key of the object that holds a file, or that stands for a link to a file.

    Args:
        directory: The mirrored directory, absolute.
        prefix: Before every key.
        path: A file in it, absolute or relative to the working directory.
        selection: What is mirrored.

    Raises:
        UploaderSettingsError: It lies elsewhere.
    """
    name = relative_path(directory, path)
    root = os.path.realpath(directory)
    is_link = Path(root, name).is_symlink()
    pointer = is_link and follow_link(root, name, selection).path is not None
    return object_key(prefix, name, pointer=pointer)


def relative_path(directory: Path, path: str | os.PathLike[str]) -> str:
    """Return a path relative to the mirrored directory.

    Args:
        directory: The mirrored directory, absolute.
        path: A file in it, absolute or relative to the working directory.

    Raises:
        UploaderSettingsError: It lies elsewhere, or is the directory itself.
    """
    name = os.path.normpath(Path(path).absolute())
    for base in (os.path.normpath(directory), os.path.realpath(directory)):
        if name.startswith(base.rstrip("/") + "/"):
            return name[len(base.rstrip("/")) + 1 :]
    real = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))  # noqa: PTH118, PTH119, PTH120
    base = os.path.realpath(directory)
    if real.startswith(base.rstrip("/") + "/"):
        return real[len(base.rstrip("/")) + 1 :]
    raise UploaderSettingsError(
        f"{os.fspath(path)!r} is not a file in {directory}; only what lies there is uploaded"
    )


def _log(level: str, sentence: str) -> None:
    _logger.log(logging.WARNING if level == "warning" else logging.INFO, "%s", sentence)
