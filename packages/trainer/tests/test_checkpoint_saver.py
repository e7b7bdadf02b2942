"""The callback that saves: when, where, and what it refuses to overwrite."""

from __future__ import annotations

import os
import stat
import types

import pytest
import torch

from stretto.core_events import Event, Logger, Time, Timestamp, TimeStringError, TimeUnit
from stretto.trainer.checkpoint import CheckpointError, CheckpointExistsError, CheckpointSaver
from stretto.trainer.distributed import Topology


class State:
    run_name = "saver"
    topology = Topology.single()
    max_duration = Time(2, TimeUnit.EPOCH)
    dataloader_len = 3
    iteration_length = None

    def __init__(self):
        self.timestamp = Timestamp()

    def model_state_dict(self):
        return {"weight": torch.tensor([float(self.timestamp.batch_count)])}

    def state_dict(self):
        return {"model": self.model_state_dict()}


LOGGER = types.SimpleNamespace()


def fit(saver, state=None, epochs=2):
    state = state or State()
    saver.init(state, LOGGER)
    for _ in range(epochs):
        for _ in range(state.dataloader_len):
            state.timestamp = state.timestamp.to_next_batch(samples=4)
            saver.batch_checkpoint(state, LOGGER)
        state.timestamp = state.timestamp.to_next_epoch()
        saver.epoch_checkpoint(state, LOGGER)
    return state


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_saves_at_the_end_of_each_epoch_and_points_to_the_newest(tmp_path):
    saver = CheckpointSaver(tmp_path)
    fit(saver)
    assert names(tmp_path) == ["ep1-ba3-rank0.pt", "ep2-ba6-rank0.pt", "latest-rank0.pt"]
    assert str((tmp_path / "latest-rank0.pt").readlink()) == "ep2-ba6-rank0.pt"
    assert saver.saved_checkpoints == [
        str(tmp_path / "ep1-ba3-rank0.pt"),
        str(tmp_path / "ep2-ba6-rank0.pt"),
    ]


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (2, ["ep2-ba6"]),
        ("2ba", ["ep0-ba2", "ep1-ba4", "ep1-ba6"]),
        ("4ba", ["ep1-ba4", "ep2-ba6"]),
        (
            lambda state, event: event is Event.BATCH_CHECKPOINT,
            ["ep0-ba1", "ep0-ba2", "ep0-ba3", "ep1-ba4", "ep1-ba5", "ep1-ba6"],
        ),
    ],
)
def test_intervals(tmp_path, interval, expected):
    saver = CheckpointSaver(tmp_path, "ep{epoch}-ba{batch}", None, interval)
    fit(saver)
    assert names(tmp_path) == expected


def test_no_pointer_if_none_is_asked_for_and_one_name_may_serve_for_all(tmp_path):
    saver = CheckpointSaver(tmp_path, "model.pt", None)
    fit(saver)
    assert names(tmp_path) == ["model.pt"]
    assert saver.saved_checkpoints == [str(tmp_path / "model.pt")]
    assert torch.load(tmp_path / "model.pt")["state"]["model"]["weight"].tolist() == [6.0]


def test_the_folder_is_settled_when_the_callback_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saver = CheckpointSaver("out/{run_name}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    fit(saver)
    assert len(names(tmp_path / "out" / "saver")) == 3


def test_a_working_directory_with_braces_is_just_a_name(tmp_path, monkeypatch):
    (tmp_path / "{epoch}").mkdir()
    monkeypatch.chdir(tmp_path / "{epoch}")
    saver = CheckpointSaver("out")
    fit(saver)
    assert len(names(tmp_path / "{epoch}" / "out")) == 3


def test_leftovers_are_cleared_where_files_go(tmp_path):
    import socket
    import subprocess
    import sys

    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / "ep0").mkdir()
    left = [f".x.pt.{socket.gethostname()}-{dead.pid}.tmp", ".x.pt.elsewhere-1.tmp"]
    for name in left:
        (tmp_path / "ep0" / name).touch()
    CheckpointSaver(tmp_path, "ep{epoch}/{batch}.pt").init(State(), LOGGER)
    assert names(tmp_path / "ep0") == left[1:]


def test_the_default_folder_is_in_the_run_directory(tmp_path, monkeypatch):
    for name in ("STRETTO_RUN_DIRECTORY", "COMPOSER_RUN_DIRECTORY"):
        monkeypatch.setenv(name, str(tmp_path / "run"))
    saver = CheckpointSaver()
    fit(saver)
    assert len(names(tmp_path / "run" / "checkpoints")) == 3


def test_files_of_an_earlier_run_are_not_overwritten_unasked(tmp_path):
    fit(CheckpointSaver(tmp_path))
    before = (tmp_path / "ep1-ba3-rank0.pt").read_bytes()
    with pytest.raises(CheckpointExistsError, match=r"ep1-ba3-rank0\.pt and 1 more.*load_path"):
        CheckpointSaver(tmp_path).init(State(), LOGGER)
    with pytest.raises(FileExistsError):
        CheckpointSaver(tmp_path).init(State(), LOGGER)
    assert (tmp_path / "ep1-ba3-rank0.pt").read_bytes() == before
    fit(CheckpointSaver(tmp_path, overwrite=True))


def test_files_that_are_not_in_the_way_are_no_matter(tmp_path):
    (tmp_path / "ep1-ba3-rank0.txt").touch()
    (tmp_path / "notes.md").touch()
    fit(CheckpointSaver(tmp_path))


@pytest.mark.parametrize("source", ["latest-rank0.pt", "ep1-ba3-rank0.pt"])
def test_resuming_into_the_same_folder_replaces_later_files(tmp_path, source):
    """Field report K4: there was no setting that allowed this."""
    fit(CheckpointSaver(tmp_path))
    saver = CheckpointSaver(tmp_path, load_path=tmp_path / source)
    state = State()
    state.timestamp = Timestamp(epoch=1, batch=3)
    fit(saver, state, epochs=1)
    assert saver.saved_checkpoints == [str(tmp_path / "ep2-ba6-rank0.pt")]


def test_resuming_from_elsewhere_does_not_excuse_files_in_the_way(tmp_path):
    fit(CheckpointSaver(tmp_path / "old"))
    fit(CheckpointSaver(tmp_path / "new"))
    saver = CheckpointSaver(tmp_path / "new", load_path=tmp_path / "old" / "latest-rank0.pt")
    with pytest.raises(CheckpointExistsError):
        saver.init(State(), LOGGER)


def test_a_relative_load_path_is_understood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(CheckpointSaver("c"))
    CheckpointSaver("c", load_path="c/latest-rank0.pt").init(State(), LOGGER)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folder": "s3://bucket/run"}, r"save_folder is 's3://bucket/run', a URL.*RunDirectoryUp"),
        ({"folder": "a/{epoch}"}, "save_folder is .*{epoch} is no variable"),
        ({"filename": "{run}.pt"}, "save_filename is .*{run} is no variable"),
        ({"filename": "/abs/{epoch}.pt"}, "relative to the folder"),
        ({"latest_filename": "../latest"}, "save_latest_filename is '../latest'"),
    ],
)
def test_bad_names_are_refused_at_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        CheckpointSaver(**arguments)


def test_a_wrong_interval_is_refused_at_construction(tmp_path):
    with pytest.raises(TimeStringError):
        CheckpointSaver(tmp_path, save_interval="often")


def test_a_folder_that_is_a_file_is_refused_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        CheckpointError, match=r"save_folder is .*file/checkpoints, but .*file is not"
    ):
        CheckpointSaver(tmp_path / "file" / "checkpoints").init(State(), LOGGER)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_refused_before_training(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(CheckpointError, match="may not be written to"):
            CheckpointSaver(tmp_path / "new").init(State(), LOGGER)
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_checking_makes_nothing(tmp_path):
    CheckpointSaver(tmp_path / "a" / "b").init(State(), LOGGER)
    assert names(tmp_path) == []


def test_it_hears_the_checkpoint_events_of_an_engine(tmp_path):
    from stretto.core_events import Engine
    from stretto.core_events.testing import ScriptedState

    class Saved(ScriptedState):
        topology = Topology.single()

        def state_dict(self):
            return {"model": {}}

        model_state_dict = state_dict

    saver = CheckpointSaver(tmp_path, save_interval="1ba")
    state = Saved(run_name="engine")
    state.callbacks.append(saver)
    engine = Engine(state, Logger(state))
    engine.run_event(Event.INIT)
    state.timestamp = Timestamp().to_next_batch()
    engine.run_event(Event.BATCH_CHECKPOINT)
    engine.close()
    assert names(tmp_path) == ["ep0-ba1-rank0.pt", "latest-rank0.pt"]
