"""Progress bars on a terminal, nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator

Progress = Callable[[int, int], None]
"""Called with files done and files in all."""


@contextlib.contextmanager
def progress_bar(*, quiet: bool) -> Generator[Progress | None]:
    """Show how a command gets on.

    Args:
        quiet: Show nothing, even on a terminal.

    Yields:
        What to call with files done and files in all; None where there is nothing to show.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
