"""Everything that is there is listed, once: conformance of listings."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from stretto.object_store.errors import InvalidKeyError
from stretto.object_store.store import Store

MANY = 2_500
"""More than two pages of any service."""


class ListingConformance:
    """Listings. Needs a fixture ``store``: empty, of your making."""

    def test_an_empty_store_lists_nothing(self, store: Store) -> None:
        """Nor does a prefix that nothing has."""
        assert list(store.list()) == []
        assert list(store.list("nothing/here")) == []

    def test_listings_describe_what_they_find(self, store: Store) -> None:
        """Key, size, time, and the ETag that `head` tells."""
        store.put("a/b", b"12345")
        (found,) = store.list()
        head = store.head("a/b")
        assert (found.key, found.size, found.etag) == (head.key, 5, head.etag)
        assert found.version == head.version
        assert found.is_clean
        assert found.last_modified.tzinfo is not None

    def test_prefixes_are_whole_path_parts(self, store: Store) -> None:
        """``a/b`` is not a prefix of ``a/bc``, nor of itself."""
        for key in ("a/b/1", "a/b/c/2", "a/bc/3", "a/d", "ab", "other/a/b/4"):
            store.put(key, b"x")
        assert _keys(store, "a/b") == {"a/b/1", "a/b/c/2"}
        assert _keys(store, "a/b/") == {"a/b/1", "a/b/c/2"}
        assert _keys(store, "a") == {"a/b/1", "a/b/c/2", "a/bc/3", "a/d"}
        assert _keys(store, "ab") == set()
        assert len(_keys(store, "")) == 6

    @pytest.mark.parametrize("prefix", ["/", "//", "a//b", "../a", ".", "a/./b", "/a", "a\nb"])
    def test_unclean_prefixes_are_refused_at_once(self, store: Store, prefix: str) -> None:
        """Not first when the listing is read."""
        with pytest.raises(InvalidKeyError):
            store.list(prefix)

    def test_empty_objects_keep_their_names(self, store: Store) -> None:
        """Nothing is taken for a folder."""
        store.put("a/empty", b"")
        store.put("empty", b"")
        assert _keys(store, "") == {"a/empty", "empty"}

    @pytest.mark.slow
    def test_every_object_of_many_is_listed_once(self, store: Store) -> None:
        """2,500 objects in more than one page; in order where order is promised."""
        expected = [f"many/{number:05d}" for number in range(MANY)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(store.put, expected, itertools.repeat(b"x")))
        found = [meta.key for meta in store.list("many")]
        assert sorted(found) == expected
        if store.capabilities.ordered:
            assert found == expected

    def test_listings_are_lazy(self, store: Store) -> None:
        """The first object comes without the rest."""
        for number in range(5):
            store.put(f"x/{number}", b"x")
        listing = store.list("x")
        assert next(listing).key.startswith("x/")


def _keys(store: Store, prefix: str) -> set[str]:
    found = [meta.key for meta in store.list(prefix)]
    assert len(found) == len(set(found)), "listed twice"
    return set(found)
