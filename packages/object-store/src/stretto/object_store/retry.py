"""Repeat what may succeed: capped exponential back-off with jitter, over stamina."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from stretto.object_store.errors import ObjectStoreError, ThrottledError

ResultT = TypeVar("ResultT")
_quiet = False


def keep_attempts_quiet() -> None:
    """Let stamina log and count no attempts in this process.

    For programs that say by themselves, once, that a store refuses. A library's user decides with
    stamina's own ``set_on_retry_hooks``.
    """
    global _quiet
    _quiet = True


def uniform(low: float, high: float) -> float:
    """A random number between two bounds.

    Args:
        low: The lower one.
        high: The upper one.
    """
    import random  # only a failure needs it

    return random.uniform(low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how long to try.

    Attributes:
        attempts: Tries in all, the first one included; at least 1.
        deadline: Seconds after which no further try begins; None for no limit.
        wait_initial: Seconds before the second try, doubled before each further one.
        wait_max: Seconds that no wait exceeds, unless the store itself asks for longer.
        jitter: Up to this many random seconds on top of each wait.
    """

    attempts: int = 5
    deadline: float | None = 120.0
    wait_initial: float = 0.2
    wait_max: float = 10.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts={self.attempts} must be at least 1")
        if self.deadline is not None and self.deadline <= 0:
            raise ValueError(f"deadline={self.deadline} must be positive, or None for no limit")
        if min(self.wait_initial, self.wait_max, self.jitter) < 0:
            raise ValueError("wait_initial, wait_max and jitter must not be negative")

    def wait_after(
        self,
        failures: int,
        error: BaseException,
        uniform: Callable[[float, float], float] = uniform,
    ) -> float:
        """Seconds to wait before the next try.

        Args:
            failures: Tries that failed so far, at least 1.
            error: What the last one raised; it may name a time.
            uniform: Random number between two bounds, for the jitter.
        """
        doubled = self.wait_initial * 2.0 ** min(failures - 1, 60)
        wait = min(self.wait_max, doubled) + uniform(0.0, self.jitter)
        asked = error.retry_after if isinstance(error, ThrottledError) else None
        return max(wait, asked) if asked is not None else wait


def is_retryable(error: BaseException) -> bool:
    """Whether the class of an error says that another try may succeed.

    Args:
        error: What a call raised.
    """
    return isinstance(error, ObjectStoreError) and error.retryable


def call_with_retry(
    function: Callable[[], ResultT],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    uniform: Callable[[float, float], float] = uniform,
) -> ResultT:
    """Call a function until it succeeds, fails for good, or the policy says stop.

    The first call happens bare: only a failure pays for the machinery.

    Args:
        function: Called without arguments.
        policy: How often and how long.
        sleep: Waits between tries; None lets stamina wait.
        clock: Monotonic seconds.
        uniform: Random number between two bounds, for the jitter.

    Raises:
        Exception: The last error, unchanged.
    """
    started = clock()
    try:
        return function()
    except ObjectStoreError as error:
        if not error.retryable or policy.attempts == 1:
            raise
        unreported = [error]
    import stamina  # takes as long as the rest of this package; most processes never need it

    if _quiet:
        stamina.instrumentation.set_on_retry_hooks(())
    state = _State(policy=policy, sleep=sleep, clock=clock, uniform=uniform, started=started)
    for attempt in stamina.retry_context(state.wait_or_stop, policy.attempts, timeout=None):
        with attempt:
            if unreported:
                raise unreported.pop()
            return function()
    raise AssertionError("stamina ended without a result")


@dataclass(slots=True, kw_only=True)
class _State:
    """One call's progress; answers stamina's question whether to go on, and after how long."""

    policy: RetryPolicy
    sleep: Callable[[float], None] | None
    clock: Callable[[], float]
    uniform: Callable[[float, float], float]
    started: float
    failures: int = 0

    def wait_or_stop(self, error: Exception) -> bool | float:
        if not is_retryable(error):
            return False
        self.failures += 1
        wait = self.policy.wait_after(self.failures, error, self.uniform)
        deadline = self.policy.deadline
        if deadline is not None and self.clock() - self.started + wait > deadline:
            return False
        if self.sleep is None:
            return wait
        if self.failures < self.policy.attempts:
            self.sleep(wait)
        return 0.0
