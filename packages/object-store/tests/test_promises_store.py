"""What a review found promised and not kept; each test fails without its mend."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stretto.object_store import (
    BucketNotFoundError,
    InvalidUrlError,
    ObjectStoreProviderHparams,
    open_store,
)
from stretto.object_store.errors import TransientError
from stretto.object_store.retry import RetryPolicy, call_with_retry, keep_attempts_quiet
from stretto.object_store.url import parse_url


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAKEY:top/secret@bucket/prefix",
        "s3://AKIAKEY:top@sec/ret@bucket/prefix",
        "s3://AKIAKEY:top/secret@bucket/a\nb",
        "sftp://AKIAKEY:top/secret@host/prefix",
        "gs:///AKIAKEY:top/secret@bucket",
    ],
)
def test_a_refused_url_does_not_repeat_a_secret_that_holds_slashes(url: str) -> None:
    with pytest.raises(InvalidUrlError) as caught:
        parse_url(url)
    for part in ("AKIAKEY", "top", "secret", "sec/ret", "ret@"):
        assert part not in str(caught.value)


def test_a_local_store_that_must_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(BucketNotFoundError, match="does not exist"):
        open_store(tmp_path / "typo" / "x", must_exist=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").mkdir()
    open_store(tmp_path / "there", must_exist=True).close()


@pytest.mark.parametrize("container", ["..", "../x", "a/b", "/abs", "a\0b"])
def test_a_local_container_that_leads_elsewhere_is_refused_at_construction(container: str) -> None:
    with pytest.raises(InvalidUrlError, match="container"):
        ObjectStoreProviderHparams("local", container, key_environ="HOME")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"provider": "local"}, "root"),
        ({"provider": "s3", "port": 0}, "port=0"),
        ({"provider": "s3", "port": 70000}, "port=70000"),
        ({"provider": "s3", "key_environ": ""}, "key_environ"),
        ({"provider": "s3", "secret_environ": ""}, "secret_environ"),
    ],
)
def test_what_a_provider_can_never_use_is_refused_at_construction(wrong, says: str) -> None:
    with pytest.raises(InvalidUrlError, match=says):
        ObjectStoreProviderHparams(container="container", **wrong)


def test_attempts_are_logged_until_a_program_asks_for_quiet(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import stamina

    import stretto.object_store.retry as module

    def fail() -> None:
        raise TransientError("the connection failed")

    def logged() -> int:
        caplog.clear()
        with caplog.at_level(logging.DEBUG), pytest.raises(TransientError):
            call_with_retry(fail, RetryPolicy(attempts=3), sleep=lambda _seconds: None)
        return len([record for record in caplog.records if "retry" in record.getMessage()])

    monkeypatch.setattr(module, "_quiet", False)
    stamina.instrumentation.set_on_retry_hooks([stamina.instrumentation.LoggingOnRetryHook])
    try:
        assert logged() == 2
        keep_attempts_quiet()
        assert logged() == 0
    finally:
        stamina.instrumentation.set_on_retry_hooks(None)
