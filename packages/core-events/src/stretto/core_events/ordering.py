"""The order in which members of one group run."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

from stretto.core_events.errors import OrderingError
from stretto.core_events.stage import Stage

__all__ = ["Orderable", "sort_members"]

_FRAMEWORK = frozenset({"Algorithm", "Callback", "LoggerDestination", "Generic", "ABC", "object"})


class Orderable(Protocol):
    """What ordering needs to know of a member."""

    @property
    def stage(self) -> Stage:
        """The coarse order."""
        ...

    @property
    def run_before(self) -> Collection[str]:
        """Tags of members that come later."""
        ...

    @property
    def run_after(self) -> Collection[str]:
        """Tags of members that come earlier."""
        ...

    @property
    def tags(self) -> Collection[str]:
        """Names of this member, besides its class's."""
        ...


MemberT = TypeVar("MemberT", bound=Orderable)


def sort_members(members: Sequence[MemberT]) -> list[MemberT]:
    """Sort by stage, then by `run_before` and `run_after`, then by position in the list.

    A tag that no member carries is ignored: the one it names may simply not be in use. The sort
    is stable: members between which nothing is said keep their order.

    Raises:
        OrderingError: The wishes form a cycle, or contradict the stages.
    """
    if not any(member.run_before or member.run_after for member in members):
        return sorted(members, key=_stage_of)
    followers = _followers(members)
    waiting = [0] * len(members)
    for following in followers:
        for index in following:
            waiting[index] += 1
    ready = [(_stage_of(members[i]), i) for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(index)
        for follower in followers[index]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (_stage_of(members[follower]), follower))
    if len(order) < len(members):
        raise OrderingError(
            _describe_cycle(members, followers, set(range(len(members))) - set(order))
        )
    result = [members[index] for index in order]
    _check_stages(result)
    return result


def _stage_of(member: Orderable) -> int:
    return int(member.stage)


def _followers(members: Sequence[Orderable]) -> list[set[int]]:
    """For each member, the indices of those that must come after it."""
    by_tag: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        for tag in _tags_of(member):
            by_tag.setdefault(tag, []).append(index)
    followers: list[set[int]] = [set() for _ in members]
    for index, member in enumerate(members):
        for tag in _names("run_before", member, member.run_before):
            followers[index].update(i for i in by_tag.get(tag, ()) if i != index)
        for tag in _names("run_after", member, member.run_after):
            for other in by_tag.get(tag, ()):
                if other != index:
                    followers[other].add(index)
    return followers


def _tags_of(member: Orderable) -> set[str]:
    classes = {cls.__name__ for cls in type(member).__mro__} - _FRAMEWORK
    return classes | set(_names("tags", member, member.tags))


def _names(attribute: str, member: Orderable, value: Collection[str]) -> Collection[str]:
    if isinstance(value, str):
        raise OrderingError(
            f"{type(member).__name__}.{attribute} is the string {value!r}. "
            f"Give a tuple of names: ({value!r},)."
        )
    return value


def _check_stages(members: Sequence[Orderable]) -> None:
    for earlier, later in pairwise(members):
        if earlier.stage > later.stage:
            raise OrderingError(
                f"{type(earlier).__name__} is in stage {earlier.stage.name} but asks to run before "
                f"{type(later).__name__}, which is in stage {later.stage.name}. "
                "Drop the wish or change the stage."
            )


def _describe_cycle(
    members: Sequence[Orderable], followers: Sequence[set[int]], stuck: set[int]
) -> str:
    """Walk among the members that wait for each other until one comes up again."""
    # Everyone who is stuck waits for somebody stuck: walking backwards always finds a cycle.
    leaders = {i: min(j for j in stuck if i in followers[j]) for i in stuck}
    path = [min(stuck)]
    while leaders[path[-1]] not in path:
        path.append(leaders[path[-1]])
    cycle = path[path.index(leaders[path[-1]]) :]
    cycle.reverse()
    names = [type(members[i]).__name__ for i in (*cycle, cycle[0])]
    return (
        f"run_before and run_after form a cycle: {' before '.join(names)}. "
        "Remove one of these wishes."
    )
