"""Progress bars on a terminal, nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rundir_uploader.status import UploadStatus

SyncProgress = Callable[["UploadStatus"], None]
VerifyProgress = Callable[[int, int], None]


@contextlib.contextmanager
def sync_progress(*, quiet: bool) -> Generator[SyncProgress | None]:
    """Show how a sync gets on.

    Args:
        quiet: Show nothing, even on a terminal.

    Yields:
        What to call with each status; None where there is nothing to show.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with _bar() as show:
        yield lambda status: show(status.stored, status.stored + status.pending)


@contextlib.contextmanager
def verify_progress(*, quiet: bool) -> Generator[VerifyProgress]:
    """Show how a comparison gets on.

    Args:
        quiet: Show nothing, even on a terminal.

    Yields:
        What to call with objects done and objects in all.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    with _bar() as show:
        yield show


@contextlib.contextmanager
def _bar() -> Generator[VerifyProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
