"""What is imported, and when."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "libcloud", "boto3", "botocore", "obstore", "requests", "google", "rich")


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in done.stdout.splitlines()}


@pytest.mark.parametrize(
    "code",
    [
        "import rundir_uploader",
        "from rundir_uploader import *",
        "import rundir_uploader.callback",
        "import rundir_uploader.worker",
        "import rundir_uploader.cli",
        "from rundir_uploader import RunDirectoryUploader; RunDirectoryUploader('store')",
    ],
)
def test_no_heavy_library_is_imported(code: str, tmp_path, monkeypatch) -> None:
    """U21: using the callback needs no SDK; torch is never needed at all."""
    monkeypatch.chdir(tmp_path)
    assert modules_after(code).isdisjoint(HEAVY)


def test_the_root_offers_what_it_promises() -> None:
    import rundir_uploader

    for name in rundir_uploader.__all__:
        assert getattr(rundir_uploader, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = rundir_uploader.nothing_like_it
