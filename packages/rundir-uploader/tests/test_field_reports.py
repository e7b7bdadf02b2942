"""The rows of the field reports (1a: A…, 3b: U…) that apply here, each by its number.

Rows that need a process killed, two ranks or a real server are in the other files, under the
same kind of name or with the row in the docstring: U2, U3, U18 in test_process, U19, U21, A5 in
test_callback and test_imports, A3, A10, A13, A23 in test_servers.
"""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from rundir_uploader import IncompleteUploadError, Pacing, RunDirectoryUploader, Uploader
from rundir_uploader.manifest import read_merged
from stretto.core_events import Engine, Event, Logger, LoggerDestination
from stretto.core_events.testing import ScriptedState
from stretto.object_store import PermissionDeniedError, StoreTimeoutError, TransientError


def mirror(run: Path, store, quick: Pacing, **settings) -> Uploader:
    return Uploader(run, store, use_procs=False, pacing=quick, **settings)


@pytest.fixture
def node(run, monkeypatch) -> Path:
    for name in ("STRETTO_RUN_DIRECTORY", "COMPOSER_RUN_DIRECTORY"):
        monkeypatch.setenv(name, str(run))
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return run


def engine_with(*callbacks, destinations=()) -> Engine:
    state = ScriptedState(callbacks=list(callbacks))
    return Engine(state, Logger(state, list(destinations)))


def test_u1_files_from_before_init_are_uploaded(node, store) -> None:
    (node / "config.yaml").write_text("written by the launcher")
    os.utime(node / "config.yaml", (1, 1))
    engine = engine_with(RunDirectoryUploader(store, "", use_procs=False))
    time.sleep(0.05)
    engine.run_event(Event.INIT)
    engine.close()
    assert store.contents() == {"config.yaml": b"written by the launcher"}


def test_u4_an_older_version_never_replaces_a_newer_one(run, store, quick, eventually) -> None:
    store.delay = lambda _key, data: 0.8 if data == b"v1" else 0.0
    with mirror(run, store, quick, num_concurrent_uploads=4) as uploader:
        for version in ("v1", "v2", "v3"):
            (run / "f").write_text(version)
            uploader.trigger()
            eventually(lambda: "f" in store.begun)
            time.sleep(0.1)
    assert store.contents() == {"f": b"v3"}
    assert store.overlaps == []


def test_u5_a_failed_item_is_queued_again_and_its_reason_is_kept(run, store, quick) -> None:
    store.fail = lambda key: PermissionDeniedError("quota of the moon") if key == "f" else None
    (run / "f").write_text("f")
    uploader = mirror(run, store, quick).start()
    with pytest.raises(IncompleteUploadError, match="quota of the moon"):
        uploader.flush()
    assert uploader.status().failed == (("f", "PermissionDeniedError: quota of the moon"),)
    store.fail = lambda _key: None
    uploader.close()
    assert store.contents() == {"f": b"f"}


def test_u6_a_long_outage_never_reaches_the_training_loop(node, store) -> None:
    engine = engine_with(RunDirectoryUploader(store, "", use_procs=False, upload_every_n_batches=1))
    engine.run_event(Event.INIT)
    store.fail = lambda _key: TransientError("gone for an hour")
    for number in range(30):
        (node / f"f{number}").write_text("x")
        began = time.perf_counter()
        engine.run_event(Event.BATCH_END)
        assert time.perf_counter() - began < 0.5
    store.fail = lambda _key: None
    engine.close()
    assert len(store.contents()) == 30


def test_u7_whether_to_try_again_is_no_matter_of_digits_in_a_text(run, store, quick) -> None:
    name = "ep1-ba500-503.pt"
    store.fail = lambda key: PermissionDeniedError(f"403 on {key}") if key == name else None
    (run / name).write_text("x")
    uploader = mirror(run, store, quick).start()
    began = time.monotonic()
    with pytest.raises(IncompleteUploadError, match="403"):
        uploader.flush()
    assert time.monotonic() - began < 5, "denied is denied: a flush does not wait for it"
    failures = iter([TransientError("Bad Gateway"), StoreTimeoutError("nothing heard")])
    store.fail = lambda key: next(failures, None) if key == name else None
    uploader.close()
    assert store.contents() == {name: b"x"}


def test_u8_errors_that_no_back_end_should_raise_are_survived(run, store, quick) -> None:
    failures = iter([OSError(5, "input/output error"), RuntimeError("a bug"), ValueError("ssl")])
    store.fail = lambda key: next(failures, None) if key == "f" else None
    (run / "f").write_text("f")
    (run / "g").write_text("g")
    uploader = mirror(run, store, quick).start()
    deadline = time.monotonic() + 20
    while uploader.status().pending and time.monotonic() < deadline:
        time.sleep(0.05)
    uploader.close()
    assert store.contents() == {"f": b"f", "g": b"g"}


def test_u9_many_files_and_a_close_at_once(run, store, quick, files_of) -> None:
    store.delay = lambda _key, _data: 0.01
    uploader = mirror(run, store, quick).start()
    for number in range(200):
        (run / f"f{number}").write_text(str(number))
    uploader.close()
    assert store.contents() == files_of(run)


def test_u10_a_file_that_is_being_written_does_not_replace_the_last_good_one(
    run, store, eventually
) -> None:
    pacing = Pacing(settle=0.4, max_settle=30.0)
    (run / "ckpt").write_bytes(b"good" * 1000)
    with mirror(run, store, pacing, scan_interval=0.05) as uploader:
        uploader.flush()
        with (run / "ckpt").open("wb", buffering=0) as file:
            for _ in range(20):
                file.write(b"new!" * 100)
                uploader.trigger()
                time.sleep(0.05)
                assert store.contents()["ckpt"] == b"good" * 1000
        eventually(lambda: store.contents()["ckpt"] == b"new!" * 2000)


def test_u11_u12_nothing_is_copied_and_no_disk_is_used(run, store, quick, tmp_path) -> None:
    (run / "large").write_bytes(os.urandom(8 << 20))
    store.delay = lambda key, _data: 0.5 if key == "large" else 0.0
    with mirror(run, store, quick):
        time.sleep(0.2)
        ours = sum(path.stat().st_size for path in (run / ".rundir-uploader").rglob("*"))
        assert ours < 100_000


def test_u13_nothing_is_sent_when_nothing_changed(run, store, quick) -> None:
    (run / "f").write_text("f")
    with mirror(run, store, quick) as uploader:
        uploader.flush()
        sent = len(store.puts)
        for _ in range(20):
            uploader.trigger()
            uploader.flush()
        assert len(store.puts) == sent


def test_u14_names_of_files_are_not_logged_as_metrics(node, store) -> None:
    class Recorder(LoggerDestination):
        def __init__(self) -> None:
            self.metrics: list[object] = []

        def log_metrics(self, metrics, step=None) -> None:
            self.metrics.append(metrics)

    recorder = Recorder()
    engine = engine_with(RunDirectoryUploader(store, use_procs=False), destinations=[recorder])
    engine.run_event(Event.INIT)
    (node / "f").write_text("f")
    engine.run_event(Event.EPOCH_END)
    engine.run_event(Event.FIT_END)
    engine.close()
    values = [value for metrics in recorder.metrics for value in metrics.values()]
    assert all(isinstance(value, (int, float)) for value in values)


def test_u15_the_constructor_asks_the_store_nothing_and_leaves_nothing(
    node, store, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    RunDirectoryUploader(store, use_procs=False)
    RunDirectoryUploader("store", use_procs=True)
    RunDirectoryUploader("s3://bucket/x", store_options={"endpoint": "http://127.0.0.1:1"})
    assert store.begun == []
    assert not (tmp_path / "store").exists()
    assert list(node.iterdir()) == []


def test_u15_at_the_start_the_store_is_left_as_it_was(run, store, quick) -> None:
    with mirror(run, store, quick):
        assert [meta.key for meta in store.inner.list() if "probe" in meta.key] == []
        assert any("probe" in key for key in store.begun), "it was written to, to see if it can be"


def test_u16_keys_never_leave_the_prefix(run, store, quick) -> None:
    with mirror(run, store, quick, prefix="p") as uploader:
        (run / "sub").mkdir()
        (run / "sub" / "f").write_text("f")
        with pytest.raises(ValueError, match="is not a file in"):
            uploader.get_uri_for_uploaded_file(run / ".." / "other")
    assert all(meta.key.startswith("p/") for meta in store.inner.list())


def test_u17_deletes_renames_empty_folders_and_hidden_files_have_rules(run, store, quick) -> None:
    (run / ".hidden").write_text("h")
    (run / "void").mkdir()
    (run / "old-name").write_text("content")
    with mirror(run, store, quick) as uploader:
        uploader.flush()
        (run / "old-name").rename(run / "new-name")
        uploader.flush()
        records = read_merged(store, "").records
    assert set(store.contents()) == {".hidden", "old-name", "new-name"}
    assert records["old-name"].deleted_at is not None
    assert records["new-name"].deleted_at is None
    assert records["void"].kind.value == "empty_directory"


def test_a2_files_of_one_name_in_two_folders_keep_their_own_content(run, store, quick) -> None:
    for folder in ("a", "b"):
        (run / folder).mkdir()
        (run / folder / "x.txt").write_text(folder)
    with mirror(run, store, quick, staging="blocking") as uploader:
        uploader.trigger()
    assert store.contents() == {"a/x.txt": b"a", "b/x.txt": b"b"}


def test_a9_a_file_whose_buffer_was_not_flushed_arrives_whole_in_the_end(run, store, quick) -> None:
    file = (run / "f").open("w")
    with mirror(run, store, quick) as uploader:
        file.write("buffered")
        uploader.flush()
        file.close()
    assert store.contents() == {"f": b"buffered"}


def test_a12_waiting_is_once_and_holds_nothing_else_up(node, store, quick) -> None:
    """A flush waits by polling in its own thread; other threads of the trainer go on."""
    store.delay = lambda key, _data: 0.6 if key == "f" else 0.0
    ticks = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.01)

    thread = threading.Thread(target=work)
    engine = engine_with(RunDirectoryUploader(store, "", use_procs=False))
    engine.run_event(Event.INIT)
    (node / "f").write_text("f")
    thread.start()
    for event in (Event.EVAL_END, Event.EVAL_AFTER_ALL):
        began = time.monotonic()
        engine.run_event(event)
        assert time.monotonic() - began < 0.1, "not after every evaluation"
    engine.run_event(Event.FIT_END)
    stop.set()
    thread.join()
    engine.close()
    gaps = [after - before for before, after in pairwise(ticks)]
    assert max(gaps) < 0.5


def test_a15_a_dangling_link_stops_nothing(run, store, quick) -> None:
    (run / "x").symlink_to("/nonexistent")
    (run / "y").write_text("y")
    with mirror(run, store, quick) as uploader:
        uploader.flush()
    assert store.contents() == {"y": b"y"}


def test_a21_folders_are_taken_with_all_they_hold(run, store, quick) -> None:
    (run / "configs" / "a").mkdir(parents=True)
    (run / "configs" / "a" / "b.yaml").write_text("b")
    with mirror(run, store, quick):
        pass
    assert store.contents() == {"configs/a/b.yaml": b"b"}


def test_a25_an_empty_file_is_an_empty_object(run, store, quick) -> None:
    (run / "empty").touch()
    with mirror(run, store, quick):
        pass
    assert store.contents() == {"empty": b""}
