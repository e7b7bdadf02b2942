"""What the store says of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rundir_uploader.journal import Journal
from rundir_uploader.manifest import (
    MAX_DELTAS,
    ManifestHead,
    ManifestWriter,
    decode_rows,
    encode_rows,
    find_writers,
    read_head,
    read_merged,
    read_records,
)
from rundir_uploader.records import Record, RecordKind
from stretto.object_store import CorruptedError, MemoryStore, TransientError
from stretto.run_directory import Fingerprint


def record(path: str, when: float = 1.0, size: int = 10) -> Record:
    return Record(
        path, RecordKind.FILE, Fingerprint(size, 1, 2, 3), size, "ab", 1, 2, 0o100644, None, when
    )


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal", "memory://x")


def parts(store: MemoryStore) -> list[str]:
    return sorted(meta.key.rpartition("/")[2] for meta in store.list("p/.rundir-uploader"))


def test_what_was_written_is_read_back(journal) -> None:
    store = MemoryStore()
    writer = ManifestWriter(store, "p", journal)
    for number in range(5):
        journal.put(record(f"f{number}"))
    assert writer.write(pending=2, finished=False)
    journal.put(record("f1", size=99))
    journal.forget("f2")
    assert writer.write(pending=0, finished=True)
    assert not writer.write(pending=0, finished=True), "nothing new to say"
    (name,) = find_writers(store, "p")
    head = read_head(store, "p", name)
    assert head == ManifestHead(
        writer=journal.writer,
        sequence=2,
        snapshot="snapshot-1.jsonl.gz",
        deltas=("delta-2.jsonl.gz",),
        host=head.host,
        updated_at=head.updated_at,
        finished=True,
        pending=0,
        files=4,
        size=129,
        token=head.token,
        ancestors=head.ancestors,
    )
    assert read_records(store, "p", head) == journal.records
    assert read_head(store, "p", "nobody") is None


def test_deltas_are_bounded_and_old_parts_are_removed(journal) -> None:
    store = MemoryStore()
    writer = ManifestWriter(store, "p", journal)
    for number in range(400):
        journal.put(record(f"f{number % 50}", size=number))
        writer.write(pending=0, finished=False)
        assert len(parts(store)) <= MAX_DELTAS + 2
    (name,) = find_writers(store, "p")
    assert read_records(store, "p", read_head(store, "p", name)) == journal.records


def test_traffic_stays_proportionate(journal) -> None:
    """A thousand known files, then one that changes 100 times: no thousand rows each time."""
    store = MemoryStore()
    writer = ManifestWriter(store, "p", journal)
    for number in range(1000):
        journal.put(record(f"some/longer/path/f{number}"))
    writer.write(pending=0, finished=False)
    base = writer.sent
    for number in range(100):
        journal.put(record("log", size=number))
        writer.write(pending=0, finished=False)
    assert writer.sent - base < 100 * 1200


def test_a_restart_goes_on_with_the_same_manifest(journal, tmp_path) -> None:
    store = MemoryStore()
    journal.put(record("a"))
    ManifestWriter(store, "p", journal).write(pending=0, finished=True)
    journal.put(record("b"))
    journal.close()
    again = Journal(tmp_path / "journal", "memory://x")
    writer = ManifestWriter(store, "p", again)
    assert writer.open()
    writer.write(pending=0, finished=True)
    merged = read_merged(store, "p")
    assert len(merged.heads) == 1
    assert merged.records == again.records
    assert parts(store) == ["delta-2.jsonl.gz", "head.json", "snapshot-1.jsonl.gz"]


def test_a_journal_that_lost_its_end_learns_from_the_manifest(journal, tmp_path) -> None:
    store = MemoryStore()
    journal.put(record("a"))
    journal.sync()
    before = (tmp_path / "journal").read_bytes()
    journal.put(record("b"))
    ManifestWriter(store, "p", journal).write(pending=0, finished=True)
    journal.close()
    (tmp_path / "journal").write_bytes(before)
    again = Journal(tmp_path / "journal", "memory://x")
    assert set(again.records) == {"a"}
    assert ManifestWriter(store, "p", again).open()
    assert again.records == journal.records


def test_a_store_that_lost_the_manifest_is_not_trusted(journal) -> None:
    journal.put(record("a"))
    ManifestWriter(MemoryStore(), "p", journal).write(pending=0, finished=True)
    assert not ManifestWriter(MemoryStore(), "p", journal).open()


def test_a_failed_write_is_made_good_by_the_next(journal, watched) -> None:
    store = watched(MemoryStore())
    writer = ManifestWriter(store, "p", journal)
    journal.put(record("a"))
    store.fail = lambda key: TransientError("no") if key.endswith("head.json") else None
    with pytest.raises(TransientError):
        writer.write(pending=0, finished=False)
    assert find_writers(store.inner, "p") == []
    store.fail = lambda _key: None
    assert writer.write(pending=0, finished=False)
    assert read_merged(store.inner, "p").records == journal.records


def test_of_two_writers_the_newer_word_counts(tmp_path) -> None:
    store = MemoryStore()
    for name, when in (("one", 5.0), ("two", 9.0)):
        (tmp_path / name).mkdir()
        journal = Journal(tmp_path / name / "journal", name)
        journal.put(record("shared", when))
        journal.put(record(f"only-{name}", when))
        ManifestWriter(store, "p", journal).write(pending=0, finished=True)
    merged = read_merged(store, "p")
    assert set(merged.records) == {"shared", "only-one", "only-two"}
    assert merged.records["shared"].stored_at == 9.0
    assert set(merged.keys) == {"p/shared", "p/only-one", "p/only-two"}


def test_damaged_and_later_formats_are_refused() -> None:
    good = ManifestHead(writer="w", sequence=1).encode()
    assert ManifestHead.decode(good, where="x").writer == "w"
    later = json.loads(good)
    later["version"] = 99
    for data in (b"", b"{}", b"[]", b"\xff", json.dumps(later).encode()):
        with pytest.raises(CorruptedError):
            ManifestHead.decode(data, where="x")
    assert decode_rows(encode_rows(['["x","a"]'])) == [["x", "a"]]
    with pytest.raises(CorruptedError):
        decode_rows(b"not gzip")
