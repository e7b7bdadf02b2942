"""Where an S3 credential comes from, without holding it longer than needed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from stretto.object_store.errors import CredentialsError, MissingExtraError
from stretto.object_store.secret import Secret

_REFRESH = timedelta(minutes=15)
_NATIVE_VARIABLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """One usable credential.

    Attributes:
        access_key_id: Public half.
        secret_access_key: Secret half.
        session_token: Of a temporary credential, else None.
        expires_at: When to ask again; None for never.
    """

    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None = None
    expires_at: datetime | None = None


KeyProvider = Callable[[], Keys]
"""Gives a credential that is valid now; called again when it expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Credentials:
    """How to get a credential: the first of these that is set.

    Attributes:
        anonymous: Do not sign at all.
        access_key_id: Given by argument, with the next two.
        secret_access_key: See there.
        session_token: Only with temporary credentials.
        access_key_id_environ: Name of the variable that holds the id.
        secret_access_key_environ: Name of the variable that holds the secret.
        session_token_environ: Name of the variable that holds the token.
        profile: Name of an AWS profile; needs boto3.
    """

    anonymous: bool = False
    access_key_id: str | None = None
    secret_access_key: Secret | None = None
    session_token: Secret | None = None
    access_key_id_environ: str | None = None
    secret_access_key_environ: str | None = None
    session_token_environ: str | None = None
    profile: str | None = None

    @property
    def holds_secret(self) -> bool:
        """Whether a secret was given by argument, so that this cannot be pickled."""
        return self.secret_access_key is not None or self.session_token is not None

    def provider(self, *, store: str, custom_endpoint: bool) -> KeyProvider | None:
        """Settle where keys come from.

        Args:
            store: URI of the store, for errors.
            custom_endpoint: The service is not AWS, so its instance metadata cannot help.

        Returns:
            None if requests are not signed, or if the S3 client has to find keys by itself
            (web identity, container and instance metadata, where boto3 is not installed).

        Raises:
            CredentialsError: There is no credential; the message names what to set.
            MissingExtraError: A profile would be needed, which only boto3 can read.
        """
        if self.anonymous:
            return None
        keys = self._given(store) or self._named(store)
        if keys is None and self.profile is None:
            keys = _conventional(store)
        if keys is not None:
            fixed = keys
            return lambda: fixed
        if importlib.util.find_spec("boto3") is not None:
            return _boto3_chain(self.profile, store)
        if self.profile or os.environ.get("AWS_PROFILE") or _profile_files():
            raise MissingExtraError(
                "an AWS profile is configured, and reading it needs boto3; run: pip install "
                "'stretto-object-store[s3]', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                store=store,
            )
        if custom_endpoint and not any(os.environ.get(name) for name in _NATIVE_VARIABLES):
            raise _no_credential(store)
        return None

    def _given(self, store: str) -> Keys | None:
        if self.access_key_id is None and self.secret_access_key is None:
            return None
        if self.access_key_id is None or self.secret_access_key is None:
            missing = "access_key_id" if self.access_key_id is None else "secret_access_key"
            raise CredentialsError(f"the option {missing} is missing; give both", store=store)
        return Keys(
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            session_token=self.session_token,
        )

    def _named(self, store: str) -> Keys | None:
        names = (self.access_key_id_environ, self.secret_access_key_environ)
        if names == (None, None):
            return None
        access = read_variable(names[0] or "AWS_ACCESS_KEY_ID", store)
        secret = read_variable(names[1] or "AWS_SECRET_ACCESS_KEY", store)
        token = self.session_token_environ
        return Keys(
            access_key_id=access,
            secret_access_key=Secret(secret),
            session_token=Secret(read_variable(token, store)) if token else None,
        )


def read_variable(name: str, store: str | None = None) -> str:
    """The value of an environment variable that must be set.

    Args:
        name: Its name.
        store: URI of the store, for the error.

    Raises:
        CredentialsError: It is unset or empty.
    """
    value = os.environ.get(name)
    if not value:
        raise CredentialsError(
            f"the environment variable {name} is not set; export it with the credential",
            store=store,
        )
    return value


def _conventional(store: str) -> Keys | None:
    access = os.environ.get("AWS_ACCESS_KEY_ID")
    secret = os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not access and not secret:
        return None
    token = os.environ.get("AWS_SESSION_TOKEN")
    return Keys(
        access_key_id=read_variable("AWS_ACCESS_KEY_ID", store),
        secret_access_key=Secret(read_variable("AWS_SECRET_ACCESS_KEY", store)),
        session_token=Secret(token) if token else None,
    )


def _profile_files() -> bool:
    places = {
        "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
        "AWS_CONFIG_FILE": "~/.aws/config",
    }
    return any(Path(os.environ.get(n, p)).expanduser().is_file() for n, p in places.items())


def _no_credential(store: str) -> CredentialsError:
    return CredentialsError(
        "no S3 credential was found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass "
        "access_key_id and secret_access_key, or anonymous=True",
        store=store,
    )


def _boto3_chain(profile: str | None, store: str) -> KeyProvider:
    boto3: Any = importlib.import_module("boto3")
    exceptions: Any = importlib.import_module("botocore.exceptions")
    try:
        # A session of its own: boto3's default one is not safe to share between threads.
        credentials: Any = boto3.Session(profile_name=profile).get_credentials()
    except exceptions.BotoCoreError as error:
        raise CredentialsError(f"boto3 found no usable credential: {error}", store=store) from error
    if credentials is None:
        raise _no_credential(store)

    def refreshed() -> Keys:
        frozen = credentials.get_frozen_credentials()
        token = cast("str | None", frozen.token)
        return Keys(
            access_key_id=str(frozen.access_key),
            secret_access_key=Secret(str(frozen.secret_key)),
            session_token=Secret(token) if token else None,
            expires_at=datetime.now(UTC) + _REFRESH if token else None,
        )

    return refreshed
