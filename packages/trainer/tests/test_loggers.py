"""The loggers under the real engine and logger, driven by a scripted loop."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.core_events import Engine, Event, Logger, LoggerDestination
from stretto.core_events.testing import ScriptedState
from stretto.run_directory import set_run_directory
from stretto.trainer.loggers import (
    ConsoleLogger,
    FileLogger,
    InMemoryLogger,
    ProgressBarLogger,
)

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Run:
    """A training loop without training: events, timestamps and metrics as a trainer gives them."""

    def __init__(self, *destinations: LoggerDestination[Any], **state: Any) -> None:
        self.state = ScriptedState(dataloader_label="train", **state)
        self.logger = Logger(self.state, destinations)
        self.engine = Engine(self.state, self.logger)
        self.engine.run_event(Event.INIT)

    def fit(
        self,
        epochs: int,
        batches: int,
        *,
        evaluate_every: int = 0,
        epochs_before: int = 0,
        in_batch: Callable[[int], None] | None = None,
    ) -> None:
        run = self.engine.run_event
        run(Event.FIT_START)
        for epoch in range(epochs):
            run(Event.EPOCH_START)
            for batch in range(batches):
                run(Event.BATCH_START)
                if in_batch is not None:
                    in_batch(batch)
                loss = 1.0 / (1 + self.state.timestamp.batch_count)
                self.state.step()
                self.logger.log_metrics({"loss/train/total": lambda loss=loss: loss})
                run(Event.BATCH_END)
                if evaluate_every and (batch + 1) % evaluate_every == 0:
                    self.evaluate()
            self.state.end_epoch()
            self.logger.log_metrics({"metrics/train/Accuracy": 0.5 + epoch})
            self.logger.flush()
            run(Event.EPOCH_END)
        run(Event.FIT_END)

    def evaluate(self, batches: int = 2) -> None:
        before = (self.state.dataloader_label, self.state.dataloader_len)
        self.state.dataloader_label, self.state.dataloader_len = "eval", batches
        self.state.eval_timestamp = type(self.state.timestamp)()
        self.engine.run_event(Event.EVAL_START)
        for _ in range(batches):
            self.engine.run_event(Event.EVAL_BATCH_START)
            self.state.eval_timestamp = self.state.eval_timestamp.to_next_batch(1)
            self.engine.run_event(Event.EVAL_BATCH_END)
        self.logger.log_metrics({"metrics/eval/Accuracy": 0.75})
        self.engine.run_event(Event.EVAL_END)
        self.state.dataloader_label, self.state.dataloader_len = before

    def close(self) -> None:
        self.engine.close()


# --- memory ---------------------------------------------------------------------------------


def test_memory_keeps_each_value_with_the_time_it_belongs_to():
    memory = InMemoryLogger()
    run = Run(memory, max_duration="2ep", dataloader_len=3)
    run.fit(2, 3)
    series = memory.get_timeseries("loss/train/total")
    assert series["batch"].tolist() == [1, 2, 3, 4, 5, 6]
    assert series["epoch"].tolist() == [0, 0, 0, 1, 1, 1]
    assert series["batch_in_epoch"].tolist() == [1, 2, 3, 1, 2, 3]
    np.testing.assert_allclose(series["loss/train/total"], [1 / n for n in range(1, 7)])
    assert memory.most_recent_values["metrics/train/Accuracy"] == 1.5


def test_eval_metrics_are_kept_once_an_evaluation():
    """L3."""
    memory = InMemoryLogger()
    Run(memory, max_duration="1ep", dataloader_len=4).fit(1, 4, evaluate_every=2)
    series = memory.get_timeseries("metrics/eval/Accuracy")
    assert series["metrics/eval/Accuracy"].tolist() == [0.75, 0.75]
    assert series["batch"].tolist() == [2, 4]


def test_memory_names_what_there_is_when_asked_for_what_is_not():
    memory = InMemoryLogger()
    with pytest.raises(ValueError, match=r"'loss'.*none so far"):
        memory.get_timeseries("loss")
    Run(memory).logger.log_metrics({"a/b": 1.0})
    with pytest.raises(ValueError, match=r"'loss'.*a/b"):
        memory.get_timeseries("loss")


def test_memory_keeps_hyperparameters_and_few_timestamps_of_a_long_run():
    memory = InMemoryLogger()
    run = Run(memory, max_duration="1ep", dataloader_len=5000)
    run.logger.log_hyperparameters({"lr": 0.1})
    for _ in range(5000):
        run.state.step()
        run.engine.run_event(Event.BATCH_END)
    assert memory.hyperparameters == {"lr": 0.1}
    assert len(memory._recent) <= 1024


# --- file -----------------------------------------------------------------------------------


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    return Path(set_run_directory(tmp_path / "run"))


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_each_rank_writes_a_log_file_of_its_own(run_directory, monkeypatch):
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        run = Run(FileLogger(capture_stdout=False, capture_stderr=False))
        run.logger.log_metrics({"who": int(rank)})
        run.close()
    logs = {path.relative_to(run_directory).as_posix() for path in run_directory.rglob("*.txt")}
    assert logs == {"rank_0/logs.txt", "rank_1/logs.txt"}
    for rank in (0, 1):
        line = lines_of(run_directory / f"rank_{rank}" / "logs.txt")[0]
        assert line == f'[metric][batch=0]: {{"who": {rank}}}'


def test_every_variable_of_a_file_name_is_filled_in(tmp_path, monkeypatch):
    set_run_directory(tmp_path / "run")
    values = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
    for name, value in (values | {"NODE_RANK": "1"}).items():
        monkeypatch.setenv(name, value)
    name = (
        "{run_directory}/{run_name}-{rank}-{local_rank}-{world_size}-{local_world_size}-{node_rank}"
    )
    logger = FileLogger(name, capture_stdout=False, capture_stderr=False)
    Run(logger, run_name="mine").close()
    assert (tmp_path / "run" / "mine-5-1-8-4-1").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"filename": "{rnk}.txt"}, "rnk"),
        ({"filename": "{rank"}, "braces"),
        ({"filename": "{epoch}.txt"}, "epoch"),
        ({"remote_file_name": "{rnk}"}, "remote_file_name"),
        ({"buffer_size": 0}, "buffer_size is 0"),
        ({"flush_interval": 0}, "flush_interval is 0"),
    ],
)
def test_a_bad_argument_fails_at_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        FileLogger(**arguments)


def test_a_rerun_appends_and_overwrite_begins_anew(run_directory):
    path = run_directory / "rank_0" / "logs.txt"

    def once(value: int, **options: bool) -> None:
        logger = FileLogger(capture_stdout=False, capture_stderr=False, **options)
        run = Run(logger)
        run.logger.log_metrics({"value": value})
        run.close()

    once(1)
    once(2)
    assert [json.loads(line.split(": ", 1)[1]) for line in lines_of(path)] == [
        {"value": 1},
        {"value": 2},
    ]
    once(3, overwrite=True)
    assert [line.split(": ", 1)[1] for line in lines_of(path)] == ['{"value": 3}']


def test_what_the_program_prints_is_copied_and_still_printed(run_directory, capsys):
    run = Run(FileLogger())
    print("to out", end=" ")
    print("and on")
    print("to err", file=sys.stderr)
    sys.stdout.writelines(["one\n", "two\n"])
    print("without an end", end="")
    run.close()
    print("after the end")
    out, err = capsys.readouterr()
    assert out == "to out and on\none\ntwo\nwithout an endafter the end\n"
    assert err == "to err\n"
    assert lines_of(run_directory / "rank_0" / "logs.txt") == [
        "[stdout]: to out and on",
        "[stderr]: to err",
        "[stdout]: one",
        "[stdout]: two",
        "[stdout]: without an end",
    ]


def test_the_streams_come_back_also_when_somebody_put_something_over_ours(run_directory):
    before = sys.stdout
    run = Run(FileLogger())
    ours = sys.stdout
    assert ours is not before

    class Over:
        def write(self, text: str) -> int:
            return ours.write(text)

        def flush(self) -> None:
            ours.flush()

    sys.stdout = Over()  # type: ignore[assignment]
    try:
        run.close()
        print("must not fail")
    finally:
        sys.stdout = before
    run = Run(FileLogger())
    run.close()
    assert sys.stdout is before
    assert "must not fail" not in (run_directory / "rank_0" / "logs.txt").read_text()


def test_lines_are_kept_back_until_the_buffer_is_full_the_interval_is_over_or_the_epoch_ends(
    run_directory,
):
    logger = FileLogger(
        capture_stdout=False, capture_stderr=False, buffer_size=100, flush_interval=3
    )
    run = Run(logger, max_duration="1ep", dataloader_len=4)
    path = run_directory / "rank_0" / "logs.txt"
    seen: list[int] = []

    def look(batch: int) -> None:
        seen.append(len(lines_of(path)))

    run.fit(1, 4, in_batch=look)
    assert seen[:3] == [0, 0, 0]
    assert len(lines_of(path)) == 5
    for number in range(100):
        run.logger.log_metrics({"n": number})
    assert len(lines_of(path)) == 105


def test_hyperparameters_and_traces_are_written_and_traces_can_be_left_out(run_directory):
    from stretto.core_events import Trace

    for with_traces in (True, False):
        logger = FileLogger(
            capture_stdout=False,
            capture_stderr=False,
            log_traces=with_traces,
            overwrite=True,
        )
        run = Run(logger)
        run.logger.log_hyperparameters({"lr": 0.1})
        run.logger.log_traces({"BlurPool/init": Trace(exit_code=None, run=True)})
        run.close()
        lines = lines_of(run_directory / "rank_0" / "logs.txt")
        assert lines[0] == "[hyperparameter]: lr: 0.1"
        assert any("BlurPool/init" in line for line in lines) == with_traces


def test_a_full_disk_stops_neither_the_run_nor_a_print_and_loses_no_line(run_directory, capsys):
    logger = FileLogger(capture_stderr=False)
    run = Run(logger)
    path = run_directory / "rank_0" / "logs.txt"
    print("before")
    real = logger._file
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    logger._file = full  # type: ignore[assignment]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print("while full")
        print("still full")
        run.logger.log_metrics({"loss": 1.0})
    assert [str(path) in str(warning.message) for warning in caught] == [True]
    logger._file = real
    print("room again")
    run.close()
    full.close()
    assert lines_of(path) == [
        "[stdout]: before",
        "[stdout]: while full",
        "[stdout]: still full",
        '[metric][batch=0]: {"loss": 1.0}',
        "[stdout]: room again",
    ]
    assert capsys.readouterr().out == "before\nwhile full\nstill full\nroom again\n"


def test_threads_that_print_lose_no_line(run_directory):
    run = Run(FileLogger(capture_stderr=False, buffer_size=7))

    def talk(number: int) -> None:
        for count in range(200):
            sys.stdout.write(f"{number}:{count}\n")

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.close()
    text = (run_directory / "rank_0" / "logs.txt").read_text()
    assert sorted(re.findall(r"\d+:\d+", text)) == sorted(
        f"{number}:{count}" for number in range(4) for count in range(200)
    )


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_write_its_parents_lines_again(run_directory):
    run = Run(FileLogger(capture_stderr=False, buffer_size=3))
    print("parent 1")
    child = os.fork()
    if child == 0:
        for number in range(5):
            print("child", number)
        os._exit(0)
    os.waitpid(child, 0)
    print("parent 2")
    run.close()
    assert lines_of(run_directory / "rank_0" / "logs.txt") == [
        "[stdout]: parent 1",
        "[stdout]: parent 2",
    ]


def test_the_file_is_handed_to_loggers_that_store_files(run_directory):
    stored: list[tuple[str, str]] = []

    class Storing(LoggerDestination[Any]):
        def can_upload_files(self) -> bool:
            return True

        def upload_file(self, state, remote_file_name, file_path, *, overwrite):
            stored.append((remote_file_name, Path(file_path).read_text()))

    logger = FileLogger(
        remote_file_name="{run_name}/rank{rank}.txt", capture_stdout=False, capture_stderr=False
    )
    run = Run(logger, Storing(), run_name="mine")
    run.logger.log_metrics({"n": 1})
    run.close()
    assert stored == [("mine/rank0.txt", '[metric][batch=0]: {"n": 1}\n')]


# --- console --------------------------------------------------------------------------------


def console(interval: str, **options: Any) -> tuple[ConsoleLogger, io.StringIO]:
    stream = io.StringIO()
    return ConsoleLogger(interval, stream, **options), stream


def headings(stream: io.StringIO) -> list[str]:
    return [line for line in stream.getvalue().splitlines() if line.startswith("[")]


def test_the_console_says_each_batch_by_default_and_what_is_left_at_the_end_of_the_epoch():
    logger, stream = console("1ba")
    Run(logger, max_duration="2ep", dataloader_len=2).fit(2, 2)
    assert headings(stream) == [
        "[train epoch 0 1/2 ba]",
        "[train epoch 0 2/2 ba]",
        "[train epoch 0 2/2 ba]",
        "[train epoch 1 1/2 ba]",
        "[train epoch 1 2/2 ba]",
        "[train epoch 1 2/2 ba]",
    ]
    assert "  metrics/train/Accuracy: 1.5000" in stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ("2ba", [2, 4, 5, 6, 8, 10]),
        ("1ep", [5, 10]),
        ("2ep", [10]),
        ("7ba", [5, 7, 10]),
    ],
)
def test_the_console_keeps_to_its_interval_and_leaves_no_value_unsaid(interval, expected):
    logger, stream = console(interval)
    memory: list[int] = []
    run = Run(logger, max_duration="2ep", dataloader_len=5)
    write = stream.write

    def watched(text: str) -> int:
        if text.startswith("[train"):
            memory.append(run.state.timestamp.batch_count)
        return write(text)

    stream.write = watched  # type: ignore[method-assign]
    run.fit(2, 5)
    assert sorted(set(memory)) == sorted(set(expected))
    last = f"  loss/train/total: {1 / 10:.4f}"
    assert last in stream.getvalue().splitlines()


def test_the_console_says_the_metrics_of_an_evaluation_once_and_apart():
    """L3."""
    logger, stream = console("1ba")
    Run(logger, max_duration="1ep", dataloader_len=2).fit(1, 2, evaluate_every=2)
    text = stream.getvalue()
    assert text.count("metrics/eval/Accuracy: 0.7500") == 1
    assert "[eval]\n  metrics/eval/Accuracy: 0.7500\n" in text


def test_hyperparameters_are_said_and_traces_only_where_asked_for():
    from stretto.core_events import Trace

    for with_traces in (True, False):
        logger, stream = console("1ba", log_traces=with_traces)
        run = Run(logger)
        run.logger.log_hyperparameters({"lr": 0.1})
        run.logger.log_traces({"MixUp/batch_start": Trace(run=True)})
        assert "lr: 0.1" in stream.getvalue()
        assert ("MixUp" in stream.getvalue()) == with_traces


@pytest.mark.parametrize("kind", [ConsoleLogger, ProgressBarLogger])
def test_only_rank_zero_speaks(kind, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    stream = io.StringIO()
    logger = kind(stream=stream)
    run = Run(logger, max_duration="1ep", dataloader_len=2)
    run.fit(1, 2, evaluate_every=1)
    run.close()
    assert stream.getvalue() == ""


def test_a_wrong_interval_fails_at_construction():
    with pytest.raises(ValueError, match="fortnight"):
        ConsoleLogger("1fortnight")


@pytest.mark.parametrize("kind", [ConsoleLogger, ProgressBarLogger])
def test_the_default_stream_is_standard_error_as_it_is_now(kind, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    run = Run(kind(), max_duration="1ep", dataloader_len=1)
    run.fit(1, 1)
    run.close()
    assert "train epoch 0" in stream.getvalue()


# --- progress bar ---------------------------------------------------------------------------


def test_a_stream_that_is_no_terminal_gets_a_line_a_loop_and_no_control_characters():
    stream = io.StringIO()
    run = Run(ProgressBarLogger(stream), max_duration="2ep", dataloader_len=50)
    run.fit(2, 50, evaluate_every=50)
    run.close()
    assert stream.getvalue().splitlines() == [
        "eval: 2/2 ba  Accuracy 0.7500",
        "train epoch 0: 50/50 ba  loss 0.0200  Accuracy 0.5000",
        "eval: 2/2 ba  Accuracy 0.7500",
        "train epoch 1: 50/50 ba  loss 0.0100  Accuracy 1.5000",
    ]


def test_a_run_counted_in_batches_has_one_bar():
    stream = io.StringIO()
    run = Run(ProgressBarLogger(stream), max_duration="6ba", dataloader_len=3)
    run.fit(2, 3)
    run.close()
    assert stream.getvalue().splitlines() == ["train: 6/6 ba  loss 0.1667  Accuracy 1.5000"]


class Screen:
    """A terminal of one's own, and what would be seen on it."""

    def __init__(self, columns: int = 120, rows: int = 50) -> None:
        import fcntl
        import struct
        import termios

        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")
        self.raw = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # what Linux says when the other side is closed
                return
            if not data:
                return
            self.raw += data

    def lines(self) -> list[str]:
        """Close the terminal and return the lines that stand on it."""
        self.stream.close()
        self._reader.join()
        os.close(self._ours)
        rows: list[str] = [""]
        row = column = 0
        text = self.raw.decode()
        for token in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if token == "\r":
                column = 0
            elif token == "\n":
                row += 1
                rows += [""] * (row + 1 - len(rows))
            elif token.startswith("\x1b["):
                number = int(re.sub(r"\D", "", token) or 1)
                if token.endswith("A"):
                    row = max(0, row - number)
                elif token.endswith("K"):
                    rows[row] = ""
                assert token[-1] in "AKmhl", f"the emulator does not know {token!r}"
            else:
                rows[row] = (
                    rows[row][:column].ljust(column) + token + rows[row][column + len(token) :]
                )
                column += len(token)
        return [line.rstrip() for line in rows if line.strip()]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    screen = Screen()
    yield screen
    if not screen.stream.closed:
        screen.lines()


def shown(lines: list[str]) -> list[str]:
    """The title and the count of each bar."""
    return [re.sub(r"^(.*?)\s+[━╸╺ ]+\s*(\d+/\s*\d+|\d+/\?).*$", r"\1 \2", line) for line in lines]


def test_on_a_terminal_each_bar_is_one_line_and_an_evaluation_closes_no_train_bar(screen):
    """L1."""
    run = Run(ProgressBarLogger(screen.stream), max_duration="2ep", dataloader_len=4)
    run.fit(2, 4, evaluate_every=2)
    run.close()
    lines = screen.lines()
    assert shown(lines) == [
        "eval 2/2",
        "eval 2/2",
        "train epoch 0 4/4",
        "eval 2/2",
        "eval 2/2",
        "train epoch 1 4/4",
    ]
    assert "loss 0.1250" in lines[-1]
    assert "Accuracy 0.7500" in lines[0]
    assert screen.raw.count(b"\x1b[?25l") == screen.raw.count(b"\x1b[?25h"), "the cursor is back"


def test_a_new_epochs_bar_begins_at_nought(screen):
    seen: list[tuple[str, float]] = []
    logger = ProgressBarLogger(screen.stream)
    run = Run(logger, max_duration="2ep", dataloader_len=3)

    def look(batch: int) -> None:
        assert logger._display is not None
        (task,) = logger._display.tasks
        if batch == 0:
            seen.append((task.description, task.completed))

    run.fit(2, 3, in_batch=look)
    run.close()
    assert seen == [("train epoch 0", 0), ("train epoch 1", 0)]


def test_what_is_printed_while_a_bar_is_drawn_stands_above_it_and_in_the_log(
    screen, monkeypatch, run_directory
):
    monkeypatch.setattr(sys, "stdout", screen.stream)
    run = Run(
        FileLogger(capture_stderr=False),
        ProgressBarLogger(screen.stream),
        max_duration="1ep",
        dataloader_len=3,
    )
    run.fit(1, 3, in_batch=lambda batch: print(f"[hello] {batch}"))
    run.close()
    assert sys.stdout is screen.stream
    assert shown(screen.lines()) == ["[hello] 0", "[hello] 1", "[hello] 2", "train epoch 0 3/3"]
    log = lines_of(run_directory / "rank_0" / "logs.txt")
    assert [line for line in log if line.startswith("[stdout]")] == [
        f"[stdout]: [hello] {batch}" for batch in range(3)
    ]


def test_what_is_printed_into_a_file_stays_there_while_a_bar_is_drawn(screen, monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    run = Run(ProgressBarLogger(screen.stream), max_duration="1ep", dataloader_len=2)
    run.fit(1, 2, in_batch=lambda batch: print("result", batch))
    run.close()
    assert file.getvalue() == "result 0\nresult 1\n"
    assert shown(screen.lines()) == ["train epoch 0 2/2"]


def test_an_evaluation_by_itself_gives_the_terminal_back(screen):
    run = Run(ProgressBarLogger(screen.stream))
    run.engine.run_event(Event.EVAL_STANDALONE_START)
    run.evaluate(3)
    run.engine.run_event(Event.EVAL_STANDALONE_END)
    assert shown(screen.lines()) == ["eval 3/3"]


def test_a_loop_of_unknown_length_has_a_bar_too(screen):
    run = Run(ProgressBarLogger(screen.stream), max_duration="1ep", dataloader_len=None)
    run.fit(1, 3)
    run.close()
    (line,) = screen.lines()
    assert line.startswith("train epoch 0")


# --- all ------------------------------------------------------------------------------------


def test_the_root_is_lazy_and_complete():
    code = (
        "import sys, stretto.trainer.loggers as loggers\n"
        "assert 'rich' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert set(loggers.__all__) <= set(dir(loggers))\n"
        "assert all(getattr(loggers, name).__name__ == name for name in loggers.__all__)\n"
        "try:\n    loggers.Nothing\nexcept AttributeError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Nothing" in done.stdout
