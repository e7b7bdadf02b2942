"""The uploader's own process, with real signals."""

from __future__ import annotations

import os
import pickle
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rundir_uploader import (
    DirectoryLockedError,
    IncompleteUploadError,
    Uploader,
    UploaderSettingsError,
    WorkerError,
)
from rundir_uploader.manifest import find_writers, read_head
from stretto.object_store import (
    LocalStore,
    MemoryStore,
    ObjectStoreError,
    open_store,
)
from stretto.object_store.wrappers.forward import ForwardingStore

TRAINER = """
import sys, time
from pathlib import Path
from rundir_uploader import Uploader
run, store = Path(sys.argv[1]), sys.argv[2]
uploader = Uploader(run, store).start()
print(uploader.pid, flush=True)
number = 0
while True:
    (run / f"file{number}.txt").write_text(f"content of {number}" * 50)
    number += 1
    if number % 20 == 0:
        uploader.trigger()
        print(number, flush=True)
    time.sleep(0.002)
"""


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "store"


def stored(destination: Path, files_of) -> dict[str, bytes]:
    return files_of(destination) if destination.exists() else {}


def test_the_process_mirrors_flushes_and_ends(run, destination, files_of, gone) -> None:
    (run / "before").write_text("b")
    with Uploader(run, destination) as uploader:
        pid = uploader.pid
        assert psutil.Process(pid).is_running()
        (run / "a").write_text("a")
        uploader.flush()
        assert stored(destination, files_of) == {"before": b"b", "a": b"a"}
        (run / "last").write_text("l")
    assert stored(destination, files_of) == files_of(run)
    gone(pid)
    assert uploader.status().state == "finished"
    assert uploader.status().stored == 3


def test_after_kill_9_of_the_trainers_group_all_is_stored_and_nothing_stays(
    run, destination, files_of, start, gone
) -> None:
    """U18: SIGKILL of the whole group; a last scan, drained, gone, no lock left."""
    trainer = start(TRAINER, run, destination)
    uploader = int(trainer.stdout.readline())
    for _ in range(10):
        trainer.stdout.readline()
    os.killpg(trainer.pid, signal.SIGKILL)
    trainer.wait()
    gone(uploader)
    assert len(files_of(run)) >= 200
    assert stored(destination, files_of) == files_of(run)
    store = LocalStore(destination)
    (writer,) = find_writers(store, "")
    assert read_head(store, "", writer).finished
    with Uploader(run, destination) as again:
        assert again.pid is not None
    assert "everything is stored" in (run / ".rundir-uploader" / "worker.log").read_text()


def test_a_trainer_that_ends_without_closing_is_mirrored_to_the_end(
    run, destination, files_of, start, gone
) -> None:
    code = TRAINER.replace("while True:", "for _ in range(100):").replace("time.sleep(0.002)", "")
    trainer = start(code, run, destination)
    uploader = int(trainer.stdout.readline())
    trainer.wait(60)
    gone(uploader)
    assert stored(destination, files_of) == files_of(run)


def test_a_forked_child_that_lives_on_does_not_keep_the_uploader_waiting(
    run, destination, files_of, start, gone
) -> None:
    """A data loader's worker inherits the trainer's pipes; it must not hold this one open."""
    code = TRAINER.replace(
        "number = 0",
        "import os\nif os.fork() == 0:\n    os.setsid(); time.sleep(60); os._exit(0)\nnumber = 0",
    )
    trainer = start(code, run, destination)
    uploader = int(trainer.stdout.readline())
    trainer.stdout.readline()
    children = [
        child.pid for child in psutil.Process(trainer.pid).children() if child.pid != uploader
    ]
    assert children
    os.kill(trainer.pid, signal.SIGKILL)
    gone(uploader)
    for child in children:
        os.kill(child, signal.SIGKILL)
    assert stored(destination, files_of) == files_of(run)


def test_the_trainer_goes_on_and_nothing_is_lost_when_the_uploader_is_killed(
    run, destination, files_of, caplog
) -> None:
    """U2, U3: dead workers lose nothing and stop nobody."""
    with Uploader(run, destination) as uploader:
        for number in range(6):
            (run / f"f{number}").write_text(str(number) * 1000)
            uploader.trigger()
            if number % 2 == 0:
                os.kill(uploader.pid, signal.SIGKILL)
                deadline = time.monotonic() + 20
                while uploader.status().restarts <= number // 2 and time.monotonic() < deadline:
                    time.sleep(0.05)
        uploader.flush()
        assert stored(destination, files_of) == files_of(run)
        assert uploader.status().restarts == 3
    assert stored(destination, files_of) == files_of(run)
    assert any("started again" in record.message for record in caplog.records)


def test_killed_while_it_drains_it_is_started_again_and_close_still_keeps_its_promise(
    run, destination, files_of
) -> None:
    """U2: the workers die while draining at the end; all the same, all is stored."""
    for number in range(300):
        (run / f"f{number}").write_bytes(os.urandom(2000))
    uploader = Uploader(run, destination, num_concurrent_uploads=1).start()
    pid = uploader.pid
    killer = subprocess.Popen(
        [sys.executable, "-c", f"import os,time; time.sleep(0.3); os.kill({pid}, 9)"]
    )
    uploader.close()
    killer.wait()
    assert stored(destination, files_of) == files_of(run)


def test_killed_at_any_instant_a_restart_sends_only_what_is_missing(
    run, destination, files_of, start, gone
) -> None:
    for number in range(150):
        (run / f"f{number}").write_bytes(os.urandom(3000))
    seed = int(time.time())
    print("seed", seed)
    import random

    chance = random.Random(seed)
    code = (
        "import sys; from rundir_uploader import Uploader\n"
        "Uploader(sys.argv[1], sys.argv[2], num_concurrent_uploads=2, use_procs=False)"
        ".start().flush()\n"
    )
    for _ in range(8):
        victim = start(code, run, destination)
        time.sleep(0.35 + chance.random() * 0.5)
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
    modified = {
        path: path.stat().st_mtime_ns for path in destination.glob("f*") if path.suffix != ".tmp"
    }
    journal = next((run / ".rundir-uploader").glob("journal-*.log"), None)
    known = journal.read_bytes().count(b'"r"') if journal else 0
    with Uploader(run, destination) as uploader:
        uploader.flush()
    assert stored(destination, files_of) == files_of(run)
    sent_again = [p for p, before in modified.items() if p.stat().st_mtime_ns != before]
    assert len(modified) - known <= 8 * 2, "at most the transfers in flight were not written down"
    assert len(sent_again) <= 8 * 2


def test_a_restarted_trainer_takes_over_from_a_draining_uploader(
    run, destination, files_of, start, gone, tmp_path
) -> None:
    """The newcomer waits for the transfers in flight, then goes on from the journal."""
    module = tmp_path / "slowstore.py"
    module.write_text(
        "import time\n"
        "from stretto.object_store import LocalStore\n"
        "class SlowStore(LocalStore):\n"
        "    def put(self, key, source, **keywords):\n"
        "        time.sleep(0.4)\n"
        "        return super().put(key, source, **keywords)\n"
        "    def __reduce__(self):\n"
        "        return (SlowStore, (str(self.root),))\n"
    )
    for number in range(200):
        (run / f"f{number}").write_text(str(number))
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[3]); from slowstore import SlowStore\n"
        "from rundir_uploader import Uploader\n"
        "u = Uploader(sys.argv[1], SlowStore(sys.argv[2]), num_concurrent_uploads=2).start()\n"
        "print(u.pid, flush=True); time.sleep(60)\n"
    )
    trainer = start(code, run, destination, tmp_path)
    old = int(trainer.stdout.readline())
    os.killpg(trainer.pid, signal.SIGKILL)
    trainer.wait()
    time.sleep(0.3)
    assert psutil.pid_exists(old), "it drains: 200 files at 0.4 s and two at a time"
    began = time.monotonic()
    with Uploader(run, destination) as new:
        assert time.monotonic() - began < 8
        gone(old, 2)
        new.flush()
        assert stored(destination, files_of) == files_of(run)
    log = (run / ".rundir-uploader" / "worker.log").read_text()
    assert "another uploader takes over" in log


def test_a_second_uploader_is_told_who_has_the_directory(run, destination, start) -> None:
    trainer = start(TRAINER, run, destination)
    pid = int(trainer.stdout.readline())
    with pytest.raises(DirectoryLockedError, match=f"process {pid} .*process {trainer.pid}"):
        Uploader(run, destination).start()
    inner = run / "inner"
    inner.mkdir()
    with pytest.raises(DirectoryLockedError, match=f"process {pid}"):
        Uploader(inner, destination).start()


def test_an_uploader_of_a_folder_below_is_respected(run, destination, tmp_path) -> None:
    inner = run / "inner"
    inner.mkdir()
    with (
        Uploader(inner, tmp_path / "other") as first,
        pytest.raises(DirectoryLockedError, match=str(first.pid)),
    ):
        Uploader(run, destination).start()


def test_a_signal_to_everybody_does_not_lose_the_last_files(
    run, destination, files_of, start, gone
) -> None:
    """SIGTERM reaches all processes of a job step; the trainer still writes its last file."""
    code = TRAINER.replace(
        "number = 0",
        "import signal\n"
        "def last(*_):\n"
        "    time.sleep(0.5); (run / 'last').write_text('x' * 100000); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, last)\nnumber = 0",
    )
    trainer = start(code, run, destination)
    uploader = int(trainer.stdout.readline())
    trainer.stdout.readline()
    for pid in (uploader, trainer.pid):
        os.kill(pid, signal.SIGTERM)
    trainer.wait(30)
    gone(uploader)
    assert (run / "last").exists()
    assert stored(destination, files_of) == files_of(run)


def test_secrets_are_in_no_process_list_journal_or_log(run, destination, tmp_path) -> None:
    """Options go over a pipe; a store's own secret crosses only there, and lands nowhere."""
    secret = "s3cr3t-" + os.urandom(8).hex()
    module = tmp_path / "secretstore.py"
    module.write_text(
        "from stretto.object_store import LocalStore\n"
        "class SecretStore(LocalStore):\n"
        "    def __init__(self, root, secret):\n"
        "        super().__init__(root); self.secret = secret\n"
        "    def __reduce__(self):\n"
        "        return (SecretStore, (str(self.root), self.secret))\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        from secretstore import SecretStore

        (run / "a").write_text("a")
        with Uploader(run, SecretStore(str(destination), secret)) as uploader:
            uploader.flush()
            process = psutil.Process(uploader.pid)
            assert secret not in " ".join(process.cmdline())
            assert secret not in " ".join(process.environ().values())
            assert str(run) not in " ".join(process.cmdline())
        for path in [*(run / ".rundir-uploader").rglob("*"), *destination.rglob("*")]:
            if path.is_file():
                assert secret.encode() not in path.read_bytes(), path
    finally:
        sys.path.remove(str(tmp_path))


def test_the_process_holds_none_of_the_trainers_files_open(run, destination, tmp_path) -> None:
    """Nothing hangs on the trainer's terminal or pipes because the uploader lives on."""
    log = (tmp_path / "some-log").open("w")
    os.set_inheritable(log.fileno(), True)
    with Uploader(run, destination) as uploader:
        links = {}
        for entry in Path(f"/proc/{uploader.pid}/fd").iterdir():
            links[int(entry.name)] = str(entry.readlink())
        assert not any("some-log" in target for target in links.values())
        assert links[1] == links[2]
        assert links[2].endswith("worker.log")
        assert os.getsid(uploader.pid) != os.getsid(0)
    log.close()


def test_the_trainers_output_pipe_closes_with_the_trainer(run, destination, start, gone) -> None:
    code = TRAINER.replace("while True:", "for _ in range(30):")
    trainer = start(code, run, destination)
    began = time.monotonic()
    out, _ = trainer.communicate(timeout=30)
    assert time.monotonic() - began < 30
    gone(int(out.splitlines()[0]))


def test_a_trigger_costs_microseconds(run, destination) -> None:
    for number in range(500):
        (run / f"f{number}").touch()
    with Uploader(run, destination) as uploader:
        uploader.flush()
        times = []
        for _ in range(500):
            began = time.perf_counter()
            uploader.trigger()
            times.append(time.perf_counter() - began)
        assert statistics.median(times) < 0.001


def test_an_incomplete_upload_comes_back_as_the_list(run, destination) -> None:
    (run / "a").write_text("a")
    (run / ("n" * 255)).write_text("fine")
    (run / ("n" * 250)).symlink_to("a")  # its object's name would be too long for the local store
    uploader = Uploader(run, destination).start()
    with pytest.raises(IncompleteUploadError) as caught:
        uploader.close()
    assert [path for path, _ in caught.value.missing] == ["n" * 250]
    assert "rundir-uploader sync" in str(caught.value)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.missing == caught.value.missing


def test_a_store_that_refuses_raises_at_construction(run, tmp_path) -> None:
    with pytest.raises(ObjectStoreError):
        Uploader(
            run,
            "s3://bucket-without-credentials/x",
            store_options={"endpoint": "http://127.0.0.1:1"},
        )
    assert not (run / ".rundir-uploader").exists()
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ObjectStoreError):
        Uploader(run, file)


def test_a_store_that_vanished_raises_at_start(run, destination) -> None:
    uploader = Uploader(run, LocalStore(destination))
    destination.rmdir()
    destination.touch()
    with pytest.raises(ObjectStoreError, match=str(destination)):
        uploader.start()
    assert not (run / ".rundir-uploader" / "lock").exists()


class LocalClassStore(ForwardingStore):
    """A store whose capabilities promise what pickling does not keep."""

    def __reduce__(self):
        raise TypeError("holds a socket")


def test_what_cannot_cross_a_process_is_refused_at_construction(run, destination) -> None:
    for store in (MemoryStore(), "memory://name", LocalClassStore(LocalStore(destination))):
        with pytest.raises(UploaderSettingsError, match="use_procs=False"):
            Uploader(run, store)
    with pytest.raises(ObjectStoreError):
        Uploader(run, "nonsense://x")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"num_concurrent_uploads": 0}, "num_concurrent_uploads=0"),
        ({"num_concurrent_uploads": True}, "num_concurrent_uploads=True"),
        ({"prefix": "../x"}, "prefix"),
        ({"prefix": "a//b"}, "prefix"),
        ({"no_progress_timeout": 0}, "no_progress_timeout"),
        ({"scan_interval": -1}, "scan_interval"),
        ({"staging": "sometimes"}, "staging"),
    ],
)
def test_bad_arguments_are_refused_and_leave_nothing_behind(
    run, destination, settings, word
) -> None:
    with pytest.raises(UploaderSettingsError, match=word):
        Uploader(run, destination, **settings)
    assert list(run.iterdir()) == []


def test_a_directory_that_is_a_file_or_missing_is_refused(run, destination, tmp_path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NotADirectoryError):
        Uploader(file, destination)
    with pytest.raises(FileNotFoundError):
        Uploader(tmp_path / "missing", destination)


@pytest.mark.parametrize("place", ["inside", "same", "around"])
def test_a_store_that_would_be_mirrored_into_itself_is_refused(run, tmp_path, place) -> None:
    target = {"inside": run / "store", "same": run, "around": tmp_path}[place]
    with pytest.raises(UploaderSettingsError, match="lie one in the other"):
        Uploader(run, target)
    with pytest.raises(UploaderSettingsError, match="lie one in the other"):
        Uploader(run, open_store(str(target), check=False))


def test_a_process_that_cannot_start_says_why(run, destination, monkeypatch) -> None:
    broken = run.parent / "broken"
    (broken / "rundir_uploader").mkdir(parents=True)
    (broken / "rundir_uploader" / "__init__.py").write_text(
        "raise ImportError('broken on purpose')"
    )
    monkeypatch.setenv("PYTHONPATH", str(broken))
    with pytest.raises(WorkerError, match="broken on purpose"):
        Uploader(run, destination).start()


def test_the_working_directory_cannot_replace_the_standard_library(
    run, destination, tmp_path, monkeypatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    with Uploader(run, destination) as uploader:
        uploader.flush()


def test_a_forked_copy_of_the_uploader_does_nothing(run, destination, files_of) -> None:
    with Uploader(run, destination) as uploader:
        child = os.fork()
        if child == 0:
            try:
                uploader.trigger()
                uploader.flush()
                uploader.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        (run / "a").write_text("a")
        uploader.flush()
        assert stored(destination, files_of) == {"a": b"a"}


def test_uris_of_files(run, destination, monkeypatch) -> None:
    uploader = Uploader(run, f"file://{destination}", prefix="p")
    assert uploader.url == f"file://{destination}/p"
    assert uploader.get_uri_for_uploaded_file(run / "a" / "b") == f"file://{destination}/p/a/b"
    monkeypatch.chdir(run)
    assert uploader.get_uri_for_uploaded_file("b") == f"file://{destination}/p/b"
    with pytest.raises(UploaderSettingsError):
        uploader.get_uri_for_uploaded_file(run.parent / "other")
    with pytest.raises(UploaderSettingsError):
        uploader.get_uri_for_uploaded_file(run)
