"""URLs are taken literally."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.object_store import InvalidUrlError, StoreUrl, is_clean_key, parse_url

SCHEMES = st.sampled_from(["s3", "gs", "azure", "az", "sftp", "libcloud+google-storage", "x-y.z"])
BUCKETS = st.text(st.sampled_from("abcXYZ019.-_"), min_size=1, max_size=12)
PREFIXES = st.text(st.sampled_from("ab/%2F?#& +ü.~A"), max_size=20).filter(is_clean_key)


@given(SCHEMES, BUCKETS, PREFIXES)
def test_parts_come_back_as_they_were_written(scheme: str, bucket: str, prefix: str) -> None:
    for end in ("", "/"):
        found = parse_url(f"{scheme}://{bucket}/{prefix}{end}")
        assert found == StoreUrl(scheme=scheme, bucket=bucket, prefix=prefix)
    assert str(found) == f"{scheme}://{bucket}/{prefix}"
    assert parse_url(str(found)) == found


@given(st.text(max_size=30))
def test_any_text_is_a_url_or_an_error_of_ours(text: str) -> None:
    try:
        found = parse_url(text)
    except InvalidUrlError:
        pass
    else:
        assert found.scheme == "file" or "://" in text


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "S3://bucket"])
def test_a_bucket_alone_has_no_prefix(url: str) -> None:
    assert parse_url(url) == StoreUrl(scheme="s3", bucket="bucket", prefix="")


def test_case_is_kept_and_nothing_is_decoded() -> None:
    found = parse_url("s3://Bucket/A%2Fb/c d?x=1#y")
    assert (found.bucket, found.prefix) == ("Bucket", "A%2Fb/c d?x=1#y")


def test_paths_without_a_scheme_are_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("a/b").prefix == str(tmp_path / "a/b")
    assert parse_url("/abs").prefix == "/abs"
    assert parse_url("./x:y").prefix == str(tmp_path / "x:y")
    assert parse_url(Path("a")).prefix == str(tmp_path / "a")
    assert parse_url("file:///abs/path").prefix == "/abs/path"
    assert str(parse_url("/abs/a b")) == "file:///abs/a b"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "empty"),
        ("s3://", "bucket"),
        ("s3:///prefix", "bucket"),
        ("gs://", "bucket"),
        ("s3://bucket//x", "begins or ends"),
        ("s3://bucket/a/../b", "'..'"),
        ("s3://bucket/a//", "empty part|begins or ends"),
        ("file://relative/path", "absolute"),
        ("file://", "absolute"),
        ("s3://bucket/a\nb", "control"),
        ("a\0b", "control"),
        ("s3://bucket:9000/x", "port"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_value(url: str, says: str) -> None:
    with pytest.raises(InvalidUrlError, match=says):
        parse_url(url)


def test_a_credential_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidUrlError, match="environment") as caught:
        parse_url("s3://AKIAKEY:topsecret@bucket/prefix")
    assert "topsecret" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)
