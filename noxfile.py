"""Every check of the workspace, each in an environment of its own.

`nox -s demo` runs the main job, `nox -s tests` the tests; `.ci/run` runs all of it.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import nox
from uv import find_uv_bin

ROOT = Path(__file__).parent
UV = find_uv_bin()
TORCH_FREE = ("core-events", "run-directory", "object-store", "rundir-uploader")
WITH_TORCH = ("algorithms", "trainer")
PACKAGES = TORCH_FREE + WITH_TORCH
MODULES = {
    "core-events": "stretto.core_events",
    "run-directory": "stretto.run_directory",
    "object-store": "stretto.object_store",
    "rundir-uploader": "rundir_uploader",
    "algorithms": "stretto.algorithms",
    "trainer": "stretto.trainer",
}
OLDEST_PYTHON = 11


def installed_pythons() -> list[str]:
    """Return the minor versions from 3.11 up that this machine can start, oldest first.

    pyenv's shims start only the versions that PYENV_VERSION names, so all of them are named.
    """
    if shutil.which("pyenv"):
        listed = subprocess.run(
            ["pyenv", "versions", "--bare", "--skip-aliases"], capture_output=True, text=True
        ).stdout.split()
        versions = [v for v in listed if re.fullmatch(r"3\.\d+\.\d+", v)]
        current = os.environ.get("PYENV_VERSION", "").split(":")
        ordered = sorted(versions, key=lambda v: (v not in current, int(v.split(".")[1])))
        os.environ["PYENV_VERSION"] = ":".join(
            v for v in ordered if int(v.split(".")[1]) >= OLDEST_PYTHON
        )
    running = sys.version_info.minor
    found = []
    for minor in range(OLDEST_PYTHON, 30):
        name = f"python3.{minor}"
        starts = (
            shutil.which(name)
            and not subprocess.run([name, "-c", ""], capture_output=True).returncode
        )
        if minor == running or starts:
            found.append(f"3.{minor}")
    return found


PYTHONS = installed_pythons()
BASE_PYTHON = f"3.{sys.version_info.minor}"

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["tests", "lint", "types", "wheels", "examples"]
nox.options.error_on_missing_interpreters = True
nox.options.reuse_venv = "yes"
os.environ.setdefault("UV_COMPILE_BYTECODE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _uv(session: nox.Session, *arguments: str) -> None:
    session.run(UV, *arguments, external=True)


def _sync_workspace(session: nox.Session, *extra: str) -> Path:
    """Bring `.venv` up to date with all packages; return the folder of its commands."""
    _uv(session, "sync", "--quiet", "--all-packages", "--python", BASE_PYTHON, *extra)
    return ROOT / ".venv" / ("Scripts" if os.name == "nt" else "bin")


def _sync_everything(session: nox.Session) -> Path:
    return _sync_workspace(session, "--all-extras", "--all-groups")


def _markers(session: nox.Session, package: str) -> list[str]:
    """Leave slow tests to --slow, and servers to one Python: they test the wire, not Python."""
    slow = "--slow" in session.posargs
    left_out = [] if slow and session.python == BASE_PYTHON else ["slow"]
    if session.python != BASE_PYTHON:
        left_out.append("server")
    if package == "trainer" and not slow:
        left_out.append("gpu")
    return ["-m", " and ".join(f"not {name}" for name in left_out)] if left_out else []


def _without_flags(session: nox.Session) -> list[str]:
    return [argument for argument in session.posargs if argument not in ("--slow", "--smoke")]


CASES = [(python, package) for package in TORCH_FREE for python in PYTHONS] + [
    (BASE_PYTHON, package) for package in WITH_TORCH
]


def _install_alone(session: nox.Session, package: str, *options: str) -> None:
    """Install a package, editable, with what it and its tests declare and nothing else."""
    groups = ["--group", "pyproject.toml:test"]
    own = f"packages/{package}/pyproject.toml"
    if re.search(r"^\[dependency-groups\]\s*\ntest\b", (ROOT / own).read_text(), re.M):
        groups += ["--group", f"{own}:test"]
    target = ("--quiet", "--python", session.virtualenv.location, *options)
    _uv(session, "pip", "install", *target, "--editable", f"packages/{package}", *groups)


def _run_tests(session: nox.Session, package: str, *chosen: str) -> None:
    pytest = ("python", "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", ".")
    session.run(*pytest, *chosen, *_without_flags(session), f"packages/{package}/tests")


@nox.session
@nox.parametrize("python,package", CASES, ids=[f"{package}-{python}" for python, package in CASES])
def tests(session: nox.Session, package: str) -> None:
    """Test a package with what it declares and nothing else; torch-free ones on every Python."""
    _install_alone(session, package)
    _run_tests(session, package, *_markers(session, package))


@nox.session(python=PYTHONS[0])
@nox.parametrize("package", TORCH_FREE, ids=TORCH_FREE)
def lowest(session: nox.Session, package: str) -> None:
    """Test a torch-free package on the lowest versions that it declares, on the oldest Python."""
    _install_alone(session, package, "--resolution", "lowest-direct")
    _run_tests(session, package, "-m", "not slow and not server")


@nox.session(venv_backend="none")
def demo(session: nox.Session) -> None:
    """Train on real handwritten digits, mirror the run to a local store, compare both sides."""
    commands = _sync_workspace(session, "--inexact", "--group", "examples")
    session.run(str(commands / "python"), "examples/digits.py", *session.posargs, external=True)


@nox.session(venv_backend="none")
def examples(session: nox.Session) -> None:
    """Test the workspace as a whole: the examples, the seed documents, versions and typing."""
    commands = _sync_everything(session)
    slow = [] if "--slow" in session.posargs else ["-m", "not slow"]
    chosen = [*slow, *_without_flags(session)]
    session.run(str(commands / "python"), "-m", "pytest", "-q", *chosen, "tests", external=True)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Build the site, warnings being errors, and run its code; `--slow` adds the frameworks."""
    commands = _sync_everything(session)
    scratch = Path(session.create_tmp()).resolve()
    site = str(scratch / "site")
    python = str(commands / "python")
    build = (python, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "docs", site)
    session.run(*build, external=True)
    environment = {"DOCS_SITE": site}
    chosen = ["-m", "not slow"]
    if "--slow" in session.posargs:
        environment["DOCS_FRAMEWORKS_PYTHON"] = _install_frameworks(session, scratch / "frameworks")
        chosen = []
    pytest = (python, "-m", "pytest", "-q", *chosen, *_without_flags(session), "docs")
    session.run(*pytest, external=True, env=environment)


def _install_frameworks(session: nox.Session, place: Path) -> str:
    """Make an environment with core-events and the frameworks that its pages show."""
    _uv(session, "venv", "--quiet", "--allow-existing", "--python", BASE_PYTHON, str(place))
    frameworks = ("accelerate>=1.1", "lightning>=2.4", "transformers>=4.46")
    package = ("--editable", "packages/core-events")
    _uv(session, "pip", "install", "--quiet", "--python", str(place), *package, *frameworks)
    return str(place / ("Scripts" if os.name == "nt" else "bin") / "python")


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style, who imports whom, and the sizes of files and functions."""
    commands = _sync_everything(session)
    session.run(str(commands / "ruff"), "check", ".", external=True)
    session.run(str(commands / "ruff"), "format", "--check", ".", external=True)
    session.run(str(commands / "lint-imports"), external=True)
    session.run(str(commands / "python"), ".ci/limits.py", external=True)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check the sources with pyright in strict mode."""
    commands = _sync_everything(session)
    told = session.run(str(commands / "pyright"), "--stats", external=True, silent=True)
    print(told)
    checked = re.search(r"Total files checked: (\d+)", str(told))
    sources = len(list(ROOT.glob("packages/*/src/**/*.py")))
    if checked is None or int(checked[1]) < sources:
        session.error(f"pyright checked {checked and checked[1]} of {sources} files")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every distribution without workspace sources; install and import each one alone."""
    built = Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(built, ignore_errors=True)
    for folder in (*(f"packages/{name}" for name in PACKAGES), "."):
        target = ("--wheel", "--out-dir", str(built), folder)
        _uv(session, "build", "--quiet", "--no-sources", *target)
    for package in PACKAGES:
        _try_wheel(session, built, package)


def _try_wheel(session: nox.Session, built: Path, package: str) -> None:
    distribution = package if package == "rundir-uploader" else f"stretto-{package}"
    (wheel,) = built.glob(f"{distribution.replace('-', '_')}-*.whl")
    _check_contents(wheel)
    with tempfile.TemporaryDirectory() as empty:
        environment = Path(empty) / "venv"
        commands = environment / "bin"
        _uv(session, "venv", "--quiet", "--python", BASE_PYTHON, str(environment))
        wheels_only = ("--no-sources", "--find-links", str(built), str(wheel))
        target = ("--quiet", "--python", str(environment))
        _uv(session, "pip", "install", *target, *wheels_only)
        with session.chdir(empty):
            python = str(commands / "python")
            session.run(python, "-c", f"import {MODULES[package]}", external=True)
            if package == "rundir-uploader":
                _check_uploader_alone(session, commands)


def _check_uploader_alone(session: nox.Session, commands: Path) -> None:
    python = str(commands / "python")
    for module in ("torch", "numpy"):
        absent = f"import importlib.util, sys; sys.exit(bool(importlib.util.find_spec('{module}')))"
        session.run(python, "-c", absent, external=True)
    session.run(str(commands / "rundir-uploader"), "--help", external=True, silent=True)
    limits = ("25", "75")  # distributions, megabytes
    session.run(python, str(ROOT / ".ci" / "footprint.py"), *limits, external=True)


def _check_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    if "stretto/__init__.py" in names:
        raise SystemExit(f"{wheel.name} carries stretto/__init__.py; stretto is a namespace")
    if not any(name.endswith("py.typed") for name in names):
        raise SystemExit(f"{wheel.name} carries no py.typed")


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure every package against its peers; `-- --smoke` only proves that it runs."""
    python = str(_sync_everything(session) / "python")
    flags = ["--smoke"] if "--smoke" in session.posargs else []
    failed = []
    for script in sorted(ROOT.glob("packages/*/benchmarks/bench_*.py")):
        print(f"\n--- {script.relative_to(ROOT)}", flush=True)
        if subprocess.run([python, str(script), *flags]).returncode:
            failed.append(script.name)
    if failed:
        session.error(f"failed, or past a limit: {', '.join(failed)}")


@nox.session(venv_backend="none")
def bump(session: nox.Session) -> None:
    """Give all distributions one new version: `nox -s bump -- 0.2.0`."""
    (version,) = session.posargs
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        session.error(f"{version!r} is not a version such as 0.2.0 or 1.0.0rc1")
    for path in (ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")):
        text = path.read_text()
        text = re.sub(r'^version = "[^"]+"', f'version = "{version}"', text, flags=re.M)
        text = re.sub(
            r'"((?:stretto-[a-z-]+|rundir-uploader)(?:\[[^\]]*\])?)==[^"]+"',
            rf'"\1=={version}"',
            text,
        )
        path.write_text(text)


@nox.session(venv_backend="none")
def move_date(session: nox.Session) -> None:
    """Move the date that fixes the resolution to yesterday (or to the one given)."""
    yesterday = dt.datetime.now(tz=dt.UTC).date() - dt.timedelta(days=1)
    date = dt.date.fromisoformat(session.posargs[0]) if session.posargs else yesterday
    path = ROOT / "pyproject.toml"
    moved = f'exclude-newer = "{date}T00:00:00Z"'
    path.write_text(re.sub(r'^exclude-newer = "[^"]+"', moved, path.read_text(), flags=re.M))
