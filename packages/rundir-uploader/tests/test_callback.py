"""The callback, in an engine without a trainer."""

from __future__ import annotations

import inspect
import os
import signal
import statistics
import time
from pathlib import Path

import pytest

from rundir_uploader import (
    IncompleteUploadError,
    RunDirectoryUploader,
    Uploader,
    UploaderSettingsError,
)
from stretto.core_events import Callback, Engine, Event, Logger, Stage, State
from stretto.core_events.testing import ScriptedState
from stretto.object_store import (
    CredentialsError,
    InvalidUrlError,
    LocalStore,
    MemoryStore,
    MissingExtraError,
    ObjectStoreProviderHparams,
    TransientError,
)


@pytest.fixture
def node(tmp_path: Path, monkeypatch) -> Path:
    """The node run directory of this test."""
    directory = tmp_path / "runs" / "two"
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("STRETTO_RUN_DIRECTORY", "COMPOSER_RUN_DIRECTORY"):
        monkeypatch.setenv(name, str(directory))
    (directory / "rank_0").mkdir(parents=True)
    return directory


def engine_of(*callbacks: Callback[State], **keywords) -> Engine[State]:
    state = ScriptedState(callbacks=list(callbacks), **keywords)
    return Engine(state, Logger(state))


def test_names_arguments_and_defaults_are_those_of_the_seed() -> None:
    parameters = list(inspect.signature(RunDirectoryUploader).parameters.values())
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [(p.name, p.default) for p in positional] == [
        ("object_store_provider_hparams", inspect.Parameter.empty),
        ("object_name_prefix", None),
        ("num_concurrent_uploads", 4),
        ("upload_staging_folder", None),
        ("use_procs", True),
        ("upload_every_n_batches", 100),
    ]
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters[6:])
    assert issubclass(RunDirectoryUploader, Callback)
    assert RunDirectoryUploader.stage is Stage.PERSIST


@pytest.mark.parametrize("use_procs", [True, False])
def test_a_run_is_mirrored_under_the_name_of_its_directory(
    node, tmp_path, files_of, use_procs
) -> None:
    (node / "before.txt").write_text("U1: was there before INIT")
    uploader = RunDirectoryUploader(str(tmp_path / "store"), use_procs=use_procs)
    engine = engine_of(uploader)
    engine.run_event(Event.INIT)
    (node / "rank_0" / "log.txt").write_text("log")
    engine.run_event(Event.EPOCH_END)
    engine.run_event(Event.FIT_END)
    assert files_of(tmp_path / "store" / "two") == files_of(node)
    (node / "after-fit.txt").write_text("written by somebody's close")
    engine.close()
    assert files_of(tmp_path / "store" / "two") == files_of(node)
    assert uploader.status().stored == 3
    assert uploader.url == f"file://{tmp_path}/store/two"
    assert (
        uploader.get_uri_for_uploaded_file(node / "rank_0" / "log.txt")
        == f"file://{tmp_path}/store/two/rank_0/log.txt"
    )


def test_the_epochs_end_queues_uploads_without_a_fit(node, tmp_path, eventually) -> None:
    """The seed's own example: one event, run by hand, and the file goes up."""
    engine = engine_of(RunDirectoryUploader(str(tmp_path / "store")))
    engine.run_event(Event.INIT)
    (node / "x").write_text("x")
    engine.run_event(Event.EPOCH_END)
    eventually(lambda: (tmp_path / "store/two/x").exists(), 15)
    engine.close()


def test_every_n_batches_uploads_are_queued(node, tmp_path) -> None:
    uploader = RunDirectoryUploader(
        str(tmp_path / "store"), use_procs=False, upload_every_n_batches=3
    )
    engine = engine_of(uploader)
    engine.run_event(Event.INIT)
    scans = []
    for _ in range(7):
        engine.state.timestamp = engine.state.timestamp.to_next_batch()
        before = uploader.status().scans
        engine.run_event(Event.BATCH_END)
        time.sleep(0.1)
        scans.append(uploader.status().scans > before)
    engine.close()
    assert scans == [False, False, True, False, False, True, False]


def test_prefixes(node, tmp_path) -> None:
    for given, uri in [
        (None, "/store/two/a"),
        ("", "/store/a"),
        ("foo", "/store/foo/a"),
        ("foo/bar/", "/store/foo/bar/a"),
    ]:
        uploader = RunDirectoryUploader(str(tmp_path / "store"), given)
        assert uploader.get_uri_for_uploaded_file(node / "a") == f"file://{tmp_path}{uri}"
    with pytest.raises(UploaderSettingsError, match="object_name_prefix"):
        RunDirectoryUploader("store", "../up")


def test_provider_hparams_as_in_the_seed(node, tmp_path, files_of, monkeypatch) -> None:
    monkeypatch.setenv("OBJECT_STORE_KEY", str(tmp_path / "root"))
    (tmp_path / "root" / "run-dir-test").mkdir(parents=True)
    hparams = ObjectStoreProviderHparams(
        provider="local", container="run-dir-test", key_environ="OBJECT_STORE_KEY"
    )
    uploader = RunDirectoryUploader(hparams)
    assert uploader.get_uri_for_uploaded_file(node / "f") == "local://run-dir-test/two/f"
    engine = engine_of(uploader)
    engine.run_event(Event.INIT)
    (node / "f").write_text("f")
    engine.close()
    assert files_of(tmp_path / "root" / "run-dir-test" / "two") == files_of(node)


def test_a_variable_that_is_not_set_is_an_error_at_construction(monkeypatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    hparams = ObjectStoreProviderHparams("s3", "bucket", key_environ="NO_SUCH_KEY")
    with pytest.raises(CredentialsError, match="NO_SUCH_KEY"):
        RunDirectoryUploader(hparams)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"num_concurrent_uploads": 0}, "num_concurrent_uploads=0"),
        ({"num_concurrent_uploads": 1.5}, "num_concurrent_uploads=1.5"),
        ({"upload_every_n_batches": 0}, "upload_every_n_batches=0"),
        ({"upload_every_n_batches": -1}, "upload_every_n_batches=-1"),
        ({"staging": "never"}, "staging"),
        ({"upload_staging_folder": __file__, "staging": "blocking"}, "upload_staging_folder"),
    ],
)
def test_bad_arguments_are_errors_at_construction(tmp_path, arguments, word) -> None:
    with pytest.raises(UploaderSettingsError, match=word):
        RunDirectoryUploader(str(tmp_path / "store"), **arguments)
    assert not (tmp_path / "store").exists()


def test_places_that_cannot_be_are_errors_at_construction(tmp_path) -> None:
    with pytest.raises(InvalidUrlError, match="nonsense"):
        RunDirectoryUploader("nonsense://bucket")
    with pytest.raises(InvalidUrlError):
        RunDirectoryUploader("")
    with pytest.raises(UploaderSettingsError, match="no place"):
        RunDirectoryUploader(42)
    with pytest.raises(UploaderSettingsError, match="use_procs=False"):
        RunDirectoryUploader(MemoryStore())
    RunDirectoryUploader(MemoryStore(), use_procs=False)


def test_a_missing_library_is_an_error_at_construction(start) -> None:
    """In a process where obstore cannot be imported."""
    process = start(
        "import sys; sys.modules['obstore'] = None\n"
        "from rundir_uploader import RunDirectoryUploader\n"
        "from stretto.object_store import MissingExtraError\n"
        "try:\n    RunDirectoryUploader('s3://bucket/x', store_options={'anonymous': True})\n"
        "except MissingExtraError as error:\n    print('obstore' in str(error))\n"
    )
    out, err = process.communicate()
    assert out == "True\n", err
    assert issubclass(MissingExtraError, ImportError)


@pytest.mark.parametrize("use_procs", [True, False])
def test_a_store_that_refuses_is_warned_about_and_the_run_goes_on(
    node, monkeypatch, caplog, use_procs
) -> None:
    """U6: an upload problem does not end a run; it is told loudly, with the remedy."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "top-secret-value")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    uploader = RunDirectoryUploader(
        "s3://bucket/x",
        use_procs=use_procs,
        no_progress_timeout=1.0,
        num_concurrent_uploads=1,
        store_options={"retry": None},
    )
    engine = engine_of(uploader)
    engine.run_event(Event.INIT)
    (node / "log").write_text("log")
    for event in (Event.BATCH_END, Event.EPOCH_END):
        engine.run_event(event)
    with pytest.raises(IncompleteUploadError) as caught:
        engine.run_event(Event.FIT_END)
    assert type(caught.value) is IncompleteUploadError, "bare, not in a group"
    assert "log" in dict(caught.value.missing)
    with pytest.raises(IncompleteUploadError):
        engine.close()
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "STORE REFUSES" in said
    assert f"rundir-uploader sync {node} s3://bucket/x/two" in said
    assert "top-secret-value" not in said


def test_a_trigger_never_raises_whatever_became_of_the_process(node, tmp_path) -> None:
    uploader = RunDirectoryUploader(str(tmp_path / "store"))
    engine = engine_of(uploader)
    engine.run_event(Event.INIT)
    pid = uploader._uploader.pid
    os.kill(pid, signal.SIGKILL)
    for _ in range(50):
        engine.run_event(Event.EPOCH_END)
    (node / "f").write_text("f")
    engine.close()
    assert (tmp_path / "store/two/f").exists()


def test_a_directory_that_somebody_mirrors_is_left_to_them(node, tmp_path, caplog) -> None:
    with Uploader(node, tmp_path / "other") as other:
        engine = engine_of(RunDirectoryUploader(str(tmp_path / "store")))
        engine.run_event(Event.INIT)
        (node / "f").write_text("f")
        engine.run_event(Event.EPOCH_END)
        engine.run_event(Event.FIT_END)
        engine.close()
        said = [
            r.getMessage() for r in caplog.records if "already being mirrored" in r.getMessage()
        ]
        assert len(said) == 1
        assert str(other.pid) in said[0]
    assert (tmp_path / "other/f").exists()
    assert not (tmp_path / "store/two/f").exists()


def test_the_callback_serves_a_second_run(node, tmp_path, files_of, monkeypatch) -> None:
    """U19: after closing, the same object works in another engine, for another directory."""
    uploader = RunDirectoryUploader(str(tmp_path / "store"))
    first = engine_of(uploader)
    first.run_event(Event.INIT)
    (node / "a").write_text("a")
    first.close()
    other = tmp_path / "runs" / "three"
    monkeypatch.setenv("STRETTO_RUN_DIRECTORY", str(other))
    second = engine_of(uploader)
    second.run_event(Event.INIT)
    (other / "b").write_text("b")
    second.close()
    assert files_of(tmp_path / "store") == {"two/a": b"a", "three/b": b"b"}


def test_files_written_while_others_close_are_stored(node, tmp_path, files_of) -> None:
    class LateWriter(Callback[State]):
        def close(self, state, logger) -> None:
            (node / "on-close").write_text("close")

        def post_close(self) -> None:
            (node / "on-post-close").write_text("post_close")

    engine = engine_of(RunDirectoryUploader(str(tmp_path / "store")), LateWriter())
    engine.run_event(Event.INIT)
    engine.close()
    assert files_of(tmp_path / "store/two") == files_of(node)
    assert (tmp_path / "store/two/on-post-close").exists()


def test_events_cost_the_loop_microseconds(node, tmp_path) -> None:
    """U10, U11: nothing is scanned, copied or sent in the training loop."""
    for number in range(300):
        (node / f"f{number}").touch()
    engine = engine_of(RunDirectoryUploader(str(tmp_path / "store"), upload_every_n_batches=1))
    engine.run_event(Event.INIT)
    engine.run_event(Event.FIT_END)
    times = []
    for number in range(200):
        (node / f"f{number}").write_text("changed")
        began = time.perf_counter()
        engine.run_event(Event.BATCH_END)
        times.append(time.perf_counter() - began)
    engine.close()
    assert statistics.median(times) < 0.001


def test_an_unclosed_run_with_missing_files_exits_with_1(node, tmp_path, start) -> None:
    """If nothing closed the run, the exit handler prints the list and makes the status 1."""
    code = """
import sys
from rundir_uploader import RunDirectoryUploader
from stretto.core_events import Engine, Event, Logger
from stretto.core_events.testing import ScriptedState
state = ScriptedState(callbacks=[RunDirectoryUploader(sys.argv[1])])
engine = Engine(state, Logger(state))
engine.run_event(Event.INIT)
"""
    (node / "good").write_text("g")
    (node / ("n" * 250)).symlink_to("good")
    process = start(code, tmp_path / "store")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "n" * 250 in err
    assert (tmp_path / "store/two/good").exists()


RANK = """
import os, sys, time
from pathlib import Path
from rundir_uploader import RunDirectoryUploader
from stretto.core_events import Engine, Event, Logger
from stretto.core_events.testing import ScriptedState
from stretto.run_directory import get_run_directory, create_run_directory
rank, seconds = int(os.environ["RANK"]), float(sys.argv[2])
create_run_directory()
state = ScriptedState(callbacks=[RunDirectoryUploader(sys.argv[1], rank_grace=3)])
engine = Engine(state, Logger(state))
engine.run_event(Event.INIT)
print("init", flush=True)
here = Path(get_run_directory())
(here / "log.txt").write_text(f"log of {rank}")
engine.run_event(Event.EPOCH_END)
time.sleep(seconds)
(here / "last.txt").write_text(f"last of {rank}")
engine.close()
"""


def ranks(start, store: Path, seconds: tuple[float, float]):
    processes = []
    for rank in (0, 1):
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
        }
        processes.append(start(RANK, store, seconds[rank], env=env))
    return processes


@pytest.mark.parametrize("seconds", [(0.0, 1.5), (1.0, 0.0)])
def test_two_ranks_of_a_node_have_one_uploader_that_waits_for_both(
    node, tmp_path, start, files_of, seconds
) -> None:
    """A5: both ranks' folders arrive, whoever finishes last."""
    first, second = ranks(start, tmp_path / "store", seconds)
    for process in (first, second):
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    stored = files_of(tmp_path / "store" / "two")
    assert stored == files_of(node)
    assert stored["rank_1/last.txt"] == b"last of 1"
    writers = {key.split("/")[1] for key in stored if key.startswith(".rundir-uploader/")}
    assert len(writers) <= 1


def test_a_rank_that_dies_is_not_waited_for(node, tmp_path, start, files_of) -> None:
    first, second = ranks(start, tmp_path / "store", (0.0, 60.0))
    assert second.stdout.readline() == "init\n"
    time.sleep(0.5)
    assert first.poll() is None, "rank 0 waits for rank 1"
    os.killpg(second.pid, signal.SIGKILL)
    second.wait()
    _, err = first.communicate(timeout=30)
    assert first.returncode == 0, err
    assert files_of(tmp_path / "store" / "two") == files_of(node)


def test_after_kill_9_of_both_ranks_all_is_stored(node, tmp_path, start, files_of, gone) -> None:
    import psutil

    processes = ranks(start, tmp_path / "store", (60.0, 60.0))
    for process in processes:
        assert process.stdout.readline() == "init\n"
    time.sleep(0.5)
    (uploader,) = psutil.Process(processes[0].pid).children()
    assert psutil.Process(processes[1].pid).children() == []
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    gone(uploader.pid)
    stored = files_of(tmp_path / "store" / "two")
    assert stored == files_of(node)
    assert stored["rank_1/log.txt"] == b"log of 1"


def test_what_an_earlier_run_left_behind_is_not_taken_for_this_one(node) -> None:
    from rundir_uploader.ranks import RankPlan, report_rank

    child = os.fork()
    if child == 0:
        report_rank(node, 1, finished=True)
        os._exit(0)
    os.waitpid(child, 0)
    clock = iter(range(1000))
    plan = RankPlan.begin(node, 2, grace=10)
    assert list(plan.stale) == [1]
    began = next(clock)
    assert plan.wait(node, clock=lambda: float(next(clock)), sleep=lambda _: None) == []
    assert next(clock) - began >= 10, "the old word does not count: it was waited for"
    report_rank(node, 1, finished=True)
    began = next(clock)
    assert plan.wait(node, clock=lambda: float(next(clock)), sleep=lambda _: None) == []
    assert next(clock) - began < 10


def test_a_store_that_comes_back_during_the_run_gets_everything(
    node, watched, tmp_path, files_of
) -> None:
    store = watched(LocalStore(tmp_path / "store", durable=False))
    store.fail = lambda _key: TransientError("not yet")
    uploader = RunDirectoryUploader(store, use_procs=False)
    engine = engine_of(uploader)
    (node / "a").write_text("a")
    engine.run_event(Event.INIT)
    store.fail = lambda _key: None
    engine.run_event(Event.FIT_END)
    engine.close()
    assert files_of(tmp_path / "store" / "two") == files_of(node)
