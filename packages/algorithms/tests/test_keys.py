"""Keys find and replace parts of every kind of batch, and never write into the user's own."""

from __future__ import annotations

import dataclasses
from collections import UserDict, namedtuple
from types import SimpleNamespace

import pytest
import torch

from stretto.algorithms import BatchFormatError
from stretto.algorithms.keys import check_key, get_item, set_item

Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int
    y: int


class Encoding(UserDict):
    """Like a tokenizer's output: a mapping that is no dict, with attributes for its items."""

    def __getattr__(self, name):
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


BATCHES = [
    ((1, 2), 1),
    ([1, 2], 1),
    ([1, 2], -1),
    (Pair(1, 2), 1),
    (Pair(1, 2), "y"),
    ({"x": 1, "y": 2}, "y"),
    (UserDict(x=1, y=2), "y"),
    (Encoding(x=1, y=2), "y"),
    (SimpleNamespace(x=1, y=2), "y"),
    (Frozen(1, 2), "y"),
    ({"y": 2}, (lambda batch: batch["y"], lambda batch, value: {**batch, "y": value})),
]


@pytest.mark.parametrize(("batch", "key"), BATCHES, ids=lambda value: type(value).__name__)
def test_a_part_is_read_and_replaced_in_a_copy(batch, key):
    assert get_item(batch, key) == 2
    changed = set_item(batch, key, 5)
    assert get_item(changed, key) == 5
    assert get_item(batch, key) == 2
    assert type(changed) is type(batch)


@pytest.mark.parametrize(
    ("batch", "key", "message"),
    [
        ((1, 2), 2, "tuple of 2 parts"),
        ({"x": 1}, "y", r"no 'y'; it has \['x'\]"),
        (SimpleNamespace(x=1), "y", "pair"),
        (7, 0, r"\(int\) has no 0"),
        (None, 0, "NoneType"),
    ],
)
def test_a_missing_part_is_an_error_that_says_what_is_there(batch, key, message):
    with pytest.raises(BatchFormatError, match=message):
        get_item(batch, key)
    with pytest.raises(BatchFormatError, match=message):
        set_item(batch, key, 1)


def test_a_tensor_is_not_written_into():
    batch = torch.zeros(2)
    with pytest.raises(BatchFormatError, match="single tensor"):
        set_item(batch, 0, 1.0)
    assert not batch.any()


@pytest.mark.parametrize("key", [None, 1.5, True, (1, 2), (len,), (len, len, len), object()])
def test_what_is_no_key_is_refused(key):
    with pytest.raises(TypeError, match=r"which=.* is no key\. Give an index"):
        check_key(key, "which")


def test_a_list_of_two_callables_is_a_pair():
    assert check_key([len, max], "key") == (len, max)
