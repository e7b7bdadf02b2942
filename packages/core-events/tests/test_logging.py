from __future__ import annotations

import pytest

from stretto.core_events import Logger, LoggerDestination
from stretto.core_events.testing import ScriptedState


class Keeps(LoggerDestination):
    def __init__(self, book=None, files=False):
        self.book, self.files = [] if book is None else book, files

    def log_metrics(self, metrics, step=None):
        self.book.append((dict(metrics), step))

    def log_hyperparameters(self, hyperparameters):
        self.book.append(("hyperparameters", hyperparameters))

    def log_traces(self, traces):
        self.book.append(("traces", traces))

    def log_table(self, columns, rows, name="Table", step=None):
        self.book.append(("table", columns, rows, name, step))

    def log_images(self, images, name="Images", channels_last=False, step=None, *more):
        self.book.append(("images", images, name, channels_last, step, *more))

    def upload_file(self, state, remote_file_name, file_path, *, overwrite):
        self.book.append(("file", state, remote_file_name, file_path, overwrite))

    def can_upload_files(self):
        return self.files


class Pending:
    """A scalar that is being computed elsewhere, like a zero-dimensional tensor."""

    def __init__(self, value):
        self.value, self.reads = value, 0

    def __float__(self):
        self.reads += 1
        return float(self.value)


def test_plain_numbers_are_delivered_at_once_to_everyone_with_the_step():
    state, book = ScriptedState(), []
    logger = Logger(state, [Keeps(book), Keeps(book)])
    state.step(4)
    logger.log_metrics({"loss": 0.5, "count": 3})
    logger.log_metrics({"loss": 0.25}, step=9)
    logger.log_metrics({"loss": 0.125}, step=0)
    assert book == [
        ({"loss": 0.5, "count": 3}, 4), ({"loss": 0.5, "count": 3}, 4),
        ({"loss": 0.25}, 9), ({"loss": 0.25}, 9),
        ({"loss": 0.125}, 0), ({"loss": 0.125}, 0),
    ]  # fmt: skip
    assert type(book[0][0]["count"]) is int


def test_pending_values_wait_and_everything_after_them_keeps_its_place():
    state, keeps = ScriptedState(), Keeps()
    logger = Logger(state, keeps)
    tensor = Pending(0.5)
    logger.log_metrics({"first": 1})
    logger.log_metrics({"loss": tensor, "lr": 0.1})
    state.step()
    logger.log_metrics({"later": 2})
    logger.log_metrics({"called": lambda: 7})
    assert keeps.book == [({"first": 1}, 0)]
    assert tensor.reads == 0
    logger.flush()
    assert keeps.book == [
        ({"first": 1}, 0),
        ({"loss": 0.5, "lr": 0.1}, 0),
        ({"later": 2}, 1),
        ({"called": 7.0}, 1),
    ]
    assert tensor.reads == 1
    logger.flush()
    logger.log_metrics({"at once": 3})
    assert keeps.book[4:] == [({"at once": 3}, 1)]


def test_all_pending_values_are_resolved_with_one_call():
    calls = []

    def resolver(values):
        calls.append(list(values))
        return [v.value for v in values]

    keeps = Keeps()
    logger = Logger(ScriptedState(), keeps, resolver=resolver)
    values = [Pending(i) for i in range(4)]
    logger.log_metrics({"a": values[0], "b": 5.0, "c": values[1]})
    logger.log_metrics({"d": 6.0})
    logger.log_metrics({"a": values[2]})
    logger.log_metrics({"a": values[3]})
    logger.flush()
    logger.flush()
    assert calls == [values]
    assert [metrics for metrics, _ in keeps.book] == [
        {"a": 0, "b": 5.0, "c": 1}, {"d": 6.0}, {"a": 2}, {"a": 3},
    ]  # fmt: skip


def test_a_report_is_taken_as_it_was_when_it_was_made():
    keeps = Keeps()
    logger = Logger(ScriptedState(), keeps)
    metrics = {"a": Pending(1)}
    logger.log_metrics(metrics)
    metrics["a"] = 2
    logger.flush()
    assert keeps.book == [({"a": 1.0}, 0)]


def test_without_destinations_nothing_is_looked_at():
    class Explodes(dict):
        def items(self):
            raise AssertionError("looked at")

    logger = Logger(ScriptedState())
    logger.log_metrics(Explodes(a=1))
    logger.log_metrics({"a": Pending(1)})
    logger.log_table(["a"], [[1]])
    logger.log_images(object())
    logger.log_hyperparameters({"a": 1})
    logger.flush()
    assert not logger.has_file_upload_destination()


@pytest.mark.parametrize("value", ["0.5", None, [1.0], {}])
def test_a_value_that_is_no_number_is_refused_by_name(value):
    logger = Logger(ScriptedState(), Keeps())
    with pytest.raises(TypeError, match="metric 'loss'"):
        logger.log_metrics({"loss": value})
    logger.log_metrics({"loss": 1})
    assert logger.destinations[0].book == [({"loss": 1}, 0)]


@pytest.mark.parametrize("count", [0, 2])
def test_a_resolver_that_returns_another_number_of_values_is_refused(count):
    logger = Logger(ScriptedState(), Keeps(), resolver=lambda values: [1.0] * count)
    logger.log_metrics({"loss": Pending(1)})
    with pytest.raises(ValueError, match=f"returned {count} values for 1"):
        logger.flush()


def test_what_comes_after_a_report_that_a_destination_refuses_is_kept():
    class Refuses(Keeps):
        def log_metrics(self, metrics, step=None):
            if "bad" in metrics:
                raise OSError("disk full")
            super().log_metrics(metrics, step)

    logger = Logger(ScriptedState(), Refuses())
    for name in ("a", "bad", "c", "d"):
        logger.log_metrics({name: Pending(1)})
    with pytest.raises(OSError, match="disk full"):
        logger.flush()
    logger.log_metrics({"e": 2})
    logger.flush()
    book = logger.destinations[0].book
    assert [list(metrics) for metrics, _ in book] == [["a"], ["c"], ["d"], ["e"]]


def test_a_destination_may_report_while_it_is_told():
    class Talks(Keeps):
        def log_metrics(self, metrics, step=None):
            super().log_metrics(metrics, step)
            if "loss" in metrics:
                self.logger.log_metrics({"echo": 1})

    talks = Talks()
    talks.logger = Logger(ScriptedState(), talks)
    talks.logger.log_metrics({"loss": Pending(1)})
    talks.logger.flush()
    talks.logger.flush()
    assert [list(metrics) for metrics, _ in talks.book] == [["loss"], ["echo"]]


def test_the_other_reports_go_through_with_the_step():
    state, keeps = ScriptedState(), Keeps()
    state.step(2)
    logger = Logger(state, (keeps,))
    logger.log_hyperparameters({"lr": 0.1})
    logger.log_table(["a"], [[1]], name="t")
    logger.log_images("pixels", masks={"m": 1})
    assert keeps.book == [
        ("hyperparameters", {"lr": 0.1}),
        ("table", ["a"], [[1]], "t", 2),
        ("images", "pixels", "Images", False, 2, {"m": 1}, None, True),
    ]


def test_files_go_to_those_who_store_them():
    state, plain, stores = ScriptedState(), Keeps(), Keeps(files=True)
    logger = Logger(state, [plain, stores])
    assert logger.has_file_upload_destination()
    logger.upload_file("remote", "local")
    logger.upload_file("remote", "local", overwrite=True)
    assert plain.book == []
    assert stores.book == [
        ("file", state, "remote", "local", False),
        ("file", state, "remote", "local", True),
    ]


def test_a_destination_that_is_none_is_refused():
    with pytest.raises(TypeError, match="no LoggerDestination"):
        Logger(ScriptedState(), [object()])


def test_the_base_destination_takes_everything_and_does_nothing():
    logger = Logger(ScriptedState(), LoggerDestination())
    logger.log_metrics({"a": 1})
    logger.log_hyperparameters({})
    logger.log_table([], [])
    logger.log_images(None)
    logger.log_traces({})
    logger.upload_file("a", "b")
    assert not logger.has_file_upload_destination()
