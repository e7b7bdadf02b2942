"""The real command: sync and verify, and what their exit status says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rundir_uploader.journal import decode_lines
from rundir_uploader.manifest import find_writers, read_head
from stretto.object_store import LocalStore


@pytest.fixture
def full(run: Path) -> Path:
    (run / "sub").mkdir()
    (run / "void").mkdir()
    (run / "a.txt").write_text("alpha")
    (run / "sub" / "b.bin").write_bytes(os.urandom(5000))
    (run / "sub" / "zero").touch()
    (run / ".hidden").write_text("h")
    (run / "latest").symlink_to("sub/b.bin")
    (run / "half.tmp").write_text("unfinished")
    return run


def test_sync_then_verify_agree(full, tmp_path, command, files_of) -> None:
    store = tmp_path / "store"
    done = command("sync", full, store)
    assert done.returncode == 0, done.stderr
    assert "everything is stored (5 files" in done.stdout
    assert set(files_of(store)) == {"a.txt", "sub/b.bin", "sub/zero", ".hidden", "latest.symlink"}
    checked = command("verify", full, store)
    assert checked.returncode == 0, checked.stdout
    assert f"{full} and {store} agree: 5 files" in checked.stdout
    again = command("sync", full, store)
    assert "sent 0 B" in again.stdout
    head = read_head(LocalStore(store), "", find_writers(LocalStore(store), "")[0])
    assert (head.finished, head.files, head.pending) == (True, 5, 0)


def test_one_changed_byte_in_the_store_is_named(full, tmp_path, command) -> None:
    store = tmp_path / "store"
    command("sync", full, store)
    damaged = store / "sub" / "b.bin"
    data = bytearray(damaged.read_bytes())
    data[1234] ^= 1
    damaged.write_bytes(data)
    for extra in ((), ("--download",)):
        checked = command("verify", full, store, *extra)
        assert checked.returncode == 1
        assert "content: sub/b.bin" in checked.stdout
        assert "a.txt" not in checked.stdout


def test_every_kind_of_difference_is_named(full, tmp_path, command) -> None:
    store = tmp_path / "store"
    command("sync", full, store)
    (store / "a.txt").unlink()
    (store / "sub" / "zero").write_text("not empty")
    (store / "stranger").write_text("?")
    (store / "latest.symlink").write_text("a.txt")
    checked = command("verify", full, store, "--json")
    assert checked.returncode == 1
    *lines, last = map(json.loads, checked.stdout.splitlines())
    assert {(line["problem"], line["key"]) for line in lines} == {
        ("missing", "a.txt"),
        ("size", "sub/zero"),
        ("extra", "stranger"),
        ("content", "latest.symlink"),
    }
    assert last["summary"]["equal"] is False
    assert last["summary"]["differences"] == 4


def test_recheck_fills_gaps_that_the_journal_does_not_know(full, tmp_path, command) -> None:
    """A18, A19: one-shot sync compares with the store and brings what it lost or got wrong."""
    store = tmp_path / "store"
    command("sync", full, store)
    (store / "a.txt").unlink()
    (store / "sub" / "b.bin").write_bytes(b"\0" * 5000)
    assert command("sync", full, store, "--recheck").returncode == 0
    assert command("verify", full, store, "--download").returncode == 0


def test_deleted_local_files_are_kept_and_no_difference(full, tmp_path, command) -> None:
    store = tmp_path / "store"
    command("sync", full, store)
    (full / "a.txt").unlink()
    assert command("verify", full, store).returncode == 1, "nothing says yet that it was deleted"
    command("sync", full, store)
    checked = command("verify", full, store)
    assert checked.returncode == 0
    assert "1 object(s) of locally deleted files are kept" in checked.stdout
    assert (store / "a.txt").exists()


def test_a_mirror_made_under_a_prefix_verifies_at_its_own_url(full, tmp_path, command) -> None:
    from rundir_uploader import Uploader

    store = tmp_path / "store"
    with Uploader(full, store, prefix="runs/mine", use_procs=False) as uploader:
        pass
    assert (store / "runs/mine/latest.symlink").read_text() == "runs/mine/sub/b.bin"
    checked = command("verify", full, uploader.url)
    assert checked.returncode == 0, checked.stdout
    again = command("sync", full, uploader.url)
    assert "sent 0 B" in again.stdout, "the same destination has the same journal"


def test_selection_options(full, tmp_path, command, files_of) -> None:
    store = tmp_path / "store"
    command("sync", full, store, "--exclude", "*.bin", "--no-hidden")
    assert set(files_of(store)) == {"a.txt", "sub/zero"}
    assert command("verify", full, store, "--exclude", "*.bin", "--no-hidden").returncode == 0
    assert command("verify", full, store).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("sync",), "Missing argument"),
        (("sync", "{missing}", "x"), "does not exist"),
        (("sync", "{file}", "x"), "file"),
        (("sync", "{run}", "nonsense://x"), "unknown scheme 'nonsense'"),
        (("verify", "{run}", "s3://"), "no bucket"),
        (("sync", "{run}", "{run}/inside"), "lie one in the other"),
        (("sync", "{run}", "x", "--concurrency", "0"), "--concurrency"),
        (("sync", "{run}", "x", "--exclude", ""), "empty pattern"),
        (("explode",), "No such command"),
    ],
)
def test_wrong_usage_is_2_and_leaves_nothing_behind(
    run, tmp_path, command, monkeypatch, arguments, word
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    places = {"run": run, "missing": tmp_path / "missing", "file": tmp_path / "file"}
    done = command(*(argument.format(**places) for argument in arguments))
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert list(run.iterdir()) == []


@pytest.mark.parametrize("name", ["sync", "verify"])
def test_a_store_that_cannot_be_reached_is_3(run, command, name) -> None:
    (run / "a").write_text("a")
    nobody = {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "topsecret",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    }
    done = command(name, run, "s3://bucket/x", env=nobody)
    assert done.returncode == 3, done.stderr
    assert "topsecret" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (run / ".rundir-uploader").exists()


@pytest.mark.parametrize("name", ["sync", "verify"])
def test_missing_credentials_are_3(run, command, name, monkeypatch) -> None:
    for variable in [*os.environ]:
        if variable.startswith("AWS_"):
            monkeypatch.delenv(variable)
    done = command(name, run, "s3://bucket/x", env={"AWS_EC2_METADATA_DISABLED": "true"})
    assert done.returncode == 3, done.stderr
    assert "CredentialsError" in done.stderr


def test_a_directory_that_somebody_mirrors_is_1(run, tmp_path, command) -> None:
    from rundir_uploader import Uploader

    with Uploader(run, tmp_path / "store"):
        done = command("sync", run, tmp_path / "store")
    assert done.returncode == 1
    assert "already being mirrored by process" in done.stderr


def test_what_cannot_be_stored_is_named_and_1(run, tmp_path, command) -> None:
    (run / "good").write_text("g")
    (run / ("n" * 250)).symlink_to("good")
    done = command("sync", run, tmp_path / "store")
    assert done.returncode == 1
    assert f"missing: {'n' * 250}: InvalidKeyError" in done.stdout
    assert (tmp_path / "store" / "good").exists()
    as_json = command("sync", run, tmp_path / "store", "--json")
    first, last = map(json.loads, as_json.stdout.splitlines())
    assert first["missing"] == "n" * 250
    assert last["summary"]["missing"] == 1


def test_ctrl_c_drains_and_is_130(run, tmp_path, command, files_of) -> None:
    for number in range(2500):
        (run / f"f{number}").write_text(str(number))
    process = subprocess.Popen(
        [sys.executable, "-m", "rundir_uploader", "sync", str(run), str(tmp_path / "store")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "store").exists() or len(list((tmp_path / "store").iterdir())) < 50:
        assert process.poll() is None, "it was done before it could be interrupted"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err
    stored = files_of(tmp_path / "store")
    assert 0 < len(stored) < 2500
    assert stored.items() <= files_of(run).items(), "nothing torn"
    journal = next((run / ".rundir-uploader").glob("journal-*")).read_bytes()
    written = {row[1] for _, row in decode_lines(journal) if row[0] == "r"}
    assert written == stored.keys(), "and what was sent is written down"
    (writer,) = find_writers(LocalStore(tmp_path / "store"), "")
    head = read_head(LocalStore(tmp_path / "store"), "", writer)
    assert (head.files, head.finished) == (len(stored), False)
    assert command("sync", run, tmp_path / "store").returncode == 0
    assert files_of(tmp_path / "store") == files_of(run)


def test_help_and_version(command) -> None:
    for arguments in (("--help",), ("-h",), ("sync", "--help"), ("verify", "-h")):
        done = command(*arguments)
        assert done.returncode == 0
        assert "Usage:" in done.stdout
    assert command("--version").stdout.startswith("rundir-uploader 0.")
    script = Path(sys.executable).with_name("rundir-uploader")
    assert subprocess.run([script, "--help"], capture_output=True, check=False).returncode == 0


def test_output_is_plain_where_there_is_no_terminal(full, tmp_path, command) -> None:
    done = command("sync", full, tmp_path / "store")
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 1
