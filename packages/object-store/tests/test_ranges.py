"""Range arithmetic equals slicing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.object_store import LocalStore, MemoryStore
from stretto.object_store.backends.parts import MAX_PARTS, MIB, Parts, plan_parts, take
from stretto.object_store.get_result import check_range, clip_range

BOUNDS = st.one_of(st.integers(0, 30), st.integers(0, 2**60))


@given(st.integers(0, 30), BOUNDS, BOUNDS)
def test_a_clipped_range_is_the_slice(size: int, one: int, other: int) -> None:
    start, end = min(one, other), max(one, other)
    data = bytes(range(size))
    clipped = clip_range(check_range((start, end)), size)
    assert data[clipped[0] : clipped[1]] == data[start:end]
    assert 0 <= clipped[0] <= clipped[1] <= size


@given(st.integers(-5, 5), st.integers(-5, 5))
def test_only_ranges_that_can_be_pass(start: int, end: int) -> None:
    if 0 <= start <= end:
        assert check_range((start, end)) == (start, end)
    else:
        with pytest.raises(ValueError, match="byte_range"):
            check_range((start, end))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=40), st.integers(0, 50), st.integers(0, 50))
def test_stores_give_the_slice(tmp_path: Path, data: bytes, one: int, other: int) -> None:
    byte_range = (min(one, other), max(one, other))
    for store in (MemoryStore(), LocalStore(tmp_path / "root", durable=False)):
        store.put("object", data)
        assert store.get("object", byte_range=byte_range).read() == data[slice(*byte_range)]


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(1, 64))
def test_parts_are_equal_but_for_the_last(chunks: list[bytes], size: int) -> None:
    parts = Parts(chunks, size)
    found = list(parts)
    assert b"".join(found) == b"".join(chunks)
    assert parts.size == sum(map(len, chunks))
    assert all(len(part) == size for part in found[:-1])
    assert all(0 < len(part) <= size for part in found)


@given(st.integers(0, 5 << 40))
def test_no_upload_needs_too_many_parts_or_too_much_memory(size: int) -> None:
    plan = plan_parts(size)
    assert size <= plan.part_size * MAX_PARTS
    assert plan.part_size >= 5 * MIB
    assert plan.concurrency >= 2
    if size <= 1 << 40:
        assert plan.part_size * plan.concurrency <= 256 * MIB


@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(0, 60))
def test_taking_stops_once_the_limit_is_passed(chunks: list[bytes], limit: int) -> None:
    rest = iter(chunks)
    taken, complete = take(rest, limit)
    assert taken + b"".join(rest) == b"".join(chunks)
    assert complete == (sum(map(len, chunks)) <= limit)
