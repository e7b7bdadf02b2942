"""Make libcloud drivers that are safe to use: one a thread, and none without a time-out."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.object_store.backends.parts import SMALL_BODY
from stretto.object_store.backends.s3_credentials import read_variable
from stretto.object_store.backends.timeouts import Timeouts
from stretto.object_store.errors import CredentialsError, InvalidUrlError
from stretto.object_store.secret import Secret

_REPLACED = {"local": "our own local store", "dummy": "memory://"}
_SECRET_WORDS = ("secret", "password", "token", "key", "credential")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRecipe:
    """How to make a driver; can be pickled unless it holds a secret.

    Attributes:
        provider: libcloud's name of the storage provider, such as ``s3`` or ``azure_blobs``.
        key: The account or key id, unless its variable is named.
        secret: The secret, unless its variable is named.
        token: Of a temporary S3 credential.
        key_environ: Name of the variable that holds the key.
        secret_environ: Name of the variable that holds the secret.
        arguments: Further arguments of the driver's class.
        timeouts: How long to wait.
        etag_is_md5: See `S3Options`.
        conditional_puts: See `S3Options`.
        uri: How errors call the store.
    """

    provider: str
    key: str | None = None
    secret: Secret | None = None
    token: Secret | None = None
    key_environ: str | None = None
    secret_environ: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    timeouts: Timeouts = field(default_factory=Timeouts)
    etag_is_md5: bool = True
    conditional_puts: bool = True
    uri: str

    @property
    def holds_secret(self) -> bool:
        """Whether pickling this would pickle a secret."""
        hidden = any(word in name.lower() for name in self.arguments for word in _SECRET_WORDS)
        return self.secret is not None or self.token is not None or hidden

    def make(self) -> Any:
        """Make a driver.

        Raises:
            CredentialsError: A named variable is not set.
            InvalidUrlError: The provider is unknown, or its class refuses the arguments.
        """
        driver_class = driver_class_of(self.provider)
        key = read_variable(self.key_environ, self.uri) if self.key_environ else self.key
        secret = self.secret.reveal() if self.secret else None
        if self.secret_environ:
            secret = read_variable(self.secret_environ, self.uri)
        arguments = dict(self.arguments)
        if self.token is not None:
            arguments["token"] = self.token.reveal()
        positional = [key] if secret is None else [key, secret]
        try:
            driver = driver_class(*positional, **arguments)
        except (TypeError, ValueError) as error:
            raise InvalidUrlError(
                f"libcloud's {self.provider} refuses these settings: {type(error).__name__}; "
                f"check its arguments {', '.join(sorted(arguments)) or '(none given)'}",
                store=self.uri,
            ) from None
        except Exception as error:
            if type(error).__module__.startswith("libcloud."):
                raise CredentialsError(
                    f"libcloud's {self.provider} cannot be set up: {type(error).__name__}; "
                    "check key and secret",
                    store=self.uri,
                ) from None
            raise
        _give_timeouts(driver, self.timeouts)
        return driver


class Drivers:
    """One driver for each thread of each process.

    Args:
        recipe: How to make one.
    """

    def __init__(self, recipe: DriverRecipe) -> None:
        self.recipe = recipe
        self._local = threading.local()

    def get(self) -> Any:
        """The driver of this thread."""
        found: tuple[int, Any] | None = getattr(self._local, "driver", None)
        if found is None or found[0] != os.getpid():  # a fork shares no connections
            found = (os.getpid(), self.recipe.make())
            self._local.driver = found
        return found[1]


def known_providers() -> tuple[str, ...]:
    """Libcloud's storage providers, sorted, by the names that `driver_class_of` takes."""
    providers: Any = importlib.import_module("libcloud.storage.providers")
    return tuple(sorted(str(name) for name in providers.DRIVERS))


def provider_name(provider: str) -> str:
    """The canonical name: lower case, underscores.

    Args:
        provider: In any case, with hyphens or underscores.

    Raises:
        InvalidUrlError: libcloud knows no such storage provider.
    """
    name = provider.lower().replace("-", "_")
    if name not in known_providers():
        raise InvalidUrlError(
            f"unknown storage provider {provider!r}; libcloud knows: {', '.join(known_providers())}"
        )
    return name


def driver_class_of(provider: str) -> Any:
    """The driver class of a provider.

    Args:
        provider: See `provider_name`.

    Raises:
        InvalidUrlError: It is unknown, or one that is unsafe and has a replacement.
    """
    name = provider_name(provider)
    if name in _REPLACED:
        raise InvalidUrlError(
            f"libcloud's {name!r} driver is not used here; use {_REPLACED[name]} instead"
        )
    providers: Any = importlib.import_module("libcloud.storage.providers")
    return providers.get_driver(name)


def _give_timeouts(driver: Any, timeouts: Timeouts) -> None:
    """Libcloud sends uploads without any time-out; its HTTP adapter is where all requests pass."""
    adapters: Any = importlib.import_module("requests.adapters")
    adapter: Any = adapters.HTTPAdapter
    plain: Any = driver.connection.conn_class

    def send(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        size = int(request.headers.get("Content-Length") or 0)
        # After a large body the answer comes only when what the system holds of it has gone.
        silence = timeouts.read if size <= SMALL_BODY else timeouts.upload
        options["timeout"] = (timeouts.connect, silence)
        return adapter.send(self, request, *args, **options)

    def init(self: Any, *args: Any, **options: Any) -> None:
        plain.__init__(self, *args, **options)
        timed = type("TimedAdapter", (adapter,), {"send": send})
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, timed())

    driver.connection.conn_class = type("TimedConnection", (plain,), {"__init__": init})
    driver.connection.connect()  # once more: the driver's own connection has none
