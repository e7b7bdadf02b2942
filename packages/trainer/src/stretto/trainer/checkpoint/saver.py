"""The callback that saves at intervals."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from stretto.core_events import Callback, Event, Logger, TimeInput, create_interval_scheduler
from stretto.core_events.intervals import ProgressState
from stretto.trainer.checkpoint.commit import remove_leftovers
from stretto.trainer.checkpoint.errors import CheckpointError, CheckpointExistsError
from stretto.trainer.checkpoint.naming import check_template, format_template, matching_files
from stretto.trainer.checkpoint.save import (
    SavableState,
    check_file_name,
    raise_failures,
    save_checkpoint,
)
from stretto.trainer.distributed.outcome import share_outcome


class RunState(SavableState, ProgressState, Protocol):
    """What the callback needs of a state."""


class CheckpointSaver(Callback[RunState]):
    """Saves a checkpoint at intervals and at the end, and keeps a pointer to the newest.

    Args:
        folder: Where; a relative path resolves against the working directory of this moment.
            Variables that stay the same throughout a run may be in it, ``{run_directory}`` among
            them.
        filename: Name of each file, with variables.
        latest_filename: Name of the pointer, with variables; None for none.
        save_interval: A time (``"1ep"``, ``"100ba"``), a number of epochs, or a function of state
            and event that says whether to save now.
        overwrite: Files of an earlier run in the folder may be replaced.
        weights_only: Save parameters and buffers, nothing else.
        load_path: What the run resumes from. If that lies in the folder, the files in it are this
            run's own, and later ones are replaced.

    Attributes:
        saved_checkpoints: The paths saved so far, oldest first, on every rank.

    Raises:
        ValueError: The folder is a URL, or a name has an unknown variable.
        TimeStringError: The interval is no time.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] = "{run_directory}/checkpoints",
        filename: str = "ep{epoch}-ba{batch}-rank{rank}.pt",
        latest_filename: str | None = "latest-rank{rank}.pt",
        save_interval: TimeInput | Callable[[Any, Event], bool] = "1ep",
        *,
        overwrite: bool = False,
        weights_only: bool = False,
        load_path: str | os.PathLike[str] | None = None,
    ) -> None:
        template = os.fspath(folder)
        if "://" in template:
            raise ValueError(
                f"save_folder is {template!r}, a URL, which is not supported yet. Save into "
                f"'{{run_directory}}/checkpoints' and add RunDirectoryUploader(url): it ships "
                f"checkpoints with the rest of the run directory."
            )
        self._template = check_template("save_folder", template, moving=False)
        self._working_directory = Path.cwd()
        self._filename = check_file_name("save_filename", filename)
        self._latest = latest_filename and check_file_name("save_latest_filename", latest_filename)
        self._is_due = create_interval_scheduler(save_interval)
        self._overwrite = overwrite
        self._weights_only = weights_only
        self._load_path = None if load_path is None else os.fspath(load_path)
        self.saved_checkpoints: list[str] = []

    def init(self, state: RunState, logger: Logger) -> None:
        """Refuse a folder that cannot take this run's files, before anything is trained."""
        raise_failures(share_outcome(state.topology, lambda: self._check(state)))

    def batch_checkpoint(self, state: RunState, logger: Logger) -> None:
        """Save if it is time."""
        self._save_if_due(state, Event.BATCH_CHECKPOINT)

    def epoch_checkpoint(self, state: RunState, logger: Logger) -> None:
        """Save if it is time."""
        self._save_if_due(state, Event.EPOCH_CHECKPOINT)

    def iteration_checkpoint(self, state: RunState, logger: Logger) -> None:
        """Save if it is time."""
        self._save_if_due(state, Event.ITERATION_CHECKPOINT)

    def save(self, state: RunState) -> str:
        """Save now; every rank must call it.

        Returns:
            The path.
        """
        path = save_checkpoint(
            state,
            self._filename,
            weights_only=self._weights_only,
            folder=self.folder(state),
            pointer=self._latest,
        )
        if path in self.saved_checkpoints:
            self.saved_checkpoints.remove(path)
        self.saved_checkpoints.append(path)
        return path

    def folder(self, state: SavableState) -> Path:
        """Return the folder of this run."""
        text = format_template(self._template, run_name=state.run_name, topology=state.topology)
        return self._working_directory / Path(text).expanduser()

    def _save_if_due(self, state: RunState, event: Event) -> None:
        if self._is_due(state, event):
            self.save(state)

    def _check(self, state: RunState) -> str:
        folder = self.folder(state)
        _refuse_unwritable(folder)
        found = matching_files(
            folder, self._filename, run_name=state.run_name, topology=state.topology
        )
        if found and not self._overwrite and not self._resumes_from(state, folder):
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise CheckpointExistsError(
                f"The folder {folder} holds checkpoints of an earlier run that this one would "
                f"overwrite: {found[0]}{more}. To go on with that run, give one as load_path; to "
                f"replace its files, save_overwrite=True; else choose another save_folder."
            )
        remove_leftovers(folder, depth=len(Path(self._filename).parts))
        return ""

    def _resumes_from(self, state: RunState, folder: Path) -> bool:
        if self._load_path is None or "://" in self._load_path:
            return False
        template = check_template("load_path", self._load_path, moving=False)
        text = format_template(template, run_name=state.run_name, topology=state.topology)
        path = Path(text).expanduser()
        inside = (path.parent.resolve(), path.resolve().parent)
        return any(parent.is_relative_to(folder.resolve()) for parent in inside)


def _refuse_unwritable(folder: Path) -> None:
    """Raise if the folder cannot be made or written to; nothing is made."""
    nearest = folder
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    if not nearest.is_dir():
        raise CheckpointError(
            f"save_folder is {folder}, but {nearest} is not a folder. Choose another save_folder, "
            f"or move that file away."
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise CheckpointError(
            f"save_folder is {folder}, but {nearest} may not be written to. Choose another "
            f"save_folder, or change its permissions."
        )
