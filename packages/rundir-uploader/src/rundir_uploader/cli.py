"""The commands. What does the work is imported when a command runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from rundir_uploader.session import SessionPlan
    from rundir_uploader.sync import SyncReport
    from rundir_uploader.verify import VerifyReport

EXIT_DIFFERENT = 1
EXIT_USAGE = 2
EXIT_STORE = 3
EXIT_INTERRUPTED = 130

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rundir-uploader", message="%(prog)s %(version)s")
def cli() -> None:
    """Mirror a directory to an object store, and check what is there.

    A URL is s3://bucket/prefix, gs://bucket/prefix, azure://container/prefix, or a local path;
    credentials and endpoints come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    AWS_REGION, AWS_ENDPOINT_URL, ...).

    Exit status: 0 done and equal; 1 something is missing or differs, each named; 2 wrong usage;
    3 the store cannot be reached or refuses; 130 interrupted.
    """


def _arguments(command: CommandT) -> CommandT:
    """Add what all commands take."""
    decorators = [
        click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path)),
        click.argument("url"),
        click.option("--exclude", multiple=True, metavar="GLOB", help="Leave these out."),
        click.option("--include", multiple=True, metavar="GLOB", help="Take only these."),
        click.option("--no-hidden", is_flag=True, help="Leave out names that begin with a dot."),
        click.option(
            "--concurrency",
            type=click.IntRange(min=1),
            default=8,
            show_default=True,
            help="How many files at once.",
        ),
        click.option("--json", "as_json", is_flag=True, help="One JSON object a line."),
    ]
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


@cli.command("sync")
@_arguments
@click.option("--recheck", is_flag=True, help="List the store first, and send what it lost.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Give up after so long. Default: ten minutes without any success.",
)
def sync_command(
    *, directory: Path, url: str, as_json: bool, recheck: bool, timeout: float | None, **what: Any
) -> None:
    """Bring everything in DIRECTORY into the store at URL, once.

    What is there already is not sent again. The object for DIRECTORY/x is URL/x.
    """
    from rundir_uploader.progress import progress_bar
    from rundir_uploader.sync import sync

    def work() -> SyncReport:
        plan = _plan(directory, url, recheck=recheck, **what)
        with progress_bar(quiet=as_json) as progress:
            return sync(plan, _tell, timeout=timeout, progress=progress)

    report = _guarded(work, url)
    _print_sync(report, directory, url, as_json=as_json)
    if report.interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if report.missing and _all_refused(report):
        _fail(f"the store at {url} takes nothing. {_where(url)}", EXIT_STORE)
    if report.missing:
        sys.exit(EXIT_DIFFERENT)


@cli.command("verify")
@_arguments
@click.option("--download", is_flag=True, help="Compare bytes, not digests.")
def verify_command(
    *, directory: Path, url: str, as_json: bool, download: bool, **what: Any
) -> None:
    """Compare DIRECTORY with the store at URL, in both directions.

    Sizes, and the digests that the store vouches for, are compared; each object that differs or is
    missing is named.
    """
    from rundir_uploader.progress import progress_bar
    from rundir_uploader.verify import verify

    def work() -> VerifyReport:
        plan = _plan(directory, url, recheck=False, **what)
        store = plan.destination.open(must_exist=True)
        try:
            with progress_bar(quiet=as_json) as progress:
                return verify(
                    plan.mirror,
                    store,
                    plan.destination.uri(""),
                    download=download,
                    progress=progress,
                )
        finally:
            store.close()

    report = _guarded(work, url)
    _print_verify(report, directory, url, as_json=as_json)
    if not report.equal:
        sys.exit(EXIT_DIFFERENT)


def _plan(
    directory: Path,
    url: str,
    *,
    recheck: bool,
    exclude: tuple[str, ...],
    include: tuple[str, ...],
    no_hidden: bool,
    concurrency: int,
) -> SessionPlan:
    from rundir_uploader.destination import Destination
    from rundir_uploader.selection import Selection
    from rundir_uploader.session import SessionPlan
    from rundir_uploader.settings import MirrorSettings

    return SessionPlan(
        mirror=MirrorSettings(
            directory=directory.absolute(),
            selection=Selection(exclude=exclude, include=include, hidden=not no_hidden),
            num_concurrent_uploads=concurrency,
        ),
        destination=Destination.of(url),
        check=False,
        probe=False,
        recheck=recheck,
    )


ResultT = TypeVar("ResultT")


def _guarded(work: Callable[[], ResultT], url: str) -> ResultT:
    """Turn errors into a sentence and the exit status that stands for them."""
    from rundir_uploader.errors import DirectoryLockedError, UploaderSettingsError
    from stretto.object_store import InvalidUrlError, MissingExtraError, ObjectStoreError
    from stretto.object_store.retry import keep_attempts_quiet

    keep_attempts_quiet()
    try:
        return work()
    except (UploaderSettingsError, InvalidUrlError, MissingExtraError) as error:
        _fail(str(error), EXIT_USAGE)
    except DirectoryLockedError as error:
        _fail(str(error), EXIT_DIFFERENT)
    except ObjectStoreError as error:
        _fail(f"{type(error).__name__}: {error}. {_where(url)}", EXIT_STORE)
    except OSError as error:
        _fail(f"{error.strerror or error}: {error.filename}", EXIT_DIFFERENT)
    except KeyboardInterrupt:
        _fail("interrupted", EXIT_INTERRUPTED)


def _where(url: str) -> str:
    """Say where a store was looked for, and what to look at."""
    from stretto.object_store.backends.s3_options import endpoint_variable

    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() == "file":
        return f"Check that {url} is a folder that is there, and yours to read and write"
    sentence = f"Check the address {url}, the network and the credentials"
    if scheme.lower() != "s3":
        return sentence
    name = endpoint_variable()
    if name is None:
        return f"{sentence}; no endpoint is set, so it was looked for at AWS (AWS_ENDPOINT_URL)"
    return f"{sentence}; it was looked for at {os.environ[name]}, which {name} says"


def _fail(sentence: str, status: int) -> NoReturn:
    click.echo(f"rundir-uploader: {sentence}", err=True)
    sys.exit(status)


def _tell(level: str, sentence: str) -> None:
    click.echo(f"{level}: {sentence}", err=True)


def _all_refused(report: SyncReport) -> bool:
    """Whether nothing at all could be done because the store would not have it."""
    from stretto.object_store import errors

    refusals = (errors.BucketNotFoundError, errors.PermissionDeniedError, errors.TransientError)
    names = {refusal.__name__ for refusal in refusals}
    names |= {inner.__name__ for refusal in refusals for inner in refusal.__subclasses__()}
    return report.status.sent_bytes == 0 and all(
        any(name in reason for name in names) for _, reason in report.missing
    )


def _print_sync(report: SyncReport, directory: Path, url: str, *, as_json: bool) -> None:
    from rundir_uploader.keys import printable

    status = report.status
    if as_json:
        for path, reason in report.missing:
            click.echo(json.dumps({"missing": printable(path), "reason": reason}))
        summary = {
            "stored": status.stored,
            "stored_bytes": status.stored_bytes,
            "sent_bytes": status.sent_bytes,
            "missing": len(report.missing),
            "gone": status.gone,
            "retries": status.retries,
            "seconds": round(report.seconds, 3),
        }
        click.echo(json.dumps({"summary": summary}))
        return
    for path, reason in report.missing:
        click.echo(f"missing: {printable(path)}: {reason}")
    done = "everything is stored" if not report.missing else f"{len(report.missing)} missing"
    click.echo(
        f"{os.fspath(directory)} -> {url}: {done} ({status.stored} files, "
        f"{_size(status.stored_bytes)}; sent {_size(status.sent_bytes)} in {report.seconds:.1f} s)"
    )


def _print_verify(report: VerifyReport, directory: Path, url: str, *, as_json: bool) -> None:
    if as_json:
        for difference in report.differences:
            click.echo(json.dumps(difference.to_dict()))
        summary = {
            "equal": report.equal,
            "compared": report.compared,
            "bytes": report.size,
            "differences": len(report.differences),
            "unvouched": len(report.unvouched),
            "kept": report.kept,
            "others": report.others,
        }
        click.echo(json.dumps({"summary": summary}))
        return
    for difference in report.differences:
        click.echo(str(difference))
    if report.unvouched:
        click.echo(
            f"note: the store vouches for no digest of {len(report.unvouched)} object(s), such as "
            f"{report.unvouched[0]!r}; only their size was compared. Compare bytes with --download."
        )
    if report.kept:
        click.echo(f"note: {report.kept} object(s) of locally deleted files are kept in the store")
    if report.others:
        click.echo(f"note: {report.others} object(s) were stored by other nodes")
    both = f"{os.fspath(directory)} and {url}"
    if report.equal:
        click.echo(f"{both} agree: {report.compared} files, {_size(report.size)}")
    else:
        click.echo(f"{both} differ in {len(report.differences)} object(s)")


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{count} B"
