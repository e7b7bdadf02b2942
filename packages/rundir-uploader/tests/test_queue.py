"""One transfer a path at a time, the newest version wins, pointers wait."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rundir_uploader.queue import UploadQueue
from rundir_uploader.task import Task
from stretto.run_directory import FileEntry, FileKind, Fingerprint


def entry(path: str, version: int) -> FileEntry:
    return FileEntry(path, FileKind.FILE, Fingerprint(version, version, version, 1), None, 0o644)


def task(path: str, version: int, generation: int = 1, *, urgent: bool = False) -> Task:
    return Task(entry(path, version), generation, urgent)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make() -> tuple[UploadQueue, Clock]:
    clock = Clock()
    return UploadQueue(clock=clock), clock


def test_the_newest_version_replaces_one_that_waits() -> None:
    queue, _ = make()
    queue.offer(task("a", 1))
    queue.offer(task("a", 2, 2))
    assert queue.take(0) == task("a", 2, 2)
    assert queue.take(0) is None


def test_a_path_in_flight_is_not_given_out_twice_and_is_followed_up() -> None:
    queue, _ = make()
    queue.offer(task("a", 1))
    first = queue.take(0)
    queue.offer(task("a", 2, 2))
    queue.offer(task("a", 3, 3))
    assert queue.take(0) is None
    assert queue.newer(first) == task("a", 3, 3)
    queue.finish(first)
    assert queue.take(0) == task("a", 3, 3)


def test_a_flush_waits_for_the_version_it_saw() -> None:
    """A version asked for by scan 2 is owed to a flush of scan 2, also after scan 3 saw another."""
    queue, _ = make()
    queue.offer(task("a", 1, 1))
    first = queue.take(0)
    queue.offer(task("a", 2, 2, urgent=True))
    queue.offer(task("a", 3, 3))
    queue.finish(first)
    assert queue.unsettled(2, 0.0)
    queue.finish(queue.take(0))
    assert not queue.unsettled(3, 0.0)


def test_a_newer_version_that_is_not_wanted_is_dropped() -> None:
    queue, _ = make()
    queue.offer(task("a", 1))
    first = queue.take(0)
    queue.offer(task("a", 2, 2))
    queue.finish(first, dropping=queue.newer(first))
    assert len(queue) == 0


def test_a_delayed_task_comes_when_its_time_has_come() -> None:
    queue, clock = make()
    queue.offer(task("a", 1), not_before=105.0)
    queue.offer(task("b", 1))
    assert queue.take(0).entry.path == "b"
    assert queue.take(0) is None
    clock.now = 105.5
    assert queue.take(0).entry.path == "a"


def test_an_urgent_request_hurries_a_delayed_task() -> None:
    queue, _ = make()
    queue.offer(task("a", 1), not_before=500.0)
    queue.offer(task("a", 1, 2, urgent=True))
    assert queue.take(0) == task("a", 1, 2, urgent=True)


def test_a_failed_task_keeps_its_place_in_time_unless_it_is_urgent() -> None:
    queue, clock = make()
    queue.offer(task("a", 1))
    queue.retry(queue.take(0), delay=10, reason="no", final=False)
    for generation in range(2, 50):
        queue.offer(task("a", 1, generation))
    assert queue.take(0) is None
    assert queue.pending()[0].reason == "no"
    clock.now += 11
    again = queue.take(0)
    assert again.entry.path == "a"
    queue.retry(again, delay=10, reason="no", final=True)
    assert not queue.unsettled(50, 0.0), "failed for good: not worth waiting for"
    assert queue.unsettled(50, clock.now + 1), "but one more try is, after this moment"
    queue.offer(task("a", 1, 60, urgent=True))
    assert queue.take(0) is not None


def test_a_pointer_waits_for_all_its_targets() -> None:
    queue, _ = make()
    queue.offer(task("shard0", 1))
    queue.offer(task("shard1", 1))
    queue.offer(task(".metadata", 1), waits_for=["shard0", "shard1", "stored long ago"])
    first, second = queue.take(0), queue.take(0)
    assert queue.take(0) is None
    queue.finish(first)
    assert queue.take(0) is None
    queue.retry(second, delay=0, reason="no", final=False)
    second = queue.take(0)
    assert queue.take(0) is None
    queue.finish(second)
    assert queue.take(0).entry.path == ".metadata"


def test_a_pointer_waits_for_a_newer_version_of_its_target() -> None:
    queue, _ = make()
    queue.offer(task("data", 1))
    old = queue.take(0)
    queue.offer(task("data", 2, 2))
    queue.offer(task("latest", 1, 2), waits_for=["data"])
    queue.finish(old)
    new = queue.take(0)
    assert new.entry.path == "data"
    assert queue.take(0) is None
    queue.finish(new)
    assert queue.take(0).entry.path == "latest"


def test_a_pointer_gets_on_however_fast_newer_ones_come() -> None:
    """The version that waits is not replaced for ever; the newest follows it."""
    queue, _ = make()
    queue.offer(task("ep1", 1))
    queue.offer(task("latest", 1, 1), waits_for=["ep1"])
    ep1 = queue.take(0)
    for number in range(2, 6):
        queue.offer(task(f"ep{number}", 1, number))
        queue.offer(task("latest", number, number), waits_for=[f"ep{number}"])
    queue.finish(ep1)
    flying = [queue.take(0) for _ in range(5)]
    assert task("latest", 1, 1) in flying
    queue.finish(task("latest", 1, 1))
    assert queue.unsettled(5, 0.0)
    for one in flying:
        if one.entry.path != "latest":
            queue.finish(one)
    assert queue.take(0) == task("latest", 5, 5)


def test_a_newer_pointer_overtakes_one_whose_target_does_not_come() -> None:
    queue, _ = make()
    queue.offer(task("bad", 1))
    queue.offer(task("good", 1))
    queue.offer(task("latest", 1), waits_for=["bad"])
    bad, good = queue.take(0), queue.take(0)
    queue.retry(bad, delay=1000, reason="no", final=True)
    queue.offer(task("latest", 2, 2), waits_for=["good"])
    assert queue.take(0) is None
    queue.finish(good)
    assert queue.take(0) == task("latest", 2, 2)


def test_what_waits_only_for_a_hopeless_target_is_not_waited_for() -> None:
    queue, clock = make()
    queue.offer(task("data", 1))
    queue.offer(task("latest", 1), waits_for=["data"])
    queue.retry(queue.take(0), delay=100, reason="denied", final=True)
    assert not queue.unsettled(1, clock.now)
    assert {item.path: item.reason for item in queue.pending()} == {
        "data": "denied",
        "latest": "waits for data",
    }


def test_a_discarded_target_holds_nothing_back() -> None:
    queue, _ = make()
    queue.offer(task("data", 1), not_before=900)
    queue.offer(task("latest", 1), waits_for=["data"])
    assert queue.discard("data")
    assert queue.take(0).entry.path == "latest"
    assert not queue.discard("latest"), "in flight"


def test_after_a_stop_nothing_is_given_out() -> None:
    queue, _ = make()
    queue.offer(task("a", 1))
    queue.stop()
    assert queue.take() is None


PATHS = ["a", "b", "c", "p"]


class QueueMachine(RuleBasedStateMachine):
    """Random use against a model: last version asked for, versions in flight, versions done."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.clock = make()
        self.version = 0
        self.asked: dict[str, int] = {}
        self.flying: dict[str, Task] = {}
        self.done: dict[str, int] = {}

    @rule(path=st.sampled_from(PATHS), urgent=st.booleans(), wait=st.floats(0, 3))
    def offer(self, path: str, urgent: bool, wait: float) -> None:
        self.version += 1
        self.asked[path] = self.version
        waits = ["a", "b"] if path == "p" else []
        self.queue.offer(
            task(path, self.version, self.version, urgent=urgent),
            not_before=self.clock.now + wait,
            waits_for=waits,
        )

    @rule(seconds=st.floats(0, 4))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def take(self) -> None:
        got = self.queue.take(0)
        if got is not None:
            path = got.entry.path
            assert path not in self.flying, "two transfers of one path"
            assert got.entry.fingerprint.size > self.done.get(path, 0), "an older version"
            self.flying[path] = got

    def pick(self, data: st.DataObject) -> Task:
        return self.flying.pop(data.draw(st.sampled_from(sorted(self.flying))))

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        got = self.pick(data)
        self.done[got.entry.path] = got.entry.fingerprint.size
        self.queue.finish(got)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), delay=st.floats(0, 5), final=st.booleans())
    def fail(self, data: st.DataObject, delay: float, final: bool) -> None:
        self.queue.retry(self.pick(data), delay=delay, reason="x", final=final)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def put_off(self, data: st.DataObject) -> None:
        self.queue.put_off(self.pick(data), 1.0)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert self.queue.running == len(self.flying)
        for path, version in self.asked.items():
            assert (path in self.queue) == (self.done.get(path, 0) < version), path

    def teardown(self) -> None:
        """Everything that was asked for comes in the end, in its newest version."""
        for _ in range(100):
            for got in list(self.flying.values()):
                self.done[got.entry.path] = got.entry.fingerprint.size
                self.queue.finish(got)
            self.flying.clear()
            self.clock.now += 10
            self.take()
        assert self.done == self.asked


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
