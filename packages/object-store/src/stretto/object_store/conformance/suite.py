"""The whole suite: subclass it with a fixture ``store``."""

from __future__ import annotations

from stretto.object_store.conformance.concurrency import ConcurrencyConformance
from stretto.object_store.conformance.files import FileConformance
from stretto.object_store.conformance.listing import ListingConformance
from stretto.object_store.conformance.objects import ObjectConformance
from stretto.object_store.conformance.refusals import (
    MissingBucketConformance,
    WrongCredentialConformance,
)

__all__ = ["MissingBucketConformance", "StoreConformance", "WrongCredentialConformance"]


class StoreConformance(
    ObjectConformance, ListingConformance, ConcurrencyConformance, FileConformance
):
    """What every store must do. Subclass it as ``TestYours`` and give it a fixture ``store``.

    The fixture gives an empty store for each test. The tests ask `Store.capabilities` what may
    be expected, and check that what is not promised is refused rather than wrong.
    """
