"""Repetition: when, how often, how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.object_store import (
    CorruptedError,
    NotFoundError,
    ObjectStoreError,
    PermissionDeniedError,
    RetryPolicy,
    StoreTimeoutError,
    ThrottledError,
    TransientError,
)
from stretto.object_store.retry import call_with_retry


class Clock:
    """Time that passes only while somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Work:
    """Raises what it was given, one after another, then succeeds."""

    def __init__(self, *errors: Exception, clock: Clock | None = None, takes: float = 0.0) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.clock = clock
        self.takes = takes

    def __call__(self) -> str:
        self.calls += 1
        if self.clock is not None:
            self.clock.now += self.takes
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def run(work: Work, policy: RetryPolicy, clock: Clock) -> str:
    return call_with_retry(
        work, policy, sleep=clock.sleep, clock=clock, uniform=lambda low, high: high
    )


def test_success_costs_one_call_and_no_sleep() -> None:
    work, clock = Work(), Clock()
    assert run(work, RetryPolicy(), clock) == "done"
    assert (work.calls, clock.slept) == (1, [])


def test_waits_double_up_to_their_cap_plus_jitter() -> None:
    policy = RetryPolicy(attempts=7, deadline=None, wait_initial=1, wait_max=5, jitter=0.5)
    work, clock = Work(*[TransientError("x")] * 6), Clock()
    assert run(work, policy, clock) == "done"
    assert clock.slept == [1.5, 2.5, 4.5, 5.5, 5.5, 5.5]


def test_the_last_error_comes_out_after_all_attempts() -> None:
    errors = [TransientError(f"number {n}") for n in range(9)]
    work, clock = Work(*errors), Clock()
    with pytest.raises(TransientError, match="number 3"):
        run(work, RetryPolicy(attempts=4), clock)
    assert work.calls == 4
    assert len(clock.slept) == 3


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("x"),
        PermissionDeniedError("x"),
        CorruptedError("x"),
        ObjectStoreError("x"),
        ValueError("x"),
        OSError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_will_not_change_is_not_repeated(error: Exception) -> None:
    for before in ([], [TransientError("first")]):
        work, clock = Work(*before, error), Clock()
        with pytest.raises(type(error)):
            run(work, RetryPolicy(), clock)
        assert work.calls == len(before) + 1


def test_the_store_may_ask_for_a_longer_wait() -> None:
    policy = RetryPolicy(wait_initial=1, wait_max=2, jitter=0)
    work = Work(ThrottledError("x", retry_after=30), ThrottledError("x", retry_after=0.1))
    clock = Clock()
    assert run(work, policy, clock) == "done"
    assert clock.slept == [30, 2]


def test_no_try_begins_after_the_deadline() -> None:
    policy = RetryPolicy(attempts=100, deadline=10, wait_initial=3, wait_max=3, jitter=0)
    work, clock = Work(*[TransientError("x")] * 100), Clock()
    with pytest.raises(TransientError):
        run(work, policy, clock)
    assert sum(clock.slept) <= 10
    assert work.calls == 4


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    work, clock = Work(ThrottledError("x", retry_after=3600)), Clock()
    with pytest.raises(ThrottledError):
        run(work, RetryPolicy(deadline=60), clock)
    assert clock.slept == []


def test_the_time_that_calls_take_counts() -> None:
    clock = Clock()
    work = Work(*[StoreTimeoutError("x")] * 50, clock=clock, takes=4.0)
    with pytest.raises(StoreTimeoutError):
        run(work, RetryPolicy(attempts=50, deadline=10, wait_initial=0, jitter=0), clock)
    assert work.calls == 3


def test_one_attempt_means_no_repetition() -> None:
    work, clock = Work(TransientError("x")), Clock()
    with pytest.raises(TransientError):
        run(work, RetryPolicy(attempts=1), clock)
    assert work.calls == 1


def test_without_a_sleep_of_ours_stamina_waits() -> None:
    work = Work(TransientError("x"), TransientError("x"))
    policy = RetryPolicy(wait_initial=0.01, wait_max=0.01, jitter=0)
    assert call_with_retry(work, policy) == "done"
    assert work.calls == 3


@given(st.integers(1, 12), st.integers(0, 12))
def test_the_number_of_calls_is_exact(attempts: int, failures: int) -> None:
    work, clock = Work(*[TransientError("x")] * failures), Clock()
    policy = RetryPolicy(attempts=attempts, deadline=None)
    if failures < attempts:
        assert run(work, policy, clock) == "done"
        assert work.calls == failures + 1
    else:
        with pytest.raises(TransientError):
            run(work, policy, clock)
        assert work.calls == attempts
    assert len(clock.slept) == work.calls - 1


@pytest.mark.parametrize(
    "settings",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"deadline": 0},
        {"wait_initial": -1},
        {"wait_max": -0.1},
        {"jitter": -1},
    ],
)
def test_a_policy_that_cannot_be_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        RetryPolicy(**settings)  # type: ignore[arg-type]
