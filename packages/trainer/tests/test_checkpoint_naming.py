"""File names with variables."""

from __future__ import annotations

import datetime

import pytest

from stretto.core_events import Timestamp
from stretto.trainer.checkpoint.naming import (
    RUN_VARIABLES,
    TIME_VARIABLES,
    check_template,
    format_template,
    matching_files,
)
from stretto.trainer.checkpoint.save import check_file_name
from stretto.trainer.distributed import Topology

TOPOLOGY = Topology(
    world_size=4,
    global_rank=3,
    local_rank=1,
    local_world_size=2,
    node_rank=1,
    num_nodes=2,
    data_parallel_size=4,
    data_parallel_rank=3,
)
TIMESTAMP = Timestamp(
    epoch=2,
    batch=31,
    batch_in_epoch=3,
    sample=992,
    sample_in_epoch=96,
    token=7,
    token_in_epoch=1,
    total_wct=datetime.timedelta(seconds=90),
)


def formatted(template):
    return format_template(template, run_name="r", topology=TOPOLOGY, timestamp=TIMESTAMP)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("ep{epoch}-ba{batch}-rank{rank}.pt", "ep2-ba31-rank0.pt"),
        ("latest-rank{rank}.pt", "latest-rank0.pt"),
        ("{run_name}/{batch_in_epoch:04d}", "r/0003"),
        ("{sample}-{sample_in_epoch}-{token}-{token_in_epoch}", "992-96-7-1"),
        ("{world_size}-{local_world_size}-{node_rank}-{local_rank}", "4-2-0-0"),
        ("{total_wct}", "90.0"),
        ("{{{epoch}}}", "{2}"),
    ],
)
def test_variables_are_those_of_the_rank_that_writes(template, expected):
    assert formatted(check_template("name", template)) == expected


def test_the_run_directory_is_a_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("STRETTO_RUN_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("COMPOSER_RUN_DIRECTORY", str(tmp_path))
    assert formatted("{run_directory}/checkpoints") == f"{tmp_path}/checkpoints"


def test_every_variable_of_composer_is_known():
    # composer-surface.md section 6
    composer = {"run_name", "rank", "local_rank", "world_size", "local_world_size", "node_rank"}
    composer |= {"epoch", "batch", "batch_in_epoch", "sample", "sample_in_epoch", "token"}
    composer |= {"token_in_epoch", "total_wct", "epoch_wct", "batch_wct"}
    assert composer <= set(RUN_VARIABLES + TIME_VARIABLES)
    for name in composer:
        assert formatted(f"{{{name}}}")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("ep{epok}.pt", r"{epok} is no variable it knows. Use {run_name}"),
        ("ep{}.pt", r"{} is no variable"),
        ("ep{epoch.pt", "braces do not match"),
        ("{epoch.__class__}", "no variable it knows"),
    ],
)
def test_unknown_variables_are_named(template, message):
    with pytest.raises(ValueError, match=message):
        check_template("save_filename", template)


def test_a_folder_may_not_move_with_time():
    with pytest.raises(ValueError, match=r"save_folder is 'a/{epoch}'"):
        check_template("save_folder", "a/{epoch}", moving=False)


@pytest.mark.parametrize("name", ["", "/abs.pt", "../up.pt", "a/../../up.pt", "folder/"])
def test_a_file_name_stays_in_its_folder(name):
    with pytest.raises(ValueError, match=r"save_filename is .*relative to the folder"):
        check_file_name("save_filename", name)


def test_files_that_a_template_could_have_named_are_found(tmp_path):
    for name in (
        "ep1-ba10-rank0.pt",
        "ep12-ba9-rank0.pt",
        "ep1-ba10-rank1.pt",
        "epX-ba10-rank0.pt",
        "ep1-ba10-rank0.pt.tmp",
        "notes.txt",
    ):
        (tmp_path / name).touch()
    (tmp_path / "ep3-ba3-rank0.pt").mkdir()
    found = matching_files(
        tmp_path, "ep{epoch}-ba{batch}-rank{rank}.pt", run_name="r", topology=TOPOLOGY
    )
    assert found == ["ep1-ba10-rank0.pt", "ep12-ba9-rank0.pt"]


def test_names_with_folders_and_special_characters_are_found(tmp_path):
    (tmp_path / "r.1").mkdir()
    (tmp_path / "rx1").mkdir()
    (tmp_path / "r.1" / "ba(003)+90.5.pt").touch()
    (tmp_path / "rx1" / "ba(003)+90.5.pt").touch()
    found = matching_files(
        tmp_path,
        "{run_name}/ba({batch:03d})+{total_wct}.pt",
        run_name="r.1",
        topology=TOPOLOGY,
    )
    assert found == ["r.1/ba(003)+90.5.pt"]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path):
    assert matching_files(tmp_path / "no", "{epoch}", run_name="r", topology=TOPOLOGY) == []
