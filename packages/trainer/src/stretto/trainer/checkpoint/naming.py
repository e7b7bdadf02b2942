"""File names with variables in them, such as ``ep{epoch}-ba{batch}-rank{rank}.pt``."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stretto.core_events import Timestamp
from stretto.run_directory import get_node_run_directory
from stretto.trainer.distributed.topology import Topology

RUN_VARIABLES = (
    "run_name",
    "run_directory",
    "rank",
    "local_rank",
    "world_size",
    "local_world_size",
    "node_rank",
)
"""Variables that stay the same throughout a run."""

TIME_VARIABLES = (
    "epoch",
    "batch",
    "batch_in_epoch",
    "sample",
    "sample_in_epoch",
    "token",
    "token_in_epoch",
    "iteration",
    "total_wct",
    "epoch_wct",
    "batch_wct",
)
"""Variables that tell how far a run has come; the last three in seconds."""


def check_template(what: str, template: str, *, moving: bool = True) -> str:
    """Return a template unchanged, if every variable in it is known.

    Args:
        what: The argument it comes from, for the message.
        template: Text with ``{variables}``.
        moving: Variables that tell how far the run has come are allowed.

    Raises:
        ValueError: A variable is unknown, or the braces do not match.
    """
    known = RUN_VARIABLES + (TIME_VARIABLES if moving else ())
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"{what} is {template!r}, and its braces do not match: {error}.") from None
    for name in names:
        if name not in known:
            raise ValueError(
                f"{what} is {template!r}, and {{{name}}} is no variable it knows. Use "
                f"{', '.join(f'{{{variable}}}' for variable in known)}."
            )
    return template


def run_values(run_name: str, topology: Topology) -> dict[str, Any]:
    """Return the values of the variables that stay the same, as seen by the rank that writes."""
    return {
        "run_name": run_name,
        "run_directory": get_node_run_directory(),
        # With whole state dicts one rank writes for all.
        "rank": 0,
        "local_rank": 0,
        "world_size": topology.world_size,
        "local_world_size": topology.local_world_size,
        "node_rank": 0,
    }


def time_values(timestamp: Timestamp) -> dict[str, Any]:
    """Return the values of the variables that tell how far a run has come."""
    values: dict[str, Any] = {
        name: getattr(timestamp, name).value for name in TIME_VARIABLES if not name.endswith("_wct")
    }
    for name in ("total_wct", "epoch_wct", "batch_wct"):
        values[name] = getattr(timestamp, name).total_seconds()
    return values


def format_template(
    template: str, *, run_name: str, topology: Topology, timestamp: Timestamp | None = None
) -> str:
    """Return a template with the values of its variables.

    Args:
        template: Text that :func:`check_template` accepted.
        run_name: Of the run.
        topology: Of the run.
        timestamp: How far it has come; needed if the template says so.
    """
    values = run_values(run_name, topology)
    if timestamp is not None:
        values |= time_values(timestamp)
    return template.format_map(values)


def matching_files(folder: Path, template: str, *, run_name: str, topology: Topology) -> list[str]:
    """Return the files in a folder that a template could have named, in this run.

    Args:
        folder: Where to look; it need not exist.
        template: Of a file name relative to the folder.
        run_name: Of the run.
        topology: Of the run.
    """
    pattern = re.compile("".join(_patterns(template, run_values(run_name, topology))))
    depth = len(Path(template).parts)
    candidates = folder.glob("/".join(["*"] * depth)) if folder.is_dir() else ()
    names = (path.relative_to(folder).as_posix() for path in candidates if path.is_file())
    return sorted(name for name in names if pattern.fullmatch(name))


def _patterns(template: str, values: dict[str, Any]) -> Iterator[str]:
    for literal, name, spec, conversion in string.Formatter().parse(template):
        yield re.escape(literal)
        if name is None:
            continue
        if name in values:
            field = f"{{{name}{f'!{conversion}' if conversion else ''}:{spec or ''}}}"
            yield re.escape(field.format_map(values))
        else:
            yield r"[0-9.+\-e_, ]+"
