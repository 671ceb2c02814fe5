"""Addresses of shared caches and the secrets that go with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_wheels.compile.cache.shared import Credentials, SharedCache, credentials, parse
from sm120_wheels.errors import SettingError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("redis://h", SharedCache(address="redis://h")),
        ("rediss://h:1/3?read-only", SharedCache(address="rediss://h:1/3", read_only=True)),
        ("https://h/folder/", SharedCache(address="https://h/folder")),
        (
            "s3://bucket/prefix?endpoint=http://minio:9000&region=eu",
            SharedCache(address="s3://bucket/prefix", endpoint="http://minio:9000", region="eu"),
        ),
        ("", None),
        ("off", None),
    ],
)
def test_an_address_says_where_and_how(value: str, expected: SharedCache | None) -> None:
    assert parse(value, "here") == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ftp://h", "a shared cache cannot be at ftp://"),
        ("h:6379x", "a shared cache"),
        ("redis://", "names no host"),
        ("redis://h:x", "names no host"),
        ("redis://h/name", "'name' is not the number of a Redis database"),
        ("redis://h?readonly", "unknown option 'readonly'"),
        (7, "an address in a string"),
    ],
)
def test_what_is_no_address_is_an_error_that_names_its_place(value: object, text: str) -> None:
    with pytest.raises(SettingError, match=r"shared cache|Redis") as caught:
        parse(value, "environment variable SM120_SHARED_CACHE")
    assert text in str(caught.value)
    assert "environment variable SM120_SHARED_CACHE" in str(caught.value)
    assert caught.value.exit_code == 17


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingError, match="must not hold a user name or a password") as caught:
        parse("redis://me:hunter2@h", "option --shared-cache")
    assert "hunter2" not in str(caught.value)
    assert "SM120_SHARED_CACHE_PASSWORD_FILE" in str(caught.value)


def test_secrets_come_from_the_environment_or_from_files_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from a file\n")
    found = credentials(
        {"SM120_SHARED_CACHE_PASSWORD": "hunter2", "SM120_SHARED_CACHE_TOKEN_FILE": str(file), "OTHER": "x"}
    )
    assert found == Credentials(password="hunter2", token="from a file")
    assert "hunter2" not in repr(found)
    assert "from a file" not in repr(found)


def test_a_file_of_a_secret_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read") as caught:
        credentials({"SM120_SHARED_CACHE_KEY_FILE": str(tmp_path / "none")})
    assert "SM120_SHARED_CACHE_KEY_FILE" in str(caught.value)
