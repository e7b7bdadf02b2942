"""Compare a directory with what the store holds of it, in both directions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

from rundir_uploader.digests import bytes_match, can_compute, file_matches
from rundir_uploader.journal import journal_name, read_writer
from rundir_uploader.keys import STATE_FOLDER, join_prefix, object_key, printable
from rundir_uploader.manifest import Merged, read_merged
from rundir_uploader.pointers import follow_link
from rundir_uploader.selection import Selection
from rundir_uploader.settings import MirrorSettings
from stretto.object_store import Checksum, NotFoundError, ObjectMeta, ObjectStoreError, Store
from stretto.run_directory import FileKind, scan

_CHUNK = 1 << 20
_BATCH = 256
_EVERYTHING = Selection()


class Problem(Enum):
    """What may be wrong with an object."""

    MISSING = "missing"
    """The file is there, the object is not."""
    SIZE = "size"
    CONTENT = "content"
    EXTRA = "extra"
    """The object is there, the file is not, and nothing says that it was deleted."""
    UNREADABLE = "unreadable"
    """The file cannot be read, so nothing can be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One object that is not as it should be.

    Attributes:
        key: Its key below the URL.
        path: Relative path of the file; empty if there is none.
        problem: What is wrong.
        detail: A few words more.
    """

    key: str
    path: str
    problem: Problem
    detail: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**asdict(self), "problem": self.problem.value, "path": printable(self.path)}

    def __str__(self) -> str:
        return f"{self.problem.value}: {printable(self.key)}: {self.detail}"


@dataclass(slots=True)
class VerifyReport:
    """What a comparison found.

    Attributes:
        compared: Objects that were compared.
        size: Bytes in the files among them.
        differences: What is not as it should be, by key.
        unvouched: Keys that were compared by size only, since the store vouches for no digest.
        kept: Objects of files that were deleted locally, and are kept in the store.
        others: Objects that another node stored under the same prefix.
    """

    compared: int = 0
    size: int = 0
    differences: list[Difference] = field(default_factory=list[Difference])
    unvouched: list[str] = field(default_factory=list[str])
    kept: int = 0
    others: int = 0

    @property
    def equal(self) -> bool:
        """Whether both sides agree."""
        return not self.differences


@dataclass(frozen=True, slots=True)
class _Expected:
    """What should be under a key."""

    path: str
    size: int
    body: bytes | None = None


def verify(
    settings: MirrorSettings,
    store: Store,
    destination: str,
    *,
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Compare both sides.

    Args:
        settings: What is mirrored, and under which prefix.
        store: Where to.
        destination: URI of the store with the prefix.
        download: Compare bytes rather than digests.
        progress: Called with objects compared and objects in all.

    Raises:
        ObjectStoreError: The store cannot be reached or refuses.
        FileNotFoundError: There is no such directory.
    """
    report = VerifyReport()
    expected, unasked = _expected(settings, report)
    base = destination.removesuffix(f"/{settings.prefix}") if settings.prefix else destination
    folder = join_prefix(settings.prefix, STATE_FOLDER) + "/"
    found = {
        meta.key: meta for meta in store.list(settings.prefix) if not meta.key.startswith(folder)
    }
    merged = read_merged(store, settings.prefix)
    lock = threading.Lock()

    def compare(item: tuple[str, _Expected]) -> None:
        key, what = item
        verdict = _compare(settings, store, base, key, what, found.get(key), download)
        with lock:
            report.compared += 1
            report.size += what.size
            if verdict.problem is not None:
                report.differences.append(
                    Difference(
                        key=key, path=what.path, problem=verdict.problem, detail=verdict.detail
                    )
                )
            elif not verdict.vouched:
                report.unvouched.append(key)
            if progress is not None:
                progress(report.compared, len(expected))

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(settings.num_concurrent_uploads) as pool:
        for batch in _batches(expected.items()):
            list(pool.map(compare, batch))
    own = read_writer(settings.directory / STATE_FOLDER / journal_name(destination))
    for key in sorted(found.keys() - expected.keys() - unasked):
        if _is_asked_for(settings, key, merged):
            _judge_extra(key, merged, own, report)
    report.differences.sort(key=lambda difference: difference.key)
    return report


def _batches(items: Iterable[tuple[str, _Expected]]) -> Iterator[list[tuple[str, _Expected]]]:
    rest = iter(items)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _expected(
    settings: MirrorSettings, report: VerifyReport
) -> tuple[dict[str, _Expected], set[str]]:
    """Return what should be there, and the keys of links to files that were not asked for."""
    selection, prefix, root = settings.selection, settings.prefix, settings.root
    found: dict[str, _Expected] = {}
    links: list[str] = []
    unasked: set[str] = set()

    def on_error(error: OSError) -> None:
        report.differences.append(
            Difference(
                key=str(error.filename),
                path="",
                problem=Problem.UNREADABLE,
                detail=f"cannot be scanned: {error.strerror}",
            )
        )

    for entry in scan(root, exclude=selection.leaves_out, on_error=on_error):
        if not selection.takes_in(entry.path):
            continue
        if entry.kind is FileKind.FILE:
            key = object_key(prefix, entry.path)
            found[key] = _Expected(entry.path, entry.fingerprint.size)
        elif entry.kind is FileKind.SYMLINK:
            links.append(entry.path)
    for path in links:
        target = follow_link(root, path, selection)
        key = object_key(prefix, path, pointer=True)
        if target.path is not None and key not in found:
            body = object_key(prefix, target.path).encode()
            found[key] = _Expected(path, len(body), body)
        elif target.path is None and follow_link(root, path, _EVERYTHING).path is not None:
            unasked.add(key)
    return found, unasked


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What comparing one object gave; no problem and not vouched means only sizes were equal."""

    problem: Problem | None = None
    detail: str = ""
    vouched: bool = True


def _compare(
    settings: MirrorSettings,
    store: Store,
    base: str,
    key: str,
    what: _Expected,
    meta: ObjectMeta | None,
    download: bool,
) -> _Verdict:
    if meta is None:
        return _Verdict(Problem.MISSING, "is not in the store")
    try:
        if what.body is not None:
            return _compare_pointer(store, base, key, what.body)
        if meta.size != what.size:
            return _Verdict(Problem.SIZE, f"{meta.size} bytes in the store, {what.size} on disk")
        same = _same_content(store, meta, key, Path(settings.root, what.path), download)
    except NotFoundError:
        return _Verdict(Problem.MISSING, "vanished from the store while it was compared")
    except (FileNotFoundError, NotADirectoryError):
        return _Verdict(Problem.EXTRA, "the file vanished while it was compared")
    except PermissionError as error:
        if isinstance(error, ObjectStoreError):
            raise
        return _Verdict(Problem.UNREADABLE, f"the file cannot be read: {error.strerror}")
    if same is False:
        return _Verdict(Problem.CONTENT, "the content differs")
    return _Verdict(vouched=same is not None)


def _compare_pointer(store: Store, base: str, key: str, body: bytes) -> _Verdict:
    """Compare a link's object, seen from the root of this store or of the one it is a part of."""
    found = store.get(key).read()
    above = found.removesuffix(b"/" + body)
    if found == body or (
        above != found and base.encode("utf-8", "surrogateescape").endswith(b"/" + above)
    ):
        return _Verdict()
    return _Verdict(Problem.CONTENT, "names another target than the link on disk")


def _same_content(
    store: Store, meta: ObjectMeta, key: str, path: Path, download: bool
) -> bool | None:
    """Compare contents; None where the store vouches for no digest that can be computed here."""
    if download:
        return _same_bytes(store, key, path)
    checksum = meta.checksum or store.checksum(key)
    if checksum is None or not can_compute(checksum.algorithm):
        return None
    return _has_checksum(path, checksum)


def _has_checksum(path: Path, checksum: Checksum) -> bool:
    if path.stat().st_size == 0 and checksum.algorithm != "md5-parts":
        return bytes_match(b"", checksum)
    return file_matches(path, checksum)


def _same_bytes(store: Store, key: str, path: Path) -> bool:
    with store.get(key) as found, path.open("rb") as file:
        for chunk in found:
            if file.read(len(chunk)) != chunk:
                return False
        return not file.read(1)


def _is_asked_for(settings: MirrorSettings, key: str, merged: Merged) -> bool:
    """Whether the selection does not leave out, by the caller's wish, the file of an object."""
    record = merged.keys.get(key)
    path = record.path if record is not None else key.removeprefix(f"{settings.prefix}/")
    return settings.selection.covers(path) or not _EVERYTHING.covers(path)


def _judge_extra(key: str, merged: Merged, own: str | None, report: VerifyReport) -> None:
    record = merged.keys.get(key)
    if record is not None and record.deleted_at is not None:
        report.kept += 1
    elif record is not None and own is not None and merged.writers.get(record.path) != own:
        report.others += 1
    else:
        report.differences.append(
            Difference(
                key=key,
                path="",
                problem=Problem.EXTRA,
                detail="is in the store, and there is no such file",
            )
        )
