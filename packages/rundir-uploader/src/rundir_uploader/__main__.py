"""The command ``rundir-uploader``, also as ``python -m rundir_uploader``."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from rundir_uploader.cli import cli

    cli(prog_name="rundir-uploader")


if __name__ == "__main__":
    main()
