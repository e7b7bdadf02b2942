"""Open stores through libcloud, by provider or for S3."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from stretto.object_store.backends.libcloud_driver import (
    DriverRecipe,
    driver_class_of,
    provider_name,
)
from stretto.object_store.backends.libcloud_s3 import LibcloudS3Store
from stretto.object_store.backends.libcloud_store import LibcloudStore
from stretto.object_store.backends.local import LocalStore
from stretto.object_store.backends.options import check_options
from stretto.object_store.backends.s3_options import S3Arguments, S3Options
from stretto.object_store.backends.timeouts import Timeouts
from stretto.object_store.errors import CredentialsError, InvalidUrlError
from stretto.object_store.secret import Secret
from stretto.object_store.store import Store
from stretto.object_store.url import StoreUrl

_ENVIRON = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def make_libcloud_store(recipe: DriverRecipe, container: str) -> LibcloudStore:
    """The store for a recipe: S3's own where the provider speaks S3.

    Args:
        recipe: How to make drivers.
        container: The container's name.
    """
    from libcloud.storage.drivers.s3 import BaseS3StorageDriver

    driver_class = driver_class_of(recipe.provider)
    speaks_s3 = issubclass(driver_class, BaseS3StorageDriver)
    # Google's driver is a subclass, with headers and conditions of its own.
    speaks_s3 = speaks_s3 and driver_class.http_vendor_prefix == "x-amz"
    return (LibcloudS3Store if speaks_s3 else LibcloudStore)(recipe, container)


def open_libcloud(
    url: StoreUrl,
    *,
    create: bool = False,
    uri: str | None = None,
    key: str | None = None,
    secret: str | None = None,
    key_environ: str | None = None,
    secret_environ: str | None = None,
    connect_timeout: float = 10.0,
    read_timeout: float = 60.0,
    etag_is_md5: bool = True,
    conditional_puts: bool = True,
    **arguments: Any,
) -> Store:
    """The store of a container of any libcloud provider.

    Args:
        url: Scheme ``libcloud+<provider>`` and the container.
        create: Make it if it is missing.
        uri: How the store calls itself; None for the URL.
        key: The account or key id; for ``local`` the root directory.
        secret: The secret. A store that was given it as an argument cannot be pickled.
        key_environ: Name of the variable that holds the key.
        secret_environ: Name of the variable that holds the secret.
        connect_timeout: Seconds to connect.
        read_timeout: Seconds without a byte after which a request is given up.
        etag_is_md5: See `S3Arguments`; for providers that speak S3.
        conditional_puts: See `S3Arguments`; for providers that speak S3.
        **arguments: Passed on to libcloud's driver class, such as ``host`` and ``region``.

    Raises:
        InvalidUrlError: The provider is unknown or refuses the arguments.
        CredentialsError: There is no key.
    """
    provider = provider_name(url.scheme.partition("+")[2])
    uri = uri or f"{url.scheme}://{url.bucket}"
    if provider == "local":
        root = key or (os.environ.get(key_environ) if key_environ else None)
        return open_local_provider(root, url.bucket, uri=uri)
    if key is None and key_environ is None:
        key_environ, secret_environ = _usual_variables(provider, uri)
    store = make_libcloud_store(
        DriverRecipe(
            provider=provider,
            key=key,
            secret=Secret(secret) if secret is not None else None,
            key_environ=key_environ,
            secret_environ=secret_environ,
            arguments=arguments,
            timeouts=Timeouts(connect=connect_timeout, read=read_timeout),
            etag_is_md5=etag_is_md5,
            conditional_puts=conditional_puts,
            uri=uri,
        ),
        url.bucket,
    )
    if create:
        store.make_container()
    return store


def _usual_variables(provider: str, uri: str) -> tuple[str, str]:
    if not provider.startswith("s3"):
        raise CredentialsError(
            f"the provider {provider} needs a key; pass key_environ='NAME' (and secret_environ) "
            "with the names of environment variables, or key and secret",
            store=uri,
        )
    return _ENVIRON


def open_local_provider(root: str | None, container: str, *, uri: str) -> LocalStore:
    """What takes the place of libcloud's ``local`` driver, which writes outside its root.

    Args:
        root: The directory that holds containers.
        container: A folder in it, or ``.`` for the root itself; made if it is missing.
        uri: How the store calls itself.

    Raises:
        InvalidUrlError: There is no root, or the container is not a plain folder name.
    """
    check_local_provider(has_root=bool(root), container=container)
    return LocalStore(os.path.join(root or "", container), uri=uri)  # noqa: PTH118 - a string


def check_local_provider(*, has_root: bool, container: str) -> None:
    """Refuse what the provider ``local`` can never open.

    Args:
        has_root: Whether there is a key, or a variable that is to hold it.
        container: A folder in the root, or ``.`` for the root itself.

    Raises:
        InvalidUrlError: There is no root, or the container is not a plain folder name.
    """
    if not has_root:
        raise InvalidUrlError("the provider 'local' needs its root directory as the key")
    if container in {"", ".."} or "/" in container or "\0" in container:
        raise InvalidUrlError(f"container {container!r} must be a plain folder name, or '.'")


def open_libcloud_s3(url: StoreUrl, *, create: bool = False, **options: Any) -> LibcloudStore:
    """The store of an S3 bucket, through libcloud.

    Args:
        url: Its bucket.
        create: Make the bucket if it is missing.
        **options: See `S3Arguments`; profiles, anonymous access and virtual hosts are not
            for libcloud.

    Raises:
        InvalidUrlError: An option is unknown or not for libcloud.
        CredentialsError: There is no credential.
    """
    check_options(S3Arguments, options, "s3:// through libcloud")
    for name in ("profile", "anonymous", "virtual_hosted_style"):
        if options.get(name):
            raise InvalidUrlError(f"libcloud cannot do {name}; leave out backend='libcloud'")
    settled = S3Arguments(**options).settle(url.bucket)
    store = make_libcloud_store(s3_recipe(settled), settled.bucket)
    if create:
        store.make_container()
    return store


def s3_recipe(options: S3Options) -> DriverRecipe:
    """How libcloud reaches the bucket that S3 options describe.

    Args:
        options: Settled options.
    """
    from libcloud.storage.drivers.s3 import REGION_TO_HOST_MAP

    given = options.credentials
    key_environ, secret_environ = given.access_key_id_environ, given.secret_access_key_environ
    if given.access_key_id is None and not (key_environ or secret_environ):
        key_environ, secret_environ = _ENVIRON
    arguments: dict[str, Any] = {"region": options.region}
    provider = "s3"
    if options.endpoint is not None:
        address = urlsplit(options.endpoint)
        secure = address.scheme == "https"
        arguments = {
            "host": address.hostname,
            "port": address.port or (443 if secure else 80),
            "secure": secure,
        }
        if options.region in REGION_TO_HOST_MAP:
            arguments["region"] = options.region
        else:
            provider = "minio"  # the S3 driver refuses regions that AWS does not have
    return DriverRecipe(
        provider=provider,
        key=given.access_key_id,
        secret=given.secret_access_key,
        token=given.session_token,
        key_environ=key_environ if given.access_key_id is None else None,
        secret_environ=secret_environ if given.access_key_id is None else None,
        arguments=arguments,
        timeouts=options.timeouts,
        etag_is_md5=options.etag_is_md5,
        conditional_puts=options.conditional_puts,
        uri=options.uri,
    )
