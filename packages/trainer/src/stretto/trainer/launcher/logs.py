"""Where the output of each rank goes."""

from __future__ import annotations

import contextlib
from pathlib import Path

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

_CONSOLE = ""
"""What torch takes for: leave this stream alone."""


class RankLogs(LogsSpecs):
    """Leaves local rank 0 on the console; gives every other rank a file for each stream.

    A file that is there from an earlier run is kept under a numbered name.

    Args:
        folder: Where the default files lie.
        stdout: Template of the file for standard output, also that of rank 0; None for default.
        stderr: The same for standard error.
        verbose: Show on the console, too, what goes into files.
    """

    def __init__(
        self, folder: Path, *, stdout: str | None, stderr: str | None, verbose: bool
    ) -> None:
        super().__init__()
        self._folder = folder
        self._templates = {"stdout": stdout, "stderr": stderr}
        self._verbose = verbose
        self.files: dict[int, dict[str, Path]] = {}

    @property
    def root_log_dir(self) -> str:
        """Where the default files lie."""
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Choose the files, out of the way of those that are there.

        Args:
            envs: The environment of each local rank.
        """
        for local_rank, env in envs.items():
            self.files[local_rank] = {
                stream: path
                for stream in self._templates
                if (path := self._choose(stream, env)) is not None
            }
            for path in self.files[local_rank].values():
                path.parent.mkdir(parents=True, exist_ok=True)
                _put_aside(path)
        return LogsDest(
            stdouts=self._paths("stdout", envs),
            stderrs=self._paths("stderr", envs),
            tee_stdouts=self._shown("stdout"),
            tee_stderrs=self._shown("stderr"),
            error_files=dict.fromkeys(envs, ""),
        )

    def _choose(self, stream: str, env: dict[str, str]) -> Path | None:
        template = self._templates[stream]
        if template is not None:
            values = {
                "rank": env["RANK"],
                "local_rank": env["LOCAL_RANK"],
                "world_size": env["WORLD_SIZE"],
                "node_rank": env["GROUP_RANK"],
                "local_world_size": env["LOCAL_WORLD_SIZE"],
            }
            return Path(template.format_map(values)).absolute()
        if env["LOCAL_RANK"] == "0":
            return None
        return self._folder / f"rank_{env['RANK']}.{stream}.txt"

    def _paths(self, stream: str, envs: dict[int, dict[str, str]]) -> dict[int, str]:
        return {rank: str(self.files[rank].get(stream, _CONSOLE)) for rank in envs}

    def _shown(self, stream: str) -> dict[int, str]:
        return {
            rank: str(files[stream])
            for rank, files in self.files.items()
            if stream in files and (self._verbose or rank == 0)
        }


def _put_aside(path: Path) -> None:
    """Rename a file that is there to the first free numbered name."""
    if not path.exists():
        return
    number = 1
    while (kept := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(kept)


def last_lines(path: Path, count: int = 20) -> list[str]:
    """Return the last lines of a text file; none where it cannot be read.

    Args:
        path: The file.
        count: How many.
    """
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
    return []
