"""Which paths are mirrored."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field

from rundir_uploader.errors import UploaderSettingsError
from rundir_uploader.keys import STATE_FOLDER

TEMPORARY_SUFFIX = ".tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is mirrored: all but our own folder, ``*.tmp`` and what the patterns leave out.

    A pattern without ``/`` is matched with each name, one with ``/`` with the whole relative
    path; ``*`` also matches ``/``. A folder that is excluded is left out with all it holds.

    Attributes:
        exclude: Globs of what to leave out.
        include: Globs of what to mirror; empty for everything. Exclusion wins.
        hidden: Whether names that begin with a dot are mirrored.
    """

    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    hidden: bool = True
    _excluded: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)
    _included: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_excluded", tuple(map(_compile, self.exclude)))
        object.__setattr__(self, "_included", tuple(map(_compile, self.include)))

    def leaves_out(self, path: str) -> bool:
        """Whether a path, and all below it, is not mirrored.

        Args:
            path: Relative path, parts joined by ``/``.
        """
        if path.endswith(TEMPORARY_SUFFIX) or path.endswith(STATE_FOLDER):
            name = path.rpartition("/")[2]
            if name.endswith(TEMPORARY_SUFFIX) or name == STATE_FOLDER:
                return True
        if not self.hidden and path.rpartition("/")[2].startswith("."):
            return True
        return bool(self._excluded) and _matches(self._excluded, path)

    def takes_in(self, path: str) -> bool:
        """Whether a file that is not left out is one of those asked for.

        Args:
            path: Relative path, parts joined by ``/``.
        """
        return not self._included or _matches(self._included, path)

    def covers(self, path: str) -> bool:
        """Whether a file is mirrored, looking at its parents too.

        Args:
            path: Relative path, parts joined by ``/``.
        """
        parts = path.split("/")
        return self.takes_in(path) and not any(
            self.leaves_out("/".join(parts[: index + 1])) for index in range(len(parts))
        )


def _compile(pattern: str) -> re.Pattern[str]:
    if not pattern:
        raise UploaderSettingsError("an empty pattern matches nothing; remove it, or write '*'")
    text = pattern.strip("/")
    if "/" in text:
        return re.compile(fnmatch.translate(text))
    return re.compile(rf"(?:.*/)?{fnmatch.translate(text)}", re.DOTALL)


def _matches(patterns: tuple[re.Pattern[str], ...], path: str) -> bool:
    return any(pattern.match(path) for pattern in patterns)
