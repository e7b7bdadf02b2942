"""Servers as pytest fixtures: skipped with a reason, or a failure where they are required."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

from stretto.object_store.conformance.install import ServerUnavailableError
from stretto.object_store.conformance.servers import Server

ServerT = TypeVar("ServerT", bound=Server)


def servers_required() -> bool:
    """Whether a missing server is a failure: ``CI`` or ``STRETTO_REQUIRE_SERVERS`` is set."""
    truths = {"1", "true", "yes"}
    names = ("CI", "STRETTO_REQUIRE_SERVERS")
    return any(os.environ.get(name, "").lower() in truths for name in names)


def serving(server: type[ServerT]) -> Generator[ServerT]:
    """The body of a session fixture that starts a server and stops it.

    Args:
        server: Which one.
    """
    instance = server()
    try:
        instance.start()
    except ServerUnavailableError as error:
        if servers_required():
            pytest.fail(f"{server.__name__} is required here: {error}", pytrace=False)
        pytest.skip(f"{server.__name__}: {error}")
    try:
        yield instance
    finally:
        instance.stop()
