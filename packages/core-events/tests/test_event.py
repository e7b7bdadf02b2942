from __future__ import annotations

import copy
import pickle

import pytest

from stretto.core_events import Event

NAMES = [
    "INIT",
    "BEFORE_LOAD",
    "AFTER_LOAD",
    "FIT_START",
    "ITERATION_START",
    "EPOCH_START",
    "BEFORE_DATALOADER",
    "AFTER_DATALOADER",
    "BATCH_START",
    "BEFORE_TRAIN_BATCH",
    "BEFORE_FORWARD",
    "AFTER_FORWARD",
    "BEFORE_LOSS",
    "AFTER_LOSS",
    "BEFORE_BACKWARD",
    "AFTER_BACKWARD",
    "AFTER_TRAIN_BATCH",
    "BATCH_END",
    "BATCH_CHECKPOINT",
    "EPOCH_END",
    "EPOCH_CHECKPOINT",
    "ITERATION_END",
    "ITERATION_CHECKPOINT",
    "FIT_END",
    "EVAL_BEFORE_ALL",
    "EVAL_START",
    "EVAL_BATCH_START",
    "EVAL_BEFORE_FORWARD",
    "EVAL_AFTER_FORWARD",
    "EVAL_BATCH_END",
    "EVAL_END",
    "EVAL_AFTER_ALL",
    "EVAL_STANDALONE_START",
    "EVAL_STANDALONE_END",
    "PREDICT_START",
    "PREDICT_BATCH_START",
    "PREDICT_BEFORE_FORWARD",
    "PREDICT_AFTER_FORWARD",
    "PREDICT_BATCH_END",
    "PREDICT_END",
]
BEFORE = [
    "BEFORE_LOAD",
    "FIT_START",
    "ITERATION_START",
    "EPOCH_START",
    "BEFORE_DATALOADER",
    "BATCH_START",
    "BEFORE_TRAIN_BATCH",
    "BEFORE_FORWARD",
    "BEFORE_LOSS",
    "BEFORE_BACKWARD",
    "EVAL_BEFORE_ALL",
    "EVAL_START",
    "EVAL_BATCH_START",
    "EVAL_BEFORE_FORWARD",
    "PREDICT_START",
    "PREDICT_BATCH_START",
    "PREDICT_BEFORE_FORWARD",
    "EVAL_STANDALONE_START",
]
AFTER = [
    "AFTER_LOAD",
    "ITERATION_END",
    "EPOCH_END",
    "BATCH_END",
    "AFTER_DATALOADER",
    "AFTER_TRAIN_BATCH",
    "AFTER_FORWARD",
    "AFTER_LOSS",
    "AFTER_BACKWARD",
    "EVAL_AFTER_ALL",
    "EVAL_END",
    "EVAL_BATCH_END",
    "EVAL_AFTER_FORWARD",
    "FIT_END",
    "PREDICT_END",
    "PREDICT_BATCH_END",
    "PREDICT_AFTER_FORWARD",
    "EVAL_STANDALONE_END",
]


def test_there_are_forty_events_in_the_order_of_a_run():
    assert [event.name for event in Event] == NAMES
    assert len(NAMES) == 40
    assert [event.value for event in Event] == [name.lower() for name in NAMES]


def test_predicates_hold_for_exactly_the_listed_events():
    assert {event.name for event in Event if event.is_before_event} == set(BEFORE)
    assert {event.name for event in Event if event.is_after_event} == set(AFTER)
    neither = {e.name for e in Event if not e.is_before_event and not e.is_after_event}
    assert neither == {"INIT", "BATCH_CHECKPOINT", "EPOCH_CHECKPOINT", "ITERATION_CHECKPOINT"}
    assert {e.name for e in Event if e.is_eval} == {n for n in NAMES if n.startswith("EVAL_")}
    assert {e.name for e in Event if e.is_predict} == {n for n in NAMES if n.startswith("PREDICT_")}


@pytest.mark.parametrize("event", list(Event))
def test_pairs_share_their_canonical_name_and_nobody_else_does(event):
    plain = event.value
    for affix in ("before_", "after_"):
        plain = plain.replace(affix, "")
    for affix in ("_start", "_end"):
        plain = plain.removesuffix(affix)
    assert event.canonical_name == plain
    sharing = {other for other in Event if other.canonical_name == event.canonical_name}
    assert sharing == ({event} if event.partner is None else {event, event.partner})
    if event.partner is not None:
        assert event.partner.partner is event
        assert event.is_before_event is event.partner.is_after_event


def test_lookup_from_a_string_ignores_case():
    assert Event("BATCH_END") is Event.BATCH_END
    assert Event("Batch_End") is Event.BATCH_END
    with pytest.raises(ValueError, match="batch_ended"):
        Event("batch_ended")
    with pytest.raises(ValueError, match="3"):
        Event(3)


@pytest.mark.parametrize("event", list(Event))
def test_a_member_is_a_string_and_stays_itself(event):
    assert event == event.value
    assert str(event) == f"{event}" == event.value
    assert copy.deepcopy(event) is event
    assert pickle.loads(pickle.dumps(event)) is event
