"""Which keys are keys."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.object_store import InvalidKeyError, MemoryStore, is_clean_key, validate_key
from stretto.object_store.conformance.cases import CLEAN_KEYS, UNCLEAN_KEYS

AWKWARD = st.text(st.sampled_from("ab./\\ \n\0\x7f\x85é\u0301%#?+~-_@=,\ud800"), max_size=12)


def is_key(text: str) -> bool:
    """The rule of the contract, written down a second time."""
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in text):
        return False
    if not 1 <= len(text.encode()) <= 1024:
        return False
    return all(part not in ("", ".", "..") for part in text.split("/"))


@given(st.one_of(AWKWARD, st.text(max_size=40)))
def test_keys_are_what_the_contract_says(text: str) -> None:
    assert is_clean_key(text) == is_key(text)
    if is_key(text):
        assert validate_key(text) is text
    else:
        with pytest.raises(InvalidKeyError):
            validate_key(text)


@given(st.integers(1, 600), st.sampled_from(["x", "é", "日", "🎼"]))
def test_length_counts_bytes(count: int, char: str) -> None:
    assert is_clean_key(char * count) == (len(char.encode()) * count <= 1024)


@pytest.mark.parametrize("key", CLEAN_KEYS.values(), ids=CLEAN_KEYS)
def test_odd_keys_are_clean(key: str) -> None:
    assert is_key(key)
    assert validate_key(key) == key


@pytest.mark.parametrize("key", UNCLEAN_KEYS.values(), ids=UNCLEAN_KEYS)
def test_errors_say_which_key_and_carry_it(key: str) -> None:
    with pytest.raises(InvalidKeyError) as caught:
        validate_key(key, store="s3://bucket")
    assert isinstance(caught.value, ValueError)
    assert (caught.value.key, caught.value.store) == (key, "s3://bucket")
    assert repr(key[:200]) in str(caught.value)
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("key", [None, 5, b"bytes"])
def test_what_is_no_string_is_no_key(key: object) -> None:
    with pytest.raises((InvalidKeyError, TypeError)):
        validate_key(key)  # type: ignore[arg-type]


@given(st.lists(AWKWARD.filter(is_key), unique=True, max_size=8))
def test_a_store_keeps_every_key_apart(keys: list[str]) -> None:
    store = MemoryStore()
    for key in keys:
        store.put(key, key.encode())
    assert sorted(meta.key for meta in store.list()) == sorted(keys)
    for key in keys:
        assert store.get(key).read() == key.encode()
