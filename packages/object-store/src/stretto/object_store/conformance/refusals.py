"""Missing buckets and wrong credentials: conformance of services that have them."""

from __future__ import annotations

import pytest

from stretto.object_store.errors import (
    BucketNotFoundError,
    CredentialsError,
    NotFoundError,
    PermissionDeniedError,
)
from stretto.object_store.store import Store
from stretto.object_store.transfer import exists


class MissingBucketConformance:
    """Needs a fixture ``bucketless``: a store, opened unchecked, whose bucket does not exist."""

    def test_every_operation_says_that_the_bucket_is_missing(self, bucketless: Store) -> None:
        """Not that the object is."""
        operations = (
            lambda: bucketless.put("key", b"x"),
            lambda: bucketless.get("key"),
            lambda: bucketless.head("key"),
            lambda: bucketless.delete("key"),
            lambda: list(bucketless.list()),
            lambda: bucketless.checksum("key"),
            lambda: bucketless.copy("key", "other"),
            bucketless.check,
            bucketless.probe,
            lambda: exists(bucketless, "key"),
        )
        for operation in operations:
            with pytest.raises(BucketNotFoundError) as caught:
                operation()
            assert caught.value.store == bucketless.uri("")


class WrongCredentialConformance:
    """Needs a fixture ``mistrusted``: a store, opened unchecked, whose secret is wrong.

    Its secret must be given as the fixture ``wrong_secret``.
    """

    def test_every_operation_says_that_we_are_refused(
        self, mistrusted: Store, wrong_secret: str
    ) -> None:
        """Never that something is missing, and never with the secret in the text."""
        operations = (
            lambda: mistrusted.put("key", b"x"),
            lambda: mistrusted.get("key"),
            lambda: mistrusted.head("key"),
            lambda: mistrusted.delete("key"),
            lambda: list(mistrusted.list()),
            lambda: exists(mistrusted, "key"),
            mistrusted.check,
            mistrusted.probe,
        )
        for operation in operations:
            with pytest.raises(PermissionDeniedError) as caught:
                operation()
            assert not isinstance(caught.value, NotFoundError)
            assert not caught.value.retryable
            assert wrong_secret not in f"{caught.value} {caught.value!r} {mistrusted!r}"

    def test_a_listing_names_the_credential(self, mistrusted: Store) -> None:
        """Where the service says more than 403, so do we."""
        with pytest.raises(CredentialsError):
            mistrusted.check()
