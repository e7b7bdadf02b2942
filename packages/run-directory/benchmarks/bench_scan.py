"""Scan many files: with fingerprints, against the bare system calls in the same process.

Run it as ``python packages/run-directory/benchmarks/bench_scan.py [--smoke] [--files N]``. It exits
with 1 when the scan takes more than 1.6 times the bare ``os.scandir`` + ``stat``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from stretto.run_directory import scan

LIMIT = 1.6
FILES_PER_FOLDER = 500


def bare(directory: str) -> int:
    """List and stat everything, and do nothing with it."""
    count = 0
    stack = [directory]
    while stack:
        with os.scandir(stack.pop()) as items:
            for item in items:
                item.stat(follow_symlinks=False)
                count += 1
                if item.is_dir(follow_symlinks=False):
                    stack.append(item.path)
    return count


def ours(directory: str) -> int:
    """Scan with fingerprints and entries built."""
    return sum(1 for _ in scan(directory))


def make_tree(root: Path, files: int) -> None:
    """Make ``files`` empty files in folders of 500."""
    for number in range(files):
        folder = root / f"folder_{number // FILES_PER_FOLDER:05d}"
        if number % FILES_PER_FOLDER == 0:
            folder.mkdir()
        (folder / f"ep{number % 7}-ba{number:07d}-rank0.pt").touch()


def best_of(rounds: int, *works: Callable[[], int]) -> list[float]:
    """Return the least CPU time in seconds of each work, taken in turns."""
    best = [float("inf")] * len(works)
    for _ in range(rounds):
        for index, work in enumerate(works):
            start = time.process_time()
            work()
            best[index] = min(best[index], time.process_time() - start)
    return best


def main() -> int:
    """Measure, print the table, and say whether the limit holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny; the limit is not enforced")
    parser.add_argument("--files", type=int, default=100_000)
    options = parser.parse_args()
    files = 1_000 if options.smoke else options.files
    with tempfile.TemporaryDirectory() as root:
        make_tree(Path(root), files)
        assert bare(root) == ours(root)
        rounds = 2 if options.smoke else 7
        bare_s, ours_s = best_of(rounds, lambda: bare(root), lambda: ours(root))
    ratio = ours_s / bare_s
    print(f"{'scan of':>12} {'bare scandir+stat':>18} {'ours':>10} {'ratio':>6} {'limit':>6}")
    print(f"{files:>12,} {bare_s * 1e3:>15.1f} ms {ours_s * 1e3:>7.1f} ms {ratio:>6.2f} {LIMIT:>6}")
    return 1 if ratio > LIMIT and not options.smoke else 0


if __name__ == "__main__":
    sys.exit(main())
