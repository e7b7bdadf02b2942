"""Where to: a URL, a store, or the hyperparameters of a provider."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from rundir_uploader.errors import UploaderSettingsError
from rundir_uploader.keys import join_prefix
from stretto.object_store import CredentialsError, ObjectStoreError, Store


@runtime_checkable
class StoreProvider(Protocol):
    """What ``ObjectStoreProviderHparams`` offers."""

    provider: str
    container: str

    def open_store(self, *, check: bool = True) -> Store:
        """Open the store that they describe.

        Args:
            check: Ask it once whether it is there and lets us in.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A store that is not open yet.

    Attributes:
        source: A URL (local paths made absolute), a `Store` or a `StoreProvider`.
        options: What `stretto.object_store.open_store` takes besides the URL.
    """

    source: str | Store | StoreProvider
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @classmethod
    def of(cls, given: object, options: Mapping[str, Any] | None = None) -> Destination:
        """Take what a caller gave.

        Args:
            given: A URL, a path, a store, or the hyperparameters of a provider.
            options: Only with a URL.

        Raises:
            UploaderSettingsError: It is none of these.
            InvalidUrlError: The URL cannot be used.
        """
        if isinstance(given, (str, os.PathLike)):
            from stretto.object_store.url import parse_url

            url = str(parse_url(cast("str | os.PathLike[str]", given)))
            return cls(source=url, options=dict(options or {}))
        if options:
            raise UploaderSettingsError(
                f"options ({', '.join(sorted(options))}) go with a URL; a store has its own already"
            )
        if isinstance(given, (Store, StoreProvider)):
            return cls(source=given)
        raise UploaderSettingsError(
            f"{given!r} is no place to upload to; give a URL such as 's3://bucket/prefix', a local "
            "path, a Store, or ObjectStoreProviderHparams"
        )

    def open(self, *, check: bool = True, must_exist: bool = False) -> Store:
        """Open the store; one that was given open stays the caller's.

        Args:
            check: Ask it once whether it is there and lets us in.
            must_exist: Refuse a local path that is missing, rather than making it.

        Raises:
            ObjectStoreError: It is not, or does not.
        """
        if isinstance(self.source, str):
            from stretto.object_store import open_store

            options = dict(self.options)
            if must_exist and self.source.startswith("file://"):
                options["must_exist"] = True
            return open_store(self.source, check=check, **options)
        if isinstance(self.source, Store):
            if check:
                self.source.check()
            return self.source
        return self.source.open_store(check=check)

    @property
    def is_ours(self) -> bool:
        """Whether `open` makes a new store, which whoever called it must close."""
        return not isinstance(self.source, Store)

    def uri(self, key: str) -> str:
        """Return the address of a key, without opening anything.

        Args:
            key: A key, or empty.
        """
        if isinstance(self.source, str):
            return join_prefix(self.source, key)
        if isinstance(self.source, Store):
            return self.source.uri(key)
        return join_prefix(f"{self.source.provider}://{self.source.container}", key)

    def require_apart(self, directory: Path, prefix: str) -> None:
        """Refuse a local path that would be mirrored into itself, before anything is made there.

        Args:
            directory: What is mirrored.
            prefix: Before every key.

        Raises:
            UploaderSettingsError: One lies in the other.
        """
        if isinstance(self.source, str) and self.source.startswith("file://"):
            _require_apart(directory, Path(self.source.removeprefix("file://")), prefix)

    def require_usable(self) -> None:
        """Refuse, without asking the store anything, what can never work.

        Raises:
            InvalidUrlError: The scheme, the provider or an option is not known.
            MissingExtraError: The library behind the scheme is not installed.
            CredentialsError: An environment variable that is to hold a credential is not set.
        """
        if isinstance(self.source, str):
            if not self.source.startswith("file://"):
                from stretto.object_store import InvalidUrlError, MissingExtraError

                try:
                    self.open(check=False).close()
                except (InvalidUrlError, MissingExtraError):
                    raise
                except ObjectStoreError:
                    return  # what the store says is told, loudly, when the run starts
            return
        for name in ("key_environ", "secret_environ"):
            variable = getattr(self.source, name, None)
            if isinstance(variable, str) and not os.environ.get(variable):
                raise CredentialsError(
                    f"the environment variable {variable!r}, named by {name}, is not set; "
                    "set it before the run starts"
                )

    def require_process_boundary(self) -> None:
        """Refuse what cannot be opened again in another process.

        Raises:
            UploaderSettingsError: It cannot.
        """
        remedy = "pass use_procs=False, or a URL and credentials in the environment"
        if isinstance(self.source, str):
            if self.source.startswith("memory://"):
                raise UploaderSettingsError(
                    f"{self.source} lives in one process only, and use_procs=True uploads from "
                    f"another; {remedy}"
                )
            return
        what = type(self.source).__name__
        if isinstance(self.source, Store) and not self.source.capabilities.picklable:
            raise UploaderSettingsError(
                f"this {what} cannot cross into the uploader's own process; {remedy}"
            )
        if type(self.source).__module__ == "__main__":
            raise UploaderSettingsError(
                f"{what} is defined in the script itself, where the uploader's own process cannot "
                f"find it; move it to a module, or {remedy}"
            )
        try:
            pickle.dumps(self.source)
        except Exception as error:
            raise UploaderSettingsError(
                f"this {what} cannot cross into the uploader's own process ({error}); {remedy}"
            ) from error


def require_apart(directory: Path, store: Store, prefix: str) -> None:
    """Refuse a local store that would be mirrored into itself.

    Args:
        directory: What is mirrored.
        store: Where to.
        prefix: Before every key.

    Raises:
        UploaderSettingsError: One lies in the other.
    """
    root = _local_root(store)
    if root is not None:
        _require_apart(directory, root, prefix)


def _require_apart(directory: Path, root: Path, prefix: str) -> None:
    target = os.path.realpath(root / prefix)
    source = os.path.realpath(directory)
    if _contains(source, target) or _contains(target, source):
        raise UploaderSettingsError(
            f"the store {target} and the directory {source} lie one in the other, so the mirror "
            "would mirror itself; put the store somewhere else"
        )


def _contains(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _local_root(store: Store) -> Path | None:
    """Return the folder of a local store, however it is wrapped; None for all others."""
    parts: list[str] = []
    current: Any = store
    while current is not None:
        prefix = getattr(current, "prefix", None)
        if isinstance(prefix, str) and prefix:
            parts.insert(0, prefix)
        root = getattr(current, "root", None)
        if isinstance(root, Path):
            return root.joinpath(*parts)
        current = getattr(current, "inner", None)
    return None
