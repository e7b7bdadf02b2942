from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core_events import Callback, OrderingError, Stage
from stretto.core_events.ordering import sort_members


def member(name, *, stage=Stage.NORMAL, before=(), after=(), tags=()):
    cls = type(name, (Callback,), {})
    made = cls()
    made.stage, made.run_before, made.run_after, made.tags = stage, before, after, tags
    return made


def names(members):
    return [type(m).__name__ for m in members]


def test_list_order_stays_where_nothing_is_said():
    assert names(sort_members([member(n) for n in "CAB"])) == ["C", "A", "B"]


def test_stage_comes_before_list_order():
    members = [member("A", stage=Stage.PERSIST), member("B"), member("C")]
    assert names(sort_members(members)) == ["B", "C", "A"]


def test_wishes_name_tags_classes_and_base_classes():
    base = type("Base", (Callback,), {})
    derived = type("Derived", (base,), {})()
    assert names(sort_members([member("A", after=("Derived",)), derived])) == ["Derived", "A"]
    assert names(sort_members([member("A", after=("Base",)), derived])) == ["Derived", "A"]
    assert names(sort_members([member("A", tags=("x",)), member("B", before=["x"])])) == ["B", "A"]


def test_an_absent_tag_and_ones_own_are_ignored():
    members = [member("A", before=("nobody", "A"), after=("A",)), member("B")]
    assert names(sort_members(members)) == ["A", "B"]


def test_framework_classes_are_no_tags():
    members = [member("A", after=("Callback", "object")), member("B", after=("Callback",))]
    assert names(sort_members(members)) == ["A", "B"]


def test_a_cycle_is_named():
    members = [
        member("Free"),
        member("A", before=("B",)),
        member("B", before=("C",)),
        member("C", before=("A",)),
        member("Behind", after=("C",)),
    ]
    with pytest.raises(OrderingError) as raised:
        sort_members(members)
    path = re.search(r"cycle: (.*)\. Remove", str(raised.value))[1].split(" before ")
    assert path[0] == path[-1]
    steps = {("A", "B"), ("B", "C"), ("C", "A")}
    assert set(itertools.pairwise(path)) == steps


def test_a_wish_against_the_stages_is_refused():
    members = [member("A", stage=Stage.PERSIST, before=("B",)), member("B")]
    with pytest.raises(OrderingError, match="A is in stage PERSIST"):
        sort_members(members)


def test_a_bare_string_of_names_is_refused():
    with pytest.raises(OrderingError, match=r"\('B',\)"):
        sort_members([member("A", before="B"), member("B")])


@given(data=st.data(), size=st.integers(1, 6))
def test_the_order_is_the_first_one_that_a_search_over_all_permutations_finds(data, size):
    """The stable order is the smallest permutation, by list position, that obeys everything."""
    stages = data.draw(st.lists(st.sampled_from(Stage), min_size=size, max_size=size))
    pairs = data.draw(
        st.sets(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=6)
    )
    pairs = {(a, b) for a, b in pairs if a != b}
    members = [
        member(
            f"M{i}",
            stage=stages[i],
            before=tuple(f"M{b}" for a, b in pairs if a == i and (a + b) % 2),
            after=tuple(f"M{a}" for a, b in pairs if b == i and not (a + b) % 2),
        )
        for i in range(size)
    ]
    valid = (
        p
        for p in itertools.permutations(range(size))
        if all(stages[a] <= stages[b] for a, b in itertools.pairwise(p))
        and all(p.index(a) < p.index(b) for a, b in pairs)
    )
    expected = next(valid, None)
    if expected is None:
        with pytest.raises(OrderingError):
            sort_members(members)
    else:
        assert names(sort_members(members)) == [f"M{i}" for i in expected]
