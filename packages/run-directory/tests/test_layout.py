from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stretto.run_directory import (
    RUN_DIRECTORY_VARIABLES,
    InvalidRunDirectoryError,
    RunDirectoryError,
    RunDirectoryIsAFileError,
    RunDirectoryPermissionError,
    create_node_run_directory,
    create_run_directory,
    get_node_run_directory,
    get_run_directory,
    set_run_directory,
)

GETTERS = [get_node_run_directory, get_run_directory, set_run_directory]


def test_the_example_of_the_seed_document_holds_in_a_fresh_process(workplace):
    code = (
        "import os\n"
        "os.environ['COMPOSER_RUN_DIRECTORY'] = './path/to/my_run_directory'\n"
        "from stretto import run_directory\n"
        "print(os.path.relpath(run_directory.get_run_directory()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "path/to/my_run_directory/rank_0\n"


def test_an_argument_wins_over_both_variables(workplace, monkeypatch):
    monkeypatch.setenv("STRETTO_RUN_DIRECTORY", "ours")
    monkeypatch.setenv("COMPOSER_RUN_DIRECTORY", "theirs")
    assert set_run_directory("mine") == str(workplace / "mine")
    assert get_node_run_directory() == str(workplace / "mine")


def test_our_variable_wins_over_composers(workplace, monkeypatch):
    monkeypatch.setenv("STRETTO_RUN_DIRECTORY", "ours")
    monkeypatch.setenv("COMPOSER_RUN_DIRECTORY", "theirs")
    assert get_node_run_directory() == str(workplace / "ours")


def test_composers_variable_wins_over_the_default(workplace, monkeypatch):
    monkeypatch.setenv("COMPOSER_RUN_DIRECTORY", "theirs")
    assert get_node_run_directory() == str(workplace / "theirs")


def test_the_default_is_a_timestamp_below_runs(workplace):
    name = Path(get_node_run_directory())
    assert name.parent == workplace / "runs"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{6}Z", name.name)


def test_settling_exports_one_absolute_path_in_both_variables(workplace):
    settled = set_run_directory("here")
    assert [os.environ[name] for name in RUN_DIRECTORY_VARIABLES] == [settled, settled]
    assert Path(settled).is_absolute()


def test_settling_again_without_a_path_changes_nothing(workplace, monkeypatch):
    settled = set_run_directory("here")
    monkeypatch.chdir("/")
    assert set_run_directory() == settled
    assert get_node_run_directory() == settled


def test_settling_elsewhere_takes_effect(workplace):
    set_run_directory("here")
    assert set_run_directory("there") == get_node_run_directory() == str(workplace / "there")


def test_path_objects_are_taken_and_a_home_is_expanded(workplace, monkeypatch):
    monkeypatch.setenv("HOME", str(workplace / "home"))
    assert set_run_directory(workplace / "x") == str(workplace / "x")
    assert set_run_directory("~/x") == str(workplace / "home" / "x")


def test_two_dots_behind_a_link_mean_what_the_disk_says(workplace):
    (workplace / "disk" / "data").mkdir(parents=True)
    (workplace / "link").symlink_to("disk/data")
    assert set_run_directory("link/../run") == str((workplace / "disk" / "run").resolve())


def test_a_rank_has_a_folder_of_its_own(workplace, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    set_run_directory("here")
    assert get_run_directory() == str(workplace / "here" / "rank_3")


@pytest.mark.parametrize("getter", GETTERS)
def test_asking_creates_nothing(getter, workplace):
    getter()
    assert list(workplace.iterdir()) == []


def test_creating_makes_the_nodes_and_the_ranks_folder_and_may_be_repeated(workplace, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    set_run_directory("a/b")
    assert create_run_directory() == create_run_directory() == str(workplace / "a/b/rank_1")
    assert (workplace / "a/b/rank_1").is_dir()


def test_the_nodes_folder_can_be_made_without_a_ranks(workplace):
    set_run_directory("here")
    assert create_node_run_directory() == str(workplace / "here")
    assert list((workplace / "here").iterdir()) == []


@pytest.mark.parametrize("value", ["", "  ", "/", "//", "s3://bucket/run", "file:///tmp/x"])
@pytest.mark.parametrize("variable", RUN_DIRECTORY_VARIABLES)
def test_a_variable_that_names_no_folder_is_named_in_the_error(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    for getter in GETTERS:
        with pytest.raises(InvalidRunDirectoryError, match=variable) as caught:
            getter()
        assert repr(value) in str(caught.value)
        assert isinstance(caught.value, RunDirectoryError | ValueError)


@pytest.mark.parametrize("value", ["", " ", "/", "a\0b", "gs://x", "nobody-knows-this/../.."])
def test_an_argument_that_names_no_folder_is_refused_and_exports_nothing(
    value, workplace, monkeypatch
):
    monkeypatch.chdir("/tmp")
    with pytest.raises(InvalidRunDirectoryError):
        set_run_directory(value)
    assert not any(name in os.environ for name in RUN_DIRECTORY_VARIABLES)


def test_a_home_of_nobody_is_refused():
    with pytest.raises(InvalidRunDirectoryError, match="no-such-user"):
        set_run_directory("~no-such-user/x")


def test_a_working_directory_that_is_gone_gives_a_clear_error(workplace, monkeypatch):
    gone = workplace / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InvalidRunDirectoryError, match="Give an absolute path"):
        get_node_run_directory()


@pytest.mark.parametrize("path", ["file", "file/run", "file/deep/er", "dangling", "dangling/x"])
def test_a_file_in_the_way_is_named(path, workplace, monkeypatch):
    (workplace / "file").write_text("precious")
    (workplace / "dangling").symlink_to("nowhere")
    for variable in RUN_DIRECTORY_VARIABLES:
        monkeypatch.setenv(variable, path)
        with pytest.raises(RunDirectoryIsAFileError, match=path.split("/")[0]):
            get_node_run_directory()
        monkeypatch.delenv(variable)
    with pytest.raises(NotADirectoryError):
        set_run_directory(path)
    assert (workplace / "file").read_text() == "precious"


def test_a_file_that_gets_in_the_way_after_settling_is_named_too(workplace):
    settled = Path(set_run_directory("here"))
    settled.write_text("")
    for function in (get_node_run_directory, get_run_directory, create_run_directory):
        with pytest.raises(RunDirectoryIsAFileError, match="here"):
            function()


def test_a_file_where_the_ranks_folder_belongs_is_named(workplace):
    Path(set_run_directory("here")).mkdir()
    (workplace / "here" / "rank_0").write_text("")
    with pytest.raises(RunDirectoryIsAFileError, match="rank_0"):
        create_run_directory()


def test_a_link_that_points_at_itself_is_named(workplace):
    (workplace / "loop").symlink_to("loop")
    with pytest.raises(RunDirectoryIsAFileError, match="loop"):
        set_run_directory("loop/run")


def test_a_link_to_a_folder_is_a_folder(workplace):
    (workplace / "real").mkdir()
    (workplace / "link").symlink_to("real")
    set_run_directory("link")
    create_run_directory()
    assert (workplace / "real" / "rank_0").is_dir()


def test_a_full_disk_does_not_disturb_asking_and_creating_says_so(workplace, monkeypatch):
    """R8."""

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "mkdir", full)
    assert get_run_directory()
    with pytest.raises(RunDirectoryError, match=r"No space left.*--run_directory") as caught:
        create_run_directory()
    assert caught.value.errno == errno.ENOSPC


_AS_NOBODY = """
import os, sys
from stretto.run_directory import create_run_directory, set_run_directory
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    set_run_directory(sys.argv[1])
    create_run_directory()
except PermissionError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="must become nobody")
@pytest.mark.parametrize("kind", ["hidden parent", "read-only parent", "read-only folder"])
def test_a_path_without_permission_gives_a_clear_error(kind, tmp_path_factory):
    base = Path("/tmp") / f"stretto-permission-{os.getpid()}"
    base.mkdir()
    try:
        parent = base / "parent"
        parent.mkdir()
        run = parent / "run"
        if kind == "read-only folder":
            (run / "rank_0").mkdir(parents=True)
        else:
            parent.chmod(0o700 if kind == "hidden parent" else 0o755)
        done = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY, str(run)],
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
        )
        assert done.stdout.startswith(RunDirectoryPermissionError.__name__), done
        assert str(run) in done.stdout
        assert "--run_directory" in done.stdout
    finally:
        for path in (base / "parent" / "run" / "rank_0", base / "parent" / "run", base / "parent"):
            if path.exists():
                path.chmod(stat.S_IRWXU)
                path.rmdir()
        base.rmdir()


def test_threads_that_ask_first_at_once_agree(workplace):
    answers: list[str] = []
    gate = threading.Barrier(16)

    def ask() -> None:
        gate.wait()
        answers.append(get_node_run_directory())

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 16
    assert len(set(answers)) == 1
