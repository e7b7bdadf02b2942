"""How long to wait for a service."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.object_store.errors import InvalidUrlError


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait for a service.

    Attributes:
        connect: Seconds to connect.
        read: Seconds without a byte after which a request is given up.
        upload: Seconds for a large body, or one part of a larger one, to be sent and answered.

    Raises:
        InvalidUrlError: One of them is not positive.
    """

    connect: float = 10.0
    read: float = 60.0
    upload: float = 600.0

    def __post_init__(self) -> None:
        if min(self.connect, self.read, self.upload) <= 0:
            raise InvalidUrlError(
                f"connect_timeout={self.connect}, read_timeout={self.read} and "
                f"upload_timeout={self.upload} must be positive seconds"
            )
