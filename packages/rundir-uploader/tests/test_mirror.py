"""The machine in threads, against real stores that can be slow or refuse."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from rundir_uploader import IncompleteUploadError, Pacing, Uploader
from rundir_uploader.manifest import read_merged
from stretto.object_store import (
    CredentialsError,
    MemoryStore,
    PermissionDeniedError,
    PrefixStore,
    TransientError,
)


def mirror(run: Path, store, quick: Pacing, **settings) -> Uploader:
    return Uploader(run, store, use_procs=False, pacing=quick, **settings)


def contents_as_files(store) -> dict[str, bytes]:
    return {k: v for k, v in store.contents().items() if not k.endswith(".symlink")}


def test_everything_on_disk_is_in_the_store_after_close(run, store, quick, files_of) -> None:
    (run / "before").write_text("was there before the start")
    (run / "empty.txt").touch()
    (run / "large").write_bytes(os.urandom(9 << 20))
    with mirror(run, store, quick) as uploader:
        (run / "a" / "b").mkdir(parents=True)
        (run / "a" / "b" / "c").write_text("deep")
        uploader.trigger()
        (run / "last").write_text("written just before the end")
    assert store.contents() == files_of(run)
    assert uploader.status().stored == 5
    assert uploader.status().state == "finished"


def test_flush_returns_when_all_is_stored_and_the_mirror_goes_on(run, store, quick) -> None:
    with mirror(run, store, quick) as uploader:
        (run / "a").write_text("1")
        uploader.flush()
        assert store.contents() == {"a": b"1"}
        (run / "a").write_text("22")
        uploader.flush()
        assert store.contents() == {"a": b"22"}


def test_a_scan_comes_by_itself_when_nobody_asks(run, store, quick, eventually) -> None:
    with mirror(run, store, quick, scan_interval=0.1):
        (run / "a").write_text("1")
        eventually(lambda: store.contents() == {"a": b"1"})


def test_newest_version_wins_when_uploads_overlap(run, store, quick, eventually) -> None:
    store.delay = lambda _key, data: 1.0 if data == b"v1" else 0.0
    with mirror(run, store, quick) as uploader:
        (run / "f").write_text("v1")
        uploader.trigger()
        eventually(lambda: "f" in store.in_flight)
        (run / "f").write_text("v2")
        uploader.trigger()
        uploader.flush()
        assert store.contents() == {"f": b"v2"}
    assert store.overlaps == []
    assert [data for key, data in store.puts if key == "f"] == [b"v1", b"v2"]


def test_a_pointer_is_stored_after_its_target(run, store, quick) -> None:
    store.delay = lambda key, _data: 0.5 if key == "ep2.pt" else 0.0
    (run / "ep1.pt").write_text("one")
    (run / "latest.pt").symlink_to("ep1.pt")
    with mirror(run, store, quick, prefix="p") as uploader:
        store.delay = lambda key, _data: 0.5 if key == "p/ep2.pt" else 0.0
        uploader.flush()
        (run / "ep2.pt").write_text("two")
        (run / "new").symlink_to("ep2.pt")
        (run / "new").replace(run / "latest.pt")
        uploader.trigger()
    assert store.keys_put() == [
        "p/ep1.pt",
        "p/latest.pt.symlink",
        "p/ep2.pt",
        "p/latest.pt.symlink",
    ]
    assert store.contents()["p/latest.pt.symlink"] == b"p/ep2.pt"


def test_a_pointer_waits_when_its_target_fails_and_others_do_not(run, store, quick) -> None:
    """One file that can never be stored does not hold back another file's pointer."""
    store.fail = lambda key: PermissionDeniedError("no") if key == "bad.pt" else None
    (run / "bad.pt").write_text("bad")
    (run / "good.pt").write_text("good")
    (run / "to-bad").symlink_to("bad.pt")
    (run / "to-good").symlink_to("good.pt")
    with pytest.raises(IncompleteUploadError) as caught, mirror(run, store, quick):
        pass
    assert set(store.contents()) == {"good.pt", "to-good.symlink"}
    reasons = dict(caught.value.missing)
    assert set(reasons) == {"bad.pt", "to-bad"}
    assert "PermissionDenied" in reasons["bad.pt"]
    assert "bad.pt" in reasons["to-bad"]


def test_the_index_of_a_sharded_checkpoint_comes_last(run, store, quick) -> None:
    folder = run / "ep1-shards"
    folder.mkdir()
    store.delay = lambda key, _data: 0.3 if key.endswith("_2.distcp") else 0.0
    for rank in range(5):
        (folder / f"__{rank}_0.distcp").write_bytes(os.urandom(1000))
        (folder / f"!{rank}_2.distcp").write_bytes(os.urandom(1000))
    (folder / ".metadata").write_bytes(b"index")
    with mirror(run, store, quick):
        pass
    assert store.keys_put()[-1] == "ep1-shards/.metadata"
    assert len(store.keys_put()) == 11


def test_a_pointer_file_comes_after_what_it_names(run, store, quick) -> None:
    """Where a file system has no links, a text file called *.symlink stands for one."""
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "a-latest.symlink").write_text("ep1.pt")
    (run / "checkpoints" / "ep1.pt").write_bytes(b"data")
    store.delay = lambda key, _data: 0.3 if key.endswith("ep1.pt") else 0.0
    with mirror(run, store, quick):
        pass
    assert store.keys_put() == ["checkpoints/ep1.pt", "checkpoints/a-latest.symlink"]


def test_pointers_that_point_to_each_other_do_not_wait_for_ever(run, store, quick) -> None:
    (run / "link").symlink_to("p.symlink")
    (run / "p.symlink").write_text("link")
    (run / "q.symlink").write_text("p.symlink")
    (run / "to-index").symlink_to(".metadata")
    (run / ".metadata").write_text("index")
    with mirror(run, store, quick) as uploader:
        uploader.flush(timeout=20)
    assert len(store.contents()) == 5


def test_links_that_lead_elsewhere_are_recorded_and_not_followed(
    run, store, quick, tmp_path, caplog
) -> None:
    outside = tmp_path / "secret"
    outside.write_text("secret")
    (run / "folder").mkdir()
    (run / "folder" / "f").write_text("x")
    (run / "out").symlink_to(outside)
    (run / "dir").symlink_to("folder")
    (run / "loop").symlink_to("loop")
    (run / "dangling").symlink_to("nowhere")
    os.mkfifo(run / "fifo")
    (run / "void" / "inner").mkdir(parents=True)
    with mirror(run, store, quick) as uploader:
        uploader.flush()
        uploader.flush()
    assert set(store.contents()) == {"folder/f"}
    records = read_merged(store, "").records
    assert {path: record.kind.value for path, record in records.items()} == {
        "folder/f": "file",
        "out": "link",
        "dir": "link",
        "loop": "link",
        "dangling": "link",
        "fifo": "special",
        "void/inner": "empty_directory",
    }
    assert records["dangling"].target == "nowhere"
    assert records["out"].target == str(outside)
    warnings = [r.message for r in caplog.records if "dangling" in r.message]
    assert len(warnings) == 1, "one warning, however often it is scanned"


def test_an_absolute_link_into_the_directory_is_a_pointer(run, store, quick) -> None:
    (run / "f").write_text("x")
    (run / "abs").symlink_to(run / "f")
    with mirror(run, store, quick):
        pass
    assert store.contents()["abs.symlink"] == b"f"


def test_names_that_are_not_utf8_are_stored_under_escaped_keys(run, store, quick) -> None:
    raw = os.fsencode(run) + b"/caf\xe9\n"
    Path(os.fsdecode(raw)).write_text("x")
    with mirror(run, store, quick):
        pass
    (key,) = store.contents()
    assert key.startswith("caf%E9%0A~")
    (record,) = read_merged(store, "").records.values()
    assert os.fsencode(record.path) == b"caf\xe9\n"


def test_a_deleted_file_is_kept_and_marked(run, store, quick) -> None:
    (run / "old").write_text("kept")
    with mirror(run, store, quick) as uploader:
        uploader.flush()
        (run / "old").unlink()
        uploader.flush()
        assert store.contents() == {"old": b"kept"}
        assert read_merged(store, "").records["old"].deleted_at is not None
        assert uploader.status().stored == 0
        (run / "old").write_text("kept")
        uploader.flush()
        assert read_merged(store, "").records["old"].deleted_at is None
        assert store.keys_put() == ["old"], "the same content is not sent again"


def test_a_file_deleted_before_it_was_stored_is_gone_not_missing(run, store, quick) -> None:
    store.fail = lambda key: TransientError("later") if key == "brief" else None
    (run / "brief").write_text("x")
    (run / "stays").write_text("y")
    with mirror(run, store, quick) as uploader:
        uploader.trigger()
        time.sleep(0.2)
        (run / "brief").unlink()
    assert set(store.contents()) == {"stays"}
    assert uploader.status().gone == 1


def test_a_file_that_became_a_folder_and_back(run, local, quick, files_of) -> None:
    """A local store cannot hold both 'a' and 'a/b'; what was deleted makes way."""
    (run / "a").write_text("file")
    with mirror(run, local, quick) as uploader:
        uploader.flush()
        (run / "a").unlink()
        (run / "a").mkdir()
        (run / "a" / "b").write_text("inner")
        uploader.flush()
        assert local.contents() == files_of(run)
        (run / "a" / "b").unlink()
        (run / "a").rmdir()
        (run / "a").write_text("file again")
        uploader.flush()
        assert local.contents() == files_of(run)


def test_a_file_that_became_a_link_leaves_no_old_object(run, store, quick) -> None:
    (run / "target").write_text("t")
    (run / "x").write_text("file")
    with mirror(run, store, quick) as uploader:
        uploader.flush()
        (run / "x").unlink()
        (run / "x").symlink_to("target")
        uploader.flush()
        assert set(store.contents()) == {"target", "x.symlink"}
        (run / "x").unlink()
        (run / "x").write_text("again")
        uploader.flush()
        assert store.contents() == {"target": b"t", "x": b"again"}


def test_renames_with_old_times_and_rewrites_with_same_size_and_mtime_count(
    run, store, quick, files_of, tmp_path
) -> None:
    (run / "f").write_text("aaaa")
    times = (1_000_000_000, 1_000_000_000)
    os.utime(run / "f", ns=times)
    with mirror(run, store, quick) as uploader:
        uploader.flush()
        with (run / "f").open("r+") as file:
            file.write("bbbb")
        os.utime(run / "f", ns=times)
        (tmp_path / "old").write_text("old times")
        os.utime(tmp_path / "old", ns=times)
        (tmp_path / "old").rename(run / "moved")
        whole = tmp_path / "tree" / "deep"
        whole.mkdir(parents=True)
        (whole / "leaf").write_text("leaf")
        (tmp_path / "tree").rename(run / "tree")
        uploader.flush()
        assert store.contents() == files_of(run)


def test_a_touched_file_is_not_sent_again(run, store, quick) -> None:
    (run / "small").write_text("x")
    (run / "large").write_bytes(os.urandom(6 << 20))
    with mirror(run, store, quick) as uploader:
        uploader.flush()
        (run / "small").touch()
        (run / "large").chmod(0o600)
        uploader.flush()
    assert sorted(store.keys_put()) == ["large", "small"]


def test_a_restart_sends_only_what_is_not_there(run, store, quick) -> None:
    (run / "a").write_text("a")
    with mirror(run, store, quick):
        pass
    (run / "b").write_text("b")
    with mirror(run, store, quick):
        pass
    assert store.keys_put() == ["a", "b"]
    before = len(store.puts)
    with mirror(run, store, quick):
        pass
    assert [key for key, _ in store.puts[before:] if "/probe-" not in key] == []


def test_without_a_journal_the_manifest_in_the_store_tells(run, store, quick, files_of) -> None:
    for number in range(20):
        (run / f"f{number}").write_text(str(number))
    with mirror(run, store, quick, prefix="p"):
        pass
    for path in (run / ".rundir-uploader").iterdir():
        path.unlink()
    (run / "f3").write_text("changed")
    before = len(store.keys_put())
    with mirror(run, store, quick, prefix="p"):
        pass
    assert store.keys_put()[before:] == ["p/f3"]
    assert len(read_merged(store, "p").heads) == 2


def test_an_emptied_store_is_noticed_and_filled_again(run, store, quick, files_of) -> None:
    (run / "a").write_text("a")
    with mirror(run, store, quick):
        pass
    for meta in list(store.inner.list()):
        store.inner.delete(meta.key)
    (run / "b").write_text("b")
    with mirror(run, store, quick):
        pass
    assert store.contents() == files_of(run)


def test_two_destinations_have_journals_of_their_own(run, watched, quick, files_of) -> None:
    (run / "a").write_text("a")
    first, second = watched(MemoryStore()), watched(PrefixStore(MemoryStore(), "elsewhere"))
    for store in (first, second):
        with mirror(run, store, quick):
            pass
    assert first.contents() == second.contents() == files_of(run)


def test_an_outage_is_survived_and_told_once(run, store, quick, files_of, caplog) -> None:
    """A3: dropped connections are retried, the run goes on, the object arrives."""
    down = threading.Event()
    store.fail = lambda _key: TransientError("connection refused") if down.is_set() else None
    with mirror(run, store, quick) as uploader:
        down.set()
        for number in range(10):
            (run / f"f{number}").write_text(str(number))
        uploader.trigger()
        deadline = time.monotonic() + 20
        while uploader.status().retries < 12 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert uploader.status().pending == 10
        assert uploader.status().lag > 0
        down.clear()
    assert store.contents() == files_of(run)
    told = [record.message for record in caplog.records if "could not be stored" in record.message]
    assert len([line for line in told if "manifest" not in line]) == 1


def test_a_put_that_arrived_and_failed_is_simply_repeated(run, store, quick, files_of) -> None:
    """A11: the object is there, the answer was lost; the retry does not trip over it."""
    once = iter([TransientError("lost answer")])
    store.fail_after = lambda key: next(once, None) if key == "a" else None
    (run / "a").write_text("a")
    with mirror(run, store, quick):
        pass
    assert store.contents() == files_of(run)


def test_a_refusing_store_ends_a_flush_at_once_with_the_list(run, store, quick) -> None:
    store.fail = lambda _key: CredentialsError("expired")
    (run / "a").write_text("a")
    uploader = mirror(run, store, quick)
    with pytest.raises(CredentialsError):
        uploader.start()
    store.fail = lambda key: CredentialsError("expired") if key == "a" else None
    uploader = mirror(run, store, quick).start()
    began = time.monotonic()
    with pytest.raises(IncompleteUploadError, match="expired") as caught:
        uploader.flush()
    assert time.monotonic() - began < 5
    assert [path for path, _ in caught.value.missing] == ["a"]
    store.fail = lambda _key: None  # somebody renewed them
    uploader.close()
    assert store.contents() == {"a": b"a"}


def test_a_flush_gives_up_when_nothing_succeeds_for_long(run, store, quick) -> None:
    store.fail = lambda key: TransientError("down") if key == "a" else None
    (run / "a").write_text("a")
    uploader = mirror(run, store, quick, no_progress_timeout=1.0).start()
    with pytest.raises(IncompleteUploadError, match="nothing could be stored for 1 s"):
        uploader.close()


def test_a_flush_waits_while_anything_succeeds(run, store, quick) -> None:
    store.delay = lambda _key, _data: 0.15
    for number in range(40):
        (run / f"f{number}").write_text("x")
    with mirror(run, store, quick, no_progress_timeout=1.0) as uploader:
        began = time.monotonic()
        uploader.flush()
        assert time.monotonic() - began > 1.2
    assert len(store.contents()) == 40


def test_a_flush_with_a_timeout_says_what_is_missing(run, store, quick) -> None:
    store.delay = lambda key, _data: 1.5 if key == "a" else 0.0
    (run / "a").write_text("a")
    uploader = mirror(run, store, quick).start()
    with pytest.raises(IncompleteUploadError, match=r"not stored within 0\.3 s"):
        uploader.flush(timeout=0.3)
    uploader.close()
    assert store.contents() == {"a": b"a"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(run, store, quick) -> None:
    (run / "mine").write_text("x")
    (run / "mine").chmod(0)
    with pytest.raises(IncompleteUploadError, match="cannot be read"), mirror(run, store, quick):
        pass


def test_a_name_too_long_for_a_key_is_named_as_missing(run, store, quick) -> None:
    folder = run
    for _ in range(5):
        folder = folder / ("d" * 230)
        folder.mkdir()
    (folder / "f").write_text("x")
    (run / "ok").write_text("ok")
    with pytest.raises(IncompleteUploadError, match="InvalidKeyError"), mirror(run, store, quick):
        pass
    assert store.contents() == {"ok": b"ok"}


def test_a_vanished_directory_is_an_error_and_marks_nothing_deleted(run, store, quick) -> None:
    (run / "a").write_text("a")
    uploader = mirror(run, store, quick).start()
    uploader.flush()
    moved = run.with_name("moved")
    run.rename(moved)
    with pytest.raises(IncompleteUploadError, match="cannot be scanned"):
        uploader.flush()
    moved.rename(run)
    uploader.close()
    assert read_merged(store, "").records["a"].deleted_at is None


def test_a_growing_file_is_sent_in_steps(run, store) -> None:
    """A8: 100 appends of 1 KB with a trigger after each cost a few times 100 KB, not 5 MB."""
    pacing = Pacing(settle=0.0, max_settle=0.0)
    with mirror(run, store, pacing) as uploader:
        for _ in range(100):
            with (run / "log").open("a") as file:
                file.write("x" * 1023 + "\n")
            uploader.trigger()
            time.sleep(0.03)
    sent = sum(len(data) for _, data in store.puts)
    assert store.contents()["log"] == (run / "log").read_bytes()
    assert sent <= 5 * 102_400, "manifest included"
    assert len(store.keys_put()) >= 5, "but it was sent now and then"


def test_an_old_growing_file_is_sent_after_a_while(run, store, eventually) -> None:
    pacing = Pacing(settle=0.0, max_settle=0.0, max_age=0.5)
    (run / "log").write_text("x" * 10_000)
    with mirror(run, store, pacing, scan_interval=0.05) as uploader:
        uploader.flush()
        with (run / "log").open("a") as file:
            file.write("tail")
        eventually(lambda: uploader.status().lag > 0.2)
        assert store.keys_put() == ["log"]
        eventually(lambda: len(store.keys_put()) == 2)


def test_a_file_rewritten_a_little_larger_is_not_taken_for_a_growing_one(
    run, store, quick, eventually
) -> None:
    (run / "best.pt").write_bytes(os.urandom(100_000))
    with mirror(run, store, quick, scan_interval=0.1) as uploader:
        uploader.flush()
        with (run / "best.pt").open("r+b") as file:
            file.write(os.urandom(100_100))
        eventually(lambda: store.contents()["best.pt"] == (run / "best.pt").read_bytes())


def test_a_file_that_never_rests_is_stored_as_a_whole_prefix(run, store, quick) -> None:
    stop = threading.Event()

    def append() -> None:
        with (run / "log").open("ab", buffering=0) as file:
            number = 0
            while not stop.is_set():
                file.write(f"{number:07d}\n".encode())
                number += 1
                time.sleep(0.0005)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        time.sleep(0.2)
        with mirror(run, store, quick) as uploader:
            for _ in range(5):
                uploader.flush()
                stored = store.contents()["log"]
                assert (run / "log").read_bytes().startswith(stored)
                assert len(stored) > 0
    finally:
        stop.set()
        thread.join()


def test_a_file_in_a_slow_upload_that_changes_is_stored_anew(run, store, quick, files_of) -> None:
    """A17: changed while it is sent means sent again, never recorded as done."""
    (run / "large").write_bytes(os.urandom(12 << 20))
    changed = threading.Event()

    def delay(key: str, _data: bytes) -> float:
        if key == "large" and not changed.is_set():
            changed.set()
            with (run / "large").open("r+b") as file:
                file.truncate(7 << 20)
                file.write(b"changed")
        return 0.0

    store.delay = delay
    with mirror(run, store, quick):
        pass
    assert changed.is_set()
    assert store.contents() == files_of(run)


def test_a_link_whose_target_is_gone_before_it_was_stored_is_no_more_waited_for(
    run, store, quick
) -> None:
    store.fail = lambda key: TransientError("later") if key in ("goal", "file") else None
    (run / "goal").write_text("x")
    (run / "latest").symlink_to("goal")
    (run / "file").write_text("x")
    with mirror(run, store, quick) as uploader:
        time.sleep(0.3)
        assert uploader.status().pending == 3
        (run / "goal").unlink()
        (run / "file").unlink()
        (run / "file").mkdir()
        uploader.flush(timeout=10)
        records = read_merged(store, "").records
        assert {path: record.kind.value for path, record in records.items()} == {
            "latest": "link",
            "file": "empty_directory",
        }


def test_exclusions_and_inclusions(run, store, quick) -> None:
    for name in ("a.pt", "a.log", "b.tmp", ".hidden"):
        (run / name).write_text(name)
    with mirror(run, store, quick, exclude=["*.log"], hidden=False):
        pass
    assert set(store.contents()) == {"a.pt"}


def test_blocking_staging_stores_what_was_there_at_the_trigger(
    run, store, quick, tmp_path, eventually
) -> None:
    """The original's behaviour: a version that is replaced right after the trigger arrives."""
    gate = threading.Event()
    store.delay = lambda key, _data: 0.0 * (key == "f" and gate.wait(10))
    with mirror(
        run, store, quick, staging="blocking", upload_staging_folder=tmp_path / "stage"
    ) as uploader:
        (run / "f").write_text("version 1")
        uploader.trigger()
        (run / "f").write_text("version 2, quite another")
        gate.set()
        uploader.flush()
        assert [data for key, data in store.puts if key == "f"] == [
            b"version 1",
            b"version 2, quite another",
        ]
        eventually(
            lambda: not [path for path in (tmp_path / "stage").rglob("*") if path.is_file()],
            what="a copy is removed when it is stored",
        )


def test_staging_beyond_its_cap_reads_from_where_files_lie(run, store, quick, caplog) -> None:
    from rundir_uploader.planner import entry_at
    from rundir_uploader.settings import Staging
    from rundir_uploader.staging import Stager

    (run / ".rundir-uploader").mkdir()
    (run / "a").write_bytes(b"x" * 100)
    said: list[str] = []
    stager = Stager(Staging(blocking=True, cap=150), str(run), said.append)
    first = stager.copy(entry_at(str(run), "a"))
    assert first is not None
    assert stager.copy(entry_at(str(run), "a")) is None
    assert len(said) == 1
    path = Path(first.path)
    assert path.read_bytes() == b"x" * 100
    del first
    assert not path.exists()
    assert stager.copy(entry_at(str(run), "a")) is not None


def test_status_counts(run, store, quick) -> None:
    (run / "a").write_text("abc")
    uploader = mirror(run, store, quick)
    assert uploader.status().state == "starting"
    uploader.start()
    uploader.flush()
    status = uploader.status()
    assert (status.stored, status.stored_bytes, status.pending, status.lag) == (1, 3, 0, 0)
    assert status.sent_bytes >= 3
    uploader.close()
    assert uploader.status().state == "finished"
    uploader.close()
    with pytest.raises(RuntimeError):
        uploader.start()


def test_an_uploader_that_was_not_started_says_so(run, store, quick) -> None:
    uploader = mirror(run, store, quick)
    uploader.trigger()
    with pytest.raises(RuntimeError, match="start"):
        uploader.flush()
    uploader.close()


def test_an_error_in_the_block_is_not_hidden_by_an_incomplete_upload(run, store, quick) -> None:
    store.fail = lambda key: PermissionDeniedError("no") if key == "a" else None
    (run / "a").write_text("a")
    with pytest.raises(ZeroDivisionError) as caught, mirror(run, store, quick):
        _ = 1 / 0
    assert "incomplete" in caught.value.__notes__[0]
