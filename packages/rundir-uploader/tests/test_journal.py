"""The journal survives being cut anywhere, and a disk that fills up."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rundir_uploader.journal import Journal, decode_lines, journal_name, read_writer
from rundir_uploader.records import Record, RecordKind
from stretto.run_directory import Fingerprint

numbers = st.integers(0, 2**63)
names = st.binary(min_size=1, max_size=8).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"_")))
records = st.builds(
    Record,
    path=names,
    kind=st.sampled_from(RecordKind),
    fingerprint=st.builds(Fingerprint, numbers, numbers, numbers, numbers),
    size=numbers,
    sha256=st.text("0123456789abcdef", max_size=64),
    head_crc=numbers,
    tail_crc=numbers,
    mode=numbers,
    target=st.none() | names,
    stored_at=st.floats(0, 1e10),
    deleted_at=st.none() | st.floats(0, 1e10),
)


def record(path: str, size: int = 1) -> Record:
    return Record(
        path, RecordKind.FILE, Fingerprint(size, 1, 2, 3), size, "ab", 4, 5, 0o644, None, 6.0
    )


@given(records)
def test_a_record_survives_its_own_form(one: Record) -> None:
    assert Record.from_row(one.to_row()) == one
    assert json.loads(one.to_json("r")) == ["r", *one.to_row()]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(records, st.booleans()), max_size=8), st.data())
def test_torn_at_any_byte_it_is_read_to_its_last_whole_record(
    steps: list[tuple[Record, bool]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal")
        journal = Journal(path, "s3://b/p")
        states = [(path.stat().st_size, {}, journal.writer)]
        for one, keep in steps:
            journal.put(one)
            if not keep:
                journal.forget(one.path)
            journal.sync()
            states.append((path.stat().st_size, dict(journal.records), journal.writer))
        journal.close()
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        damage = data.draw(st.sampled_from(["cut", "flip", "garbage"]))
        if damage == "flip" and cut < len(whole):
            torn = whole[:cut] + bytes([whole[cut] ^ 0x40]) + whole[cut + 1 :]
        elif damage == "garbage":
            torn = whole[:cut] + b"\0\xff\n\n not a line"
        else:
            torn = whole[:cut]
        path.write_bytes(torn)
        expected = expected_records(torn)
        again = Journal(path, "s3://b/p")
        assert again.records == expected
        again.put(record("after"))
        again.close()
        third = Journal(path, "s3://b/p")
        assert third.records == {**expected, "after": record("after")}
        third.close()


def expected_records(data: bytes) -> dict[str, Record]:
    """Replay by hand, line by line, as far as lines are whole."""
    import zlib

    found: dict[str, Record] = {}
    first = True
    for line in data.split(b"\n")[:-1]:
        try:
            checksum, body = line[:8], line[9:]
            if line[8:9] != b" " or int(checksum, 16) != zlib.crc32(body):
                break
            row = json.loads(body)
        except ValueError:
            break
        if first:
            first = False
            continue
        if row[0] == "r":
            one = Record.from_row(row[1:])
            found[one.path] = one
        else:
            found.pop(row[1], None)
    return found


def test_a_journal_of_another_destination_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = Journal(path, "s3://one")
    first.put(record("a"))
    first.close()
    second = Journal(path, "s3://two")
    assert second.records == {}
    assert second.writer == first.writer, "one directory, one name"
    assert journal_name("s3://one") != journal_name("s3://two")


def test_a_directory_keeps_its_name_when_its_journal_is_lost(tmp_path: Path) -> None:
    first = Journal(tmp_path / "journal", "d")
    assert first.writer_is_new
    first.close()
    (tmp_path / "journal").write_bytes(b"torn")
    second = Journal(tmp_path / "journal", "d")
    assert (second.writer, second.writer_is_new) == (first.writer, False)


def test_what_changed_after_the_last_manifest_is_known_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, "d")
    journal.put(record("a"))
    taken = journal.take_unmarked()
    assert taken == {"a"}
    journal.put(record("b"))  # while the manifest is being written
    journal.set_mark(7)
    journal.put(record("c"))
    journal.close()
    again = Journal(path, "d")
    assert (again.mark, again.unmarked) == (7, {"b", "c"})
    assert set(again.records) == {"a", "b", "c"}


def test_it_is_rewritten_when_most_of_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, "d")
    for number in range(3000):
        journal.put(record("same", number))
    journal.close()
    large = path.stat().st_size
    again = Journal(path, "d")
    assert path.stat().st_size < large / 100
    assert again.records == {"same": record("same", 2999)}
    assert again.writer == journal.writer == read_writer(path)
    assert path.stat().st_mode & 0o777 == 0o600
    again.close()


def test_it_does_not_grow_without_end_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, "d")
    sizes = []
    for turn in range(6):
        for number in range(10_000):
            journal.put(record("same", turn * 10_000 + number))
        journal.sync()
        sizes.append(path.stat().st_size)
    assert max(sizes) < 30_000 * 150
    assert min(sizes) < 1000, "it was rewritten at least once"
    journal.close()
    assert Journal(path, "d").records == {"same": record("same", 59_999)}


def test_a_full_disk_costs_nothing_but_memory(tmp_path: Path) -> None:
    """In a process of its own, whose files may not grow past 2,000 bytes at first."""
    code = f"""
import resource, signal
from pathlib import Path
from rundir_uploader.journal import Journal
from rundir_uploader.records import Record, RecordKind
from stretto.run_directory import Fingerprint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
path = Path({str(tmp_path / "journal")!r})
def put(journal, n):
    one = Fingerprint(1, 1, 1, 1)
    journal.put(Record(f"f{{n}}", RecordKind.FILE, one, 1, "", 0, 0, 0, None, 0.0))
journal = Journal(path, "d")
for n in range(100):
    put(journal, n)
journal.sync()
assert journal.trouble is not None and len(journal.records) == 100
known = len(Journal(path, "d").records)
assert 0 < known < 100, known
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
journal.sync()
assert journal.trouble is None
put(journal, 100)
journal.close()
assert len(Journal(path, "d").records) == 101
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] != 0
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_lines_say_where_they_end(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, "d")
    journal.put(record("a"))
    journal.close()
    data = path.read_bytes()
    assert [offset for offset, _ in decode_lines(data)][-1] == len(data)


def test_a_link_in_the_journals_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "journal").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        Journal(tmp_path / "journal", "d")
    assert victim.read_text() == "precious"
