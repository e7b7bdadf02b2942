"""Which sequences of events a training run can produce, as data, and a check against it.

The grammar is a regular expression over events. It is matched by derivatives (Brzozowski, 1964):
after each event, the expression that the rest must match. So a check stops at the first event
that does not fit and knows what would have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache, reduce
from typing import TypeAlias

from stretto.core_events.event import Event

__all__ = ["PARTS", "RESUMED_RUN", "RUN", "SequenceFault", "check_sequence"]


@dataclass(frozen=True, slots=True, eq=False)
class Then:
    """One expression, then another."""

    first: Expression
    second: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One of several expressions."""

    options: frozenset[Expression]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """An expression any number of times, also none."""

    body: Expression


Expression: TypeAlias = Event | Then | Choice | Repeat
"""A set of event sequences. Made by the functions below only, which make equal expressions the
same object, so that they are compared and hashed by identity."""

_choice = cache(Choice)
_repeat = cache(Repeat)
_pair = cache(Then)
_NEVER: Expression = _choice(frozenset["Expression"]())
"""No sequence at all."""
_EMPTY = _repeat(_NEVER)
"""The sequence without events."""


def _sequence(*parts: Expression) -> Expression:
    return reduce(lambda rest, part: _then(part, rest), reversed(parts), _EMPTY)


def _either(*options: Expression) -> Expression:
    flat: set[Expression] = set()
    for option in options:
        flat |= option.options if isinstance(option, Choice) else {option}
    return flat.pop() if len(flat) == 1 else _choice(frozenset(flat))


def _then(first: Expression, second: Expression) -> Expression:
    if first is _NEVER or second is _NEVER:
        return _NEVER
    if first is _EMPTY:
        return second
    if second is _EMPTY:
        return first
    if isinstance(first, Then):  # always lean to the right, so that equal means the same
        return _pair(first.first, _then(first.second, second))
    return _pair(first, second)


def _maybe(*parts: Expression) -> Expression:
    return _either(_EMPTY, _sequence(*parts))


def _some(*parts: Expression) -> Expression:
    return _repeat(_sequence(*parts))


def _at_least_one(*parts: Expression) -> Expression:
    return _sequence(*parts, _some(*parts))


_EVALUATION = _sequence(
    Event.EVAL_START,
    _some(
        Event.EVAL_BATCH_START,
        _at_least_one(Event.EVAL_BEFORE_FORWARD, Event.EVAL_AFTER_FORWARD),
        Event.EVAL_BATCH_END,
    ),
    Event.EVAL_END,
)
_EVALUATIONS_DUE = _maybe(Event.EVAL_BEFORE_ALL, _at_least_one(_EVALUATION), Event.EVAL_AFTER_ALL)
_BATCH = _sequence(
    Event.BEFORE_DATALOADER,
    Event.AFTER_DATALOADER,
    Event.BATCH_START,
    Event.BEFORE_TRAIN_BATCH,
    _at_least_one(
        Event.BEFORE_FORWARD,
        Event.AFTER_FORWARD,
        Event.BEFORE_LOSS,
        Event.AFTER_LOSS,
        Event.BEFORE_BACKWARD,
        Event.AFTER_BACKWARD,
    ),
    Event.AFTER_TRAIN_BATCH,
    Event.BATCH_END,
    _EVALUATIONS_DUE,
    Event.BATCH_CHECKPOINT,
)
_ITERATION_END = _sequence(Event.ITERATION_END, Event.ITERATION_CHECKPOINT)
_BATCHES = _sequence(
    _some(_BATCH),
    _some(_ITERATION_END, _some(_BATCH)),  # an iteration counted in tokens ends within an epoch
)
_TO_END_OF_EPOCH = _sequence(
    _BATCHES,
    _maybe(Event.BEFORE_DATALOADER),  # the fetch that finds the loader exhausted
    Event.EPOCH_END,
    _EVALUATIONS_DUE,
    Event.EPOCH_CHECKPOINT,
    _maybe(_ITERATION_END),
)
_START_OF_EPOCH = _sequence(_maybe(Event.ITERATION_START), Event.EPOCH_START)
_EPOCHS = _some(_START_OF_EPOCH, _TO_END_OF_EPOCH)
_FIT_END = _sequence(Event.FIT_END, _EVALUATIONS_DUE)
_STANDALONE = _sequence(Event.EVAL_STANDALONE_START, _some(_EVALUATION), Event.EVAL_STANDALONE_END)
_PREDICT = _sequence(
    Event.PREDICT_START,
    _some(
        Event.PREDICT_BATCH_START,
        _at_least_one(Event.PREDICT_BEFORE_FORWARD, Event.PREDICT_AFTER_FORWARD),
        Event.PREDICT_BATCH_END,
    ),
    Event.PREDICT_END,
)
_SETUP = _sequence(_maybe(Event.INIT), _maybe(Event.BEFORE_LOAD, Event.AFTER_LOAD))
_WITHOUT_FIT = _some(_either(_STANDALONE, _PREDICT))

# A fit may end within an epoch, and the next one goes on there. So a run has two kinds of places,
# between epochs and within one, and these are the ways from the one to the other.
_NEXT_FIT = _sequence(_FIT_END, _WITHOUT_FIT, Event.FIT_START)
_INTO_EPOCH = _sequence(_EPOCHS, _START_OF_EPOCH, _BATCHES, _NEXT_FIT)
_OUT_OF_EPOCH = _sequence(_some(_BATCHES, _NEXT_FIT), _TO_END_OF_EPOCH)
_FROM_WITHIN_TO_FIT_END = _sequence(_some(_BATCHES, _NEXT_FIT), _BATCHES, _FIT_END)
_TO_FIT_END = _sequence(
    _some(_INTO_EPOCH, _OUT_OF_EPOCH),
    _either(
        _sequence(_EPOCHS, _maybe(_START_OF_EPOCH, _BATCHES), _FIT_END),
        _sequence(_INTO_EPOCH, _FROM_WITHIN_TO_FIT_END),
    ),
)
_FIT = _sequence(Event.FIT_START, _TO_FIT_END)
_RESUMED_FIT = _sequence(
    Event.FIT_START,
    _either(_FROM_WITHIN_TO_FIT_END, _sequence(_OUT_OF_EPOCH, _TO_FIT_END)),
)
_ANYTHING = _some(_either(_FIT, _STANDALONE, _PREDICT))

PARTS: dict[str, Expression] = {
    "setting up": _SETUP,
    "fit": _sequence(Event.FIT_START, _EPOCHS, _maybe(_START_OF_EPOCH, _BATCHES), _FIT_END),
    "epoch": _sequence(_START_OF_EPOCH, _TO_END_OF_EPOCH),
    "batch": _BATCH,
    "evaluations due": _EVALUATIONS_DUE,
    "evaluation": _EVALUATION,
    "standalone evaluation": _STANDALONE,
    "prediction": _PREDICT,
}
"""The parts of a run by name, for whoever draws or explains them; a fit without interruptions."""
RUN: Expression = _sequence(_SETUP, _ANYTHING)
"""A run that starts afresh: set up, then fits, evaluations and predictions in any number."""
RESUMED_RUN: Expression = _sequence(_SETUP, _WITHOUT_FIT, _maybe(_RESUMED_FIT), _ANYTHING)
"""A run whose first fit may go on in the middle of an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFault:
    """Where a sequence of events stops being one that a run can produce.

    Attributes:
        index: The position of the first event that does not fit; the length, if it ends too early.
        event: That event; None at the end.
        expected: What would have fitted there, in the order of a run.
        before: The events just before.
    """

    index: int
    event: Event | None
    expected: tuple[Event, ...]
    before: tuple[Event, ...]

    def __str__(self) -> str:
        what = "the sequence ends" if self.event is None else f"there is {self.event}"
        wanted = ", ".join(self.expected) or "the end"
        after = ", ".join(self.before) or "the start"
        return f"at {self.index}, after {after}, {what}; expected {wanted}"


def check_sequence(
    events: Iterable[Event | str],
    *,
    partial: bool = False,
    resumed: bool = False,
    complete: bool = True,
) -> SequenceFault | None:
    """Say where a recorded sequence of events departs from what a run can produce.

    Args:
        events: The events, in the order in which they were run.
        partial: Whether the loop leaves events out. Then the grammar is held to the events that
            occur and their partners, so an ``AFTER_FORWARD`` still needs its ``BEFORE_FORWARD``.
        resumed: Whether the run may start in the middle of an epoch.
        complete: Whether the run came to its end; False accepts the beginning of a run.

    Returns:
        The first fault, or None.

    Raises:
        ValueError: A string that is no event.
    """
    sequence = [Event(event) for event in events]
    grammar = RESUMED_RUN if resumed else RUN
    if partial:
        partners = {event.partner for event in sequence if event.partner is not None}
        grammar = _restrict(grammar, partners.union(sequence))
    for index, event in enumerate(sequence):
        rest = _derive(grammar, event)
        if rest is _NEVER:
            return _fault(index, event, grammar, sequence)
        grammar = rest
    if complete and not _accepts_nothing(grammar):
        return _fault(len(sequence), None, grammar, sequence)
    return None


def _fault(
    index: int, event: Event | None, grammar: Expression, sequence: list[Event]
) -> SequenceFault:
    expected = tuple(other for other in Event if _derive(grammar, other) is not _NEVER)
    before = tuple(sequence[max(0, index - 3) : index])
    return SequenceFault(index=index, event=event, expected=expected, before=before)


@cache
def _accepts_nothing(expression: Expression) -> bool:
    """Whether the empty sequence is among those of the expression."""
    match expression:
        case Then(first, second):
            return _accepts_nothing(first) and _accepts_nothing(second)
        case Choice(options):
            return any(_accepts_nothing(option) for option in options)
        case Repeat():
            return True
        case _:
            return False


@cache
def _derive(expression: Expression, event: Event) -> Expression:
    """What must follow `event` for the whole to be a sequence of the expression."""
    match expression:
        case Then(first, second):
            through = _then(_derive(first, event), second)
            return _either(through, _derive(second, event)) if _accepts_nothing(first) else through
        case Choice(options):
            return _either(*(_derive(option, event) for option in options))
        case Repeat(body):
            return _then(_derive(body, event), expression)
        case _:
            return _EMPTY if expression is event else _NEVER


def _restrict(expression: Expression, events: Collection[Event]) -> Expression:
    """Leave out every event but those given."""
    match expression:
        case Then(first, second):
            return _then(_restrict(first, events), _restrict(second, events))
        case Choice(options):
            return _either(*(_restrict(option, events) for option in options))
        case Repeat(body):
            inner = _restrict(body, events)
            return inner if inner is _EMPTY else _repeat(inner)
        case _:
            return expression if expression in events else _EMPTY
