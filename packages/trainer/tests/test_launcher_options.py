"""The launcher's command line, without a launch."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stretto.trainer.launcher import cli
from stretto.trainer.launcher.logs import RankLogs
from stretto.trainer.launcher.options import LaunchOptions, settle_ranks


def settle(environment: dict[str, str] | None = None, **given: Any) -> tuple[int, int, int]:
    names = ("nproc", "world_size", "base_rank", "node_rank")
    return settle_ranks(environment or {}, **(dict.fromkeys(names) | {"count_devices": 0} | given))


@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        ({}, {}, (1, 1, 0)),
        ({}, {"count_devices": 8}, (8, 8, 0)),
        ({}, {"nproc": 2, "count_devices": 8}, (2, 2, 0)),
        ({"LOCAL_WORLD_SIZE": "3"}, {"count_devices": 8}, (3, 3, 0)),
        ({"LOCAL_WORLD_SIZE": "3"}, {"nproc": 2}, (2, 2, 0)),
        ({}, {"nproc": 2, "world_size": 6, "node_rank": 2}, (2, 6, 2)),
        ({}, {"nproc": 2, "world_size": 6, "base_rank": 4}, (2, 6, 2)),
        ({}, {"nproc": 2, "world_size": 6, "base_rank": 4, "node_rank": 2}, (2, 6, 2)),
        ({"WORLD_SIZE": "4", "NODE_RANK": "1"}, {"nproc": 2}, (2, 4, 1)),
        ({"WORLD_SIZE": "4", "BASE_RANK": "2"}, {"nproc": 2}, (2, 4, 1)),
        ({"WORLD_SIZE": "4", "NODE_RANK": "1"}, {"nproc": 2, "node_rank": 0}, (2, 4, 0)),
        ({"WORLD_SIZE": ""}, {"nproc": 2}, (2, 2, 0)),
    ],
)
def test_an_argument_comes_before_its_variable_and_that_before_what_follows(
    environment, given, expected
):
    assert settle(environment, **given) == expected


@pytest.mark.parametrize(
    ("environment", "given", "message"),
    [
        ({}, {"nproc": 0}, "--nproc is 0"),
        ({"LOCAL_WORLD_SIZE": "0"}, {}, "--nproc is 0"),
        ({"WORLD_SIZE": "two"}, {}, "WORLD_SIZE is 'two'"),
        ({}, {"nproc": 2, "world_size": 4}, "--node_rank"),
        ({}, {"nproc": 2, "world_size": 4, "base_rank": 1}, "--base_rank is 1"),
        ({}, {"nproc": 2, "world_size": 4, "base_rank": 2, "node_rank": 0}, "--base_rank is 2"),
    ],
)
def test_what_contradicts_itself_is_refused(environment, given, message):
    with pytest.raises(ValueError, match=message):
        settle(environment, **given)


def options(**changes: Any) -> LaunchOptions:
    values: dict[str, Any] = {
        "command": ("true",),
        "nproc": 2,
        "world_size": 2,
        "node_rank": 0,
        "master_addr": None,
        "master_port": None,
        "run_directory": None,
        "stdout": None,
        "stderr": None,
        "verbose": False,
    }
    return LaunchOptions(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nproc": 0}, "--nproc is 0"),
        ({"world_size": 3}, "--world_size is 3"),
        ({"world_size": 1}, "--world_size is 1"),
        ({"node_rank": 1}, "--node_rank is 1"),
        ({"world_size": 4}, "--master_addr and --master_port"),
        ({"world_size": 4, "master_addr": "a"}, "--master_addr and --master_port"),
        ({"stdout": "{rnk}.txt"}, r"\{rnk\}.*\{rank\}"),
        ({"stderr": "{0}"}, "--stderr"),
        ({"stderr": "{"}, "--stderr"),
        ({"stdout": "out.txt"}, "one file for 2 ranks"),
        ({"stdout": "{rank}", "stderr": "{rank}"}, "overwrite each other"),
    ],
)
def test_bad_options_are_refused_at_construction(changes, message):
    with pytest.raises(ValueError, match=message):
        options(**changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0", "script.py"], "--nproc is 0"),
        (["-n", "two", "script.py"], "'two' is not a valid integer"),
        (["-m", "-c", "script.py"], "exclude each other"),
        (["-n", "1", "missing.py"], "no file 'missing.py'"),
        (["-n", "1"], "Missing argument"),
        (["-n", "1", "--world_size", "2", "--node_rank", "0", "script.py"], "--master_addr"),
        (["-n", "1", "--run_directory", "script.py", "script.py"], "is a file"),
        (["-n", "1", "--run_directory", "", "script.py"], "''"),
        (["-n", "1", "--run_directory", "s3://b/x", "script.py"], "a URL"),
    ],
)
def test_wrong_usage_ends_with_2_one_message_and_nothing_made(
    arguments, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("STRETTO_RUN_DIRECTORY", "COMPOSER_RUN_DIRECTORY", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
        monkeypatch.delenv(name)
    (tmp_path / "script.py").write_text("raise SystemExit('must not run')")
    result = CliRunner().invoke(cli.stretto, arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_help_and_version_answer_without_torch():
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from stretto.trainer.launcher import cli\n"
        "for argument in ('--help', '--version'):\n"
        "    result = CliRunner().invoke(cli.stretto, [argument])\n"
        "    assert result.exit_code == 0, result.output\n"
        "    print(result.output)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert version("stretto-trainer") in done.stdout
    for flag in ("-n, --nproc", "--run_directory, --run-directory", "-v, --verbose", "--base_rank"):
        assert flag in done.stdout


def ranks(count: int) -> dict[int, dict[str, str]]:
    return {
        rank: {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "GROUP_RANK": "0",
        }
        for rank in range(count)
    }


def test_logs_that_are_there_are_never_overwritten(tmp_path: Path):
    """D3: not by the tenth run either."""
    for run in range(10):
        logs = RankLogs(tmp_path, stdout=None, stderr=None, verbose=False)
        destination = logs.reify(ranks(2))
        assert destination.stdouts == {0: "", 1: str(tmp_path / "rank_1.stdout.txt")}
        Path(destination.stdouts[1]).write_text(str(run))
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == [str(n) for n in range(10)]
    assert (tmp_path / "rank_1.stdout.txt").read_text() == "9"
