"""The callback that mirrors a run directory while a trainer writes to it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Literal

from rundir_uploader.destination import Destination, StoreProvider
from rundir_uploader.errors import (
    DirectoryLockedError,
    IncompleteUploadError,
)
from rundir_uploader.ranks import RankPlan, report_rank
from rundir_uploader.selection import Selection
from rundir_uploader.session import SessionPlan
from rundir_uploader.settings import (
    MirrorSettings,
    Staging,
    check_positive,
    check_prefix,
    check_seconds,
)
from rundir_uploader.status import UploadStatus
from rundir_uploader.uploader import Uploader, find_key
from stretto.core_events import Callback, Logger, Stage, State
from stretto.object_store import Store
from stretto.run_directory import get_node_run_directory
from stretto.run_directory.rank import get_local_rank, get_local_world_size

_logger = logging.getLogger("rundir_uploader")
_START_PATIENCE = 15.0


class RunDirectoryUploader(Callback[State]):
    """Mirrors the node run directory to a store, and stores the last of it when the run ends.

    One process a node does so, the one with local rank 0; on the others the callback only tells
    when its rank has finished. Uploads are queued at the end of every epoch and every
    ``upload_every_n_batches`` batches, at intervals in between, and when the run ends. That costs
    the loop a microsecond: everything else happens in a process of its own.

    A store that refuses is warned about at the start; the run goes on. What could not be stored in
    the end is told by IncompleteUploadError, from the end of ``fit`` and from closing.

    Example:
        >>> uploader = RunDirectoryUploader("s3://bucket/runs")
        >>> trainer = Trainer(..., callbacks=[uploader])  # doctest: +SKIP

    Args:
        object_store_provider_hparams: Where to: ``ObjectStoreProviderHparams``, a URL, a local
            path, or a `Store`.
        object_name_prefix: Before every key. Default: the name of the run directory. ``""`` for
            none.
        num_concurrent_uploads: How many transfers run at once, at least 1.
        upload_staging_folder: Where copies are kept until they are stored, with
            ``staging="blocking"``. Default: a private folder in the run directory.
        use_procs: Upload from a process of its own, which outlives the trainer if that is killed;
            False for threads.
        upload_every_n_batches: How many batches lie between two looks at the directory, at least 1.
        staging: ``"background"`` reads files from where they lie. ``"blocking"`` copies what
            changed before the training loop goes on.
        store_options: What `stretto.object_store.open_store` takes besides a URL.
        no_progress_timeout: Seconds without one success after which the end of the run no longer
            waits.
        rank_grace: Seconds to wait at the end for a local rank that never said anything.

    Raises:
        UploaderSettingsError: An argument cannot be used.
        InvalidUrlError: The URL, or its scheme, cannot be used.
        CredentialsError: An environment variable that is to hold a credential is not set.
    """

    stage = Stage.PERSIST

    def __init__(
        self,
        object_store_provider_hparams: StoreProvider | Store | str | os.PathLike[str],
        object_name_prefix: str | None = None,
        num_concurrent_uploads: int = 4,
        upload_staging_folder: str | None = None,
        use_procs: bool = True,
        upload_every_n_batches: int = 100,
        *,
        staging: Literal["background", "blocking"] = "background",
        store_options: dict[str, Any] | None = None,
        no_progress_timeout: float = 600.0,
        rank_grace: float = 30.0,
    ) -> None:
        check_positive("num_concurrent_uploads", num_concurrent_uploads)
        check_positive("upload_every_n_batches", upload_every_n_batches)
        check_seconds("no_progress_timeout", no_progress_timeout)
        check_seconds("rank_grace", rank_grace, may_be_zero=True)
        if object_name_prefix is not None:
            object_name_prefix = check_prefix(object_name_prefix, "object_name_prefix")
        self._destination = Destination.of(object_store_provider_hparams, store_options)
        self._destination.require_usable()
        if use_procs:
            self._destination.require_process_boundary()
        self._staging = Staging.of(staging, upload_staging_folder)
        self._prefix = object_name_prefix
        self._num_concurrent_uploads = num_concurrent_uploads
        self._use_procs = use_procs
        self._every = upload_every_n_batches
        self._no_progress_timeout = no_progress_timeout
        self._rank_grace = rank_grace
        self._directory: Path | None = None
        self._uploader: Uploader | None = None
        self._problem = ""
        self._last_status = UploadStatus()

    @property
    def directory(self) -> Path:
        """The node run directory."""
        return self._directory or Path(get_node_run_directory())

    @property
    def prefix(self) -> str:
        """What is before every key."""
        return self.directory.name if self._prefix is None else self._prefix

    @property
    def url(self) -> str:
        """Where the directory is mirrored to; ``rundir-uploader verify DIR URL`` compares both."""
        return self._destination.uri(self.prefix)

    def get_uri_for_uploaded_file(self, local_filepath: str | os.PathLike[str]) -> str:
        """Return the address of the object that holds a file.

        Args:
            local_filepath: A file in the node run directory, absolute or relative to the working
                directory.

        Raises:
            UploaderSettingsError: It lies elsewhere.
        """
        key = find_key(self.directory, self.prefix, local_filepath, Selection())
        return self._destination.uri(key)

    def status(self) -> UploadStatus:
        """Return how the uploader is doing, or how it ended; empty on other than local rank 0."""
        if self._uploader is not None:
            return self._uploader.status()
        return self._last_status

    def init(self, state: State, logger: Logger) -> None:
        """Start the uploader on local rank 0, and say on the others that this rank has begun."""
        del state, logger
        self._directory = directory = Path(get_node_run_directory())
        self._problem = ""
        if get_local_rank() != 0:
            report_rank(directory, get_local_rank(), finished=False)
            return
        directory.mkdir(parents=True, exist_ok=True)
        size = get_local_world_size()
        ranks = RankPlan.begin(directory, size, grace=self._rank_grace) if size > 1 else None
        plan = SessionPlan(
            mirror=MirrorSettings(
                directory=directory,
                prefix=check_prefix(self.prefix),
                num_concurrent_uploads=self._num_concurrent_uploads,
                no_progress_timeout=self._no_progress_timeout,
            ),
            destination=self._destination,
            strict=False,
            ranks=ranks,
            staging=self._staging,
        )
        self._start(Uploader.from_plan(plan, use_procs=self._use_procs))

    def batch_end(self, state: State, logger: Logger) -> None:
        """Queue uploads every so many batches."""
        del logger
        if state.timestamp.batch_count % self._every == 0:
            self._trigger()

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Queue uploads of what was saved after such a batch."""
        self.batch_end(state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Queue uploads."""
        del state, logger
        self._trigger()

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Queue uploads of what was saved after the epoch."""
        del state, logger
        self._trigger()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Store everything that is on disk.

        Raises:
            IncompleteUploadError: With the list of what is not stored.
        """
        del state, logger
        if self._uploader is not None:
            self._uploader.flush()
        self._raise_problem()

    def post_close(self) -> None:
        """Look at the directory a last time, store everything, and end.

        Raises:
            IncompleteUploadError: With the list of what is not stored.
        """
        directory, self._directory = self._directory, None
        if directory is None:
            return
        if get_local_rank() != 0:
            report_rank(directory, get_local_rank(), finished=True)
        uploader, self._uploader = self._uploader, None
        if uploader is None:
            problem, self._problem = self._problem, ""
            if problem:
                self._raise(problem, directory)
            return
        try:
            uploader.close()
        finally:
            self._last_status = uploader.status()

    def _trigger(self) -> None:
        if self._uploader is not None:
            self._uploader.trigger()

    def _start(self, uploader: Uploader) -> None:
        try:
            self._uploader = uploader.start(_START_PATIENCE)
        except DirectoryLockedError as error:
            _logger.warning("%s", error)
        except Exception as error:  # an upload problem must not end a run
            self._problem = f"{type(error).__name__}: {error}"
            _logger.warning(
                "THIS RUN IS NOT BEING UPLOADED: %s. The run goes on; afterwards, "
                "`rundir-uploader sync %s %s` brings what is missing.",
                self._problem,
                uploader.directory,
                uploader.url,
            )

    def _raise_problem(self) -> None:
        if self._problem:
            self._raise(self._problem, self.directory)

    def _raise(self, problem: str, directory: Path) -> None:
        name = directory.name if self._prefix is None else self._prefix
        raise IncompleteUploadError(
            [(".", problem)], directory=str(directory), destination=self._destination.uri(name)
        )
