"""Compare what the journal says with what the store holds."""

from __future__ import annotations

from rundir_uploader.journal import Journal
from rundir_uploader.keys import object_key
from rundir_uploader.manifest import read_merged
from rundir_uploader.planner import is_gone
from rundir_uploader.records import Record, RecordKind
from stretto.object_store import Store
from stretto.object_store.errors import CorruptedError


def forget_missing(store: Store, prefix: str, journal: Journal) -> list[str]:
    """Forget what the store does not hold, or of which its own manifests do not say the same.

    Asked where the store is not the one, or not in the state, that the journal remembers.

    Args:
        store: Where; its objects are listed.
        prefix: Before every key.
        journal: What is thought to be stored.

    Returns:
        The paths that were forgotten.

    Raises:
        ObjectStoreError: The store refuses.
    """
    sizes = {meta.key: meta.size for meta in store.list(prefix)}
    try:
        told = read_merged(store, prefix).records
    except CorruptedError:
        told = {}
    wrong = [
        path
        for path, record in journal.snapshot().items()
        if record.kind.has_object
        and (
            sizes.get(_key(prefix, record)) != record.size
            or path not in told
            or told[path].sha256 != record.sha256
        )
    ]
    for path in wrong:
        journal.forget(path)
    return wrong


def adopt(root: str, store: Store, prefix: str, journal: Journal) -> int:
    """Fill an empty journal from the manifests in the store, for paths that are here.

    Whatever was changed since is compared by content later, so nothing is sent twice.

    Args:
        root: The mirrored directory.
        store: Where.
        prefix: Before every key.
        journal: Has no record yet.

    Returns:
        How many records were taken over.

    Raises:
        ObjectStoreError: The store refuses, or a manifest is damaged.
    """
    taken = 0
    for path, record in read_merged(store, prefix).records.items():
        if record.kind.has_object and record.deleted_at is None and not is_gone(root, path):
            journal.put(record)
            taken += 1
    return taken


def _key(prefix: str, record: Record) -> str:
    return object_key(prefix, record.path, pointer=record.kind is RecordKind.POINTER)
