"""Fail when the environment that runs this holds too many distributions or megabytes."""

from __future__ import annotations

import sys
from importlib.metadata import distributions


def main() -> int:
    """Compare what is installed with the limits on the command line: count, megabytes."""
    most, megabytes = int(sys.argv[1]), float(sys.argv[2])
    found = list(distributions())
    size = 0
    for distribution in found:
        for file in distribution.files or ():
            path = distribution.locate_file(file)
            # Bytecode is the installer's choice, not part of what a distribution brings.
            if path.suffix != ".pyc" and path.is_file():
                size += path.stat().st_size
    print(f"{len(found)} distributions (at most {most}), {size / 1e6:.1f} MB ({megabytes:.0f})")
    return int(len(found) > most or size > megabytes * 1e6)


if __name__ == "__main__":
    sys.exit(main())
