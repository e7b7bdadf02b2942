"""What differs between the services that obstore reaches."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Protocol

from stretto.object_store.backends.timeouts import Timeouts
from stretto.object_store.errors import ObjectStoreError
from stretto.object_store.types import Capabilities, Checksum, ObjectMeta

_PART_RETRIES = 5


class ClientUse(enum.Enum):
    """What an obstore client is for; each use has its own patience."""

    SMALL = "small"
    LARGE = "large"
    PARTS = "parts"


class Service(Protocol):
    """One bucket of one service: a recipe that can be pickled if it holds no secret."""

    @property
    def uri(self) -> str:
        """How the store calls itself, without a slash at its end."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What the service promises through obstore."""
        ...

    def connect(self, use: ClientUse) -> Any:
        """Make an obstore client.

        Args:
            use: What it is for.
        """
        ...

    def checksum(self, etag: str | None) -> Checksum | None:
        """What an ETag vouches for.

        Args:
            etag: Without quotes.
        """
        ...

    def version(self, etag: str | None, version: str | None) -> str | None:
        """What `ReplaceIf` needs to name this object.

        Args:
            etag: The ETag without quotes.
            version: The service's own version.
        """
        ...

    def condition(self, version: str) -> Mapping[str, str]:
        """The obstore condition for a replace.

        Args:
            version: What `version` gave.
        """
        ...

    def list_exactly(self, prefix: str, start_after: str | None) -> Iterator[ObjectMeta]:
        """List without obstore, which cannot name objects with unclean keys.

        Args:
            prefix: A plain string prefix.
            start_after: Begin behind this key.

        Raises:
            ObjectStoreError: There is no such way for this service or credential.
        """
        ...


def client_settings(timeouts: Timeouts, use: ClientUse, *, allow_http: bool) -> dict[str, Any]:
    """The arguments that all of obstore's stores have in common.

    Its own repetitions are for parts only; the rest is `RetryStore`'s.

    Args:
        timeouts: How long to wait.
        use: What the client is for.
        allow_http: Whether plain HTTP is wanted.
    """
    # The clock of obstore's read time-out also runs while a body is being sent.
    silence = timeouts.read if use is ClientUse.SMALL else timeouts.upload
    options = {
        "allow_http": allow_http,
        "connect_timeout": timedelta(seconds=timeouts.connect),
        "read_timeout": timedelta(seconds=silence),
        # A limit for a whole request would cut long downloads; silence is what must end.
        "timeout": timedelta(hours=12),
    }
    retries = {
        "max_retries": _PART_RETRIES if use is ClientUse.PARTS else 0,
        "retry_timeout": timedelta(seconds=120),
        "backoff": {
            "init_backoff": timedelta(milliseconds=200),
            "max_backoff": timedelta(seconds=10),
            "base": 2,
        },
    }
    return {"client_options": options, "retry_config": retries}


def no_exact_listing(uri: str) -> ObjectStoreError:
    """The error where a listing meets a foreign key and only obstore could go on.

    Args:
        uri: The store.
    """
    return ObjectStoreError(
        "another writer stored objects whose names are no clean paths, and this back end cannot "
        "list them; list a prefix without them",
        store=uri,
    )
