"""What is in a checkpoint, and what reading one refuses."""

from __future__ import annotations

import logging
import os
import random
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from stretto.core_events import Timestamp
from stretto.trainer.checkpoint import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    TornCheckpointError,
    UnsafeCheckpointError,
    capture_rng_state,
    load_checkpoint,
    restore_rng_state,
    save_checkpoint,
)
from stretto.trainer.checkpoint.plain import plain
from stretto.trainer.devices import DeviceCPU
from stretto.trainer.distributed import Topology
from stretto.trainer.parallel import make_strategy


class State:
    """The least that saving and loading need, over a real strategy."""

    run_name = "files"
    timestamp = Timestamp(epoch=1, batch=2)
    topology = Topology.single()

    def __init__(self, model=None, extra=None):
        self.model = nn.Linear(3, 2) if model is None else model
        self.extra = extra
        self.strategy = make_strategy(None, self.topology, DeviceCPU())
        self.prepared = self.strategy.prepare(self.model, [], DeviceCPU())

    def model_state_dict(self):
        return self.strategy.model_state_dict(self.prepared)

    def load_model_state_dict(self, state_dict, *, strict=True):
        return self.strategy.load_model_state_dict(self.prepared, state_dict, strict=strict)

    def state_dict(self):
        return {"model": self.model_state_dict(), "extra": self.extra}

    def load_state_dict(self, state, *, strict=True):
        self.load_model_state_dict(state["model"], strict=strict)
        self.extra = state["extra"]


def draws():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_what_was_saved_comes_back(tmp_path):
    extra = {
        "none": None,
        "numbers": [1, 2.5, True, float("inf")],
        "tuple": (1, ("a", b"b")),
        "set": {1, "x"},
        "tensors": [torch.arange(3), torch.ones(2, dtype=torch.bfloat16), torch.tensor(1.5)],
        "dtype": torch.float16,
        3: {("a", 1): "tuple key"},
        "text": "naïve ✓",
    }
    saved = State(extra=extra)
    path = save_checkpoint(saved, "ep{epoch}-ba{batch}-rank{rank}.pt", folder=tmp_path)
    assert path == str(tmp_path / "ep1-ba2-rank0.pt")
    loaded = State()
    assert not torch.equal(loaded.model.weight, saved.model.weight)
    load_checkpoint(loaded, path)
    assert torch.equal(loaded.model.weight, saved.model.weight)
    tensors, expected = loaded.extra.pop("tensors"), extra.pop("tensors")
    assert loaded.extra == extra
    for tensor, other in zip(tensors, expected, strict=True):
        torch.testing.assert_close(tensor, other, rtol=0, atol=0)


def test_the_file_is_an_ordinary_torch_file_with_a_documented_layout(tmp_path):
    path = save_checkpoint(State(extra=1), "a.pt", folder=tmp_path)
    content = torch.load(path, weights_only=True)
    assert content.keys() == {"version", "state", "rng"}
    assert content["state"].keys() == {"model", "extra"}
    assert [rank.keys() for rank in content["rng"]] == [{"python", "numpy", "torch"}]


def test_a_relative_name_means_the_working_directory_then(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert save_checkpoint(State()) == str(tmp_path / "ep1-ba2-rank0")
    assert (tmp_path / "ep1-ba2-rank0").is_file()


def test_weights_only_saves_and_loads_nothing_else(tmp_path):
    saved = State(extra="secret")
    path = save_checkpoint(saved, "a.pt", folder=tmp_path, weights_only=True)
    assert torch.load(path, weights_only=True)["state"].keys() == {"model"}
    loaded = State(extra="mine")
    assert load_checkpoint(loaded, path, weights_only=True) is None
    assert torch.equal(loaded.model.weight, saved.model.weight)
    assert loaded.extra == "mine"


def test_random_numbers_go_on_where_they_were(tmp_path):
    for module in (random, np.random):
        module.seed(5)
    torch.manual_seed(5)
    random.gauss(0, 1)
    np.random.randn()
    draws()
    path = save_checkpoint(State(), "a.pt", folder=tmp_path)
    expected = [draws() for _ in range(3)], random.gauss(0, 1), np.random.randn()
    restore_rng_state(load_checkpoint(State(), path))
    assert ([draws() for _ in range(3)], random.gauss(0, 1), np.random.randn()) == expected


def test_loading_leaves_random_numbers_alone(tmp_path):
    path = save_checkpoint(State(), "a.pt", folder=tmp_path)
    torch.manual_seed(1)
    state = State()
    before = capture_rng_state()
    load_checkpoint(state, path)
    after = capture_rng_state()
    assert torch.equal(before["torch"], after["torch"])
    assert torch.equal(before["numpy"]["key"], after["numpy"]["key"])


class Payload:
    """Field report K17: unpickling runs this."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def test_a_payload_is_refused_and_not_run(tmp_path):
    mark, path = tmp_path / "ran", tmp_path / "evil.pt"
    torch.save({"state": {"model": Payload(mark)}, "rng": []}, path)
    with pytest.raises(UnsafeCheckpointError, match=r"evil\.pt was refused: .*run code"):
        load_checkpoint(State(), path)
    assert not mark.exists()
    # The oracle: torch itself, told to, would run it.
    torch.load(path, weights_only=False)
    assert mark.exists()


Point = namedtuple("Point", "x y")


class Opaque:
    pass


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"callbacks": {"Mine": {"thing": Opaque()}}}, "state/callbacks/Mine/thing is a"),
        ([0, Opaque], "state/1 is a builtins.type"),
        ({Opaque(): 1}, r"state.* \(a key\) is a"),
        (np.arange(3), "state is a numpy.ndarray"),
        (lambda: 0, "state is a builtins.function"),
    ],
)
def test_what_could_not_be_read_again_is_refused_before_it_is_written(tmp_path, value, where):
    with pytest.raises(UnsafeCheckpointError, match=where):
        plain(value, "state")
    with pytest.raises(UnsafeCheckpointError):
        save_checkpoint(State(extra=value), "a.pt", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_near_relatives_of_plain_data_become_plain(tmp_path):
    value = {
        "ordered": OrderedDict(a=1),
        "named": Point(1, 2),
        "numpy": np.float64(1.5),
        "integer": np.int64(3),
        "parameter": nn.Parameter(torch.ones(2)),
        "frozen": frozenset({1}),
    }
    path = save_checkpoint(State(extra=value), "a.pt", folder=tmp_path)
    read = torch.load(path, weights_only=True)["state"]["extra"]
    assert (read["ordered"], read["named"], read["frozen"]) == ({"a": 1}, (1, 2), {1})
    assert (type(read["numpy"]), type(read["integer"])) == (float, int)
    assert not isinstance(read["parameter"], nn.Parameter)


def test_a_view_does_not_bring_its_whole_tensor_along(tmp_path):
    base = torch.zeros(1 << 20)
    path = save_checkpoint(State(extra=[base[:10], base[5:7]]), "a.pt", folder=tmp_path)
    assert Path(path).stat().st_size < 100_000
    assert [len(view) for view in torch.load(path, weights_only=True)["state"]["extra"]] == [10, 2]


def test_shared_tensors_are_written_once(tmp_path):
    shared = torch.zeros(1 << 18)
    path = save_checkpoint(State(extra=[shared, shared.detach(), shared]), "a.pt", folder=tmp_path)
    assert Path(path).stat().st_size < 1.5 * shared.numel() * 4


def test_what_was_loaded_does_not_depend_on_the_file_any_more(tmp_path):
    saved = State(extra={"average": torch.full((1000,), 7.0)})
    path = save_checkpoint(saved, "a.pt", folder=tmp_path)
    loaded = State()
    rng = load_checkpoint(loaded, path)
    with Path(path).open("r+b") as file:  # in place, not by rename
        file.write(b"\0" * Path(path).stat().st_size)
    assert torch.equal(loaded.extra["average"], saved.extra["average"])
    assert torch.equal(loaded.model.weight, saved.model.weight)
    restore_rng_state(rng)


@pytest.mark.parametrize("keep", [0, 1, 100, -1, -22, "half"])
def test_a_torn_file_is_named(tmp_path, keep):
    path = save_checkpoint(State(extra=torch.zeros(10_000)), "a.pt", folder=tmp_path)
    size = Path(path).stat().st_size
    left = size // 2 if keep == "half" else keep % size
    os.truncate(path, left)
    with pytest.raises(TornCheckpointError, match=rf"a\.pt .*{left} bytes"):
        load_checkpoint(State(), path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weight": torch.ones(1)}, "no checkpoint of this trainer: it has no weights under"),
        ([1, 2], "no checkpoint of this trainer"),
        ({"version": 99, "state": {"model": {}}, "rng": []}, "has the format 99"),
    ],
)
def test_other_files_of_torch_are_told_apart(tmp_path, content, message):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(TornCheckpointError, match=message):
        load_checkpoint(State(), tmp_path / "a.pt")


def test_a_zip_file_of_somebody_else_is_no_checkpoint(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("hello", "world")
    with pytest.raises(TornCheckpointError, match=r"a\.pt is damaged"):
        load_checkpoint(State(), tmp_path / "a.pt")


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no checkpoint at .*/nope\.pt"):
        load_checkpoint(State(), tmp_path / "nope.pt")
    assert issubclass(CheckpointNotFoundError, CheckpointError)


def test_missing_and_unexpected_weights_are_listed(tmp_path, caplog):
    """Field report K18: a wrong model used to load without a word."""
    path = save_checkpoint(State(nn.Sequential(nn.Linear(3, 2))), "a.pt", folder=tmp_path)
    renamed = nn.Sequential()
    renamed.add_module("renamed", nn.Linear(3, 2))
    before = renamed.renamed.weight.detach().clone()
    with pytest.raises(CheckpointMismatchError) as raised:
        load_checkpoint(State(renamed), path)
    text = str(raised.value)
    assert "in the model, not in the checkpoint (2):\n    renamed.weight\n    renamed.bias" in text
    assert "in the checkpoint, not in the model (2):\n    0.weight\n    0.bias" in text
    assert "load_strict_model_weights=False" in text
    assert torch.equal(renamed.renamed.weight, before)

    caplog.set_level(logging.WARNING)
    load_checkpoint(State(renamed), path, weights_only=True, strict_model_weights=False)
    assert "lacks weights of the model: renamed.bias, renamed.weight" in caplog.text
    assert "has weights the model lacks: 0.bias, 0.weight" in caplog.text


def test_another_shape_is_always_an_error_and_changes_nothing(tmp_path):
    path = save_checkpoint(State(nn.Linear(3, 2)), "a.pt", folder=tmp_path)
    other = nn.Linear(4, 2)
    bias = other.bias.detach().clone()
    with pytest.raises(CheckpointMismatchError, match=r"weight \(\(2, 3\) in the file, \(2, 4\)"):
        load_checkpoint(State(other), path, strict_model_weights=False)
    assert torch.equal(other.bias, bias)


def optimizer_for(model, **groups):
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def test_an_optimizer_of_other_parameters_is_refused():
    strategy = make_strategy(None, Topology.single(), DeviceCPU())
    saved = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    prepared = strategy.prepare(saved, [optimizer_for(saved)], DeviceCPU())
    state = strategy.optimizer_state_dict(prepared, 0)

    other = nn.ModuleDict({"a": nn.Linear(2, 2), "c": nn.Linear(2, 2)})
    prepared = strategy.prepare(other, [optimizer_for(other)], DeviceCPU())
    with pytest.raises(CheckpointMismatchError) as raised:
        strategy.load_optimizer_state_dict(prepared, 0, state)
    text = str(raised.value)
    assert "In the file, not in the optimizer: b.bias, b.weight" in text
    assert "In the optimizer, not in the file: c.bias, c.weight" in text

    regrouped = torch.optim.AdamW(
        [{"params": saved["a"].parameters()}, {"params": saved["b"].parameters()}]
    )
    prepared = strategy.prepare(saved, [regrouped], DeviceCPU())
    with pytest.raises(CheckpointMismatchError, match=r"1 parameter groups in the file, 2 here"):
        strategy.load_optimizer_state_dict(prepared, 0, state)


def test_saving_before_the_first_step_invents_no_optimizer_state():
    model = nn.Linear(2, 2)
    strategy = make_strategy(None, Topology.single(), DeviceCPU())
    prepared = strategy.prepare(model, [optimizer_for(model)], DeviceCPU())
    assert strategy.optimizer_state_dict(prepared, 0)["state"] == {}


def test_parameter_order_does_not_matter_names_do():
    strategy = make_strategy(None, Topology.single(), DeviceCPU())
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    optimizer = optimizer_for(model)
    prepared = strategy.prepare(model, [optimizer], DeviceCPU())
    model["b"](model["a"](torch.ones(1, 2))).sum().backward()
    optimizer.step()
    saved = strategy.optimizer_state_dict(prepared, 0)

    swapped = torch.optim.AdamW(reversed(list(model.parameters())), lr=0.7)
    prepared = strategy.prepare(model, [swapped], DeviceCPU())
    strategy.load_optimizer_state_dict(prepared, 0, saved)
    for parameter in model.parameters():
        ours, theirs = swapped.state[parameter], optimizer.state[parameter]
        assert torch.equal(ours["exp_avg"], theirs["exp_avg"])
        assert ours["exp_avg"].data_ptr() != theirs["exp_avg"].data_ptr()
    assert swapped.param_groups[0]["lr"] == 0.1


def test_a_pointer_may_be_given_and_variables_too(tmp_path, monkeypatch):
    monkeypatch.setenv("STRETTO_RUN_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("COMPOSER_RUN_DIRECTORY", str(tmp_path))
    saved = State()
    save_checkpoint(saved, "a.pt", folder=tmp_path / "c", pointer="latest-rank{rank}.pt")
    loaded = State()
    load_checkpoint(loaded, "{run_directory}/c/latest-rank{rank}.pt")
    assert torch.equal(loaded.model.weight, saved.model.weight)
    with pytest.raises(ValueError, match=r"load_path is .*{epoch} is no variable"):
        load_checkpoint(loaded, "ep{epoch}.pt")


def test_a_url_is_fetched(tmp_path):
    saved = State()
    save_checkpoint(saved, "a.pt", folder=tmp_path / "bucket" / "run" / "checkpoints")
    folder = tmp_path / "bucket" / "run" / "checkpoints"
    (folder / "latest-rank0.pt.symlink").write_text("run/checkpoints/a.pt")
    for name in ("a.pt", "latest-rank0.pt"):
        loaded = State()
        load_checkpoint(loaded, f"file://{folder}/{name}")
        assert torch.equal(loaded.model.weight, saved.model.weight)
    with pytest.raises(FileNotFoundError, match="There is no checkpoint at file://"):
        load_checkpoint(State(), f"file://{folder}/b.pt")
    with pytest.raises(CheckpointError, match="could not be fetched"):
        load_checkpoint(State(), "nonsense://bucket/a.pt")
