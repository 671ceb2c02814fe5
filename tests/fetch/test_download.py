"""Downloads by sha256 from a real server on the loopback interface, which breaks off, refuses ranges or lies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_wheels.errors import DownloadError, HashMismatchError, HostUnreachableError, NoSpaceError, OfflineError
from sm120_wheels.fetch.download import Downloaded, download
from sm120_wheels.settings import Settings
from tests.support.disk import small_disk
from tests.support.web import Web

BODY = bytes(range(256)) * 20_000
SHA = hashlib.sha256(BODY).hexdigest()

Get = Callable[..., Downloaded]


@pytest.fixture
def get(web: Web, tmp_path: Path) -> Get:
    web.files["/f.tar.gz"] = BODY

    def one(*, url: str = "", sha256: str = SHA, offline: bool = False) -> Downloaded:
        return download(
            "f.tar.gz",
            sha256,
            urls=[url or web.url("/f.tar.gz")],
            cache_root=tmp_path / "cache",
            settings=Settings(offline=offline),
        )

    return one


def partial(tmp_path: Path, sha256: str = SHA) -> Path:
    path = tmp_path / "cache" / "files" / sha256 / "f.tar.gz.part"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_a_file_is_downloaded_once(get: Get, web: Web) -> None:
    first = get()
    assert first.path.read_bytes() == BODY
    assert get() == Downloaded(path=first.path, came_from="cache")
    assert get(offline=True).came_from == "cache"
    assert len(web.requests) == 1


def test_a_download_that_breaks_off_is_resumed_where_it_stopped(get: Get, web: Web) -> None:
    web.break_after = [1_000_000, 2_000_000]
    assert get().path.read_bytes() == BODY
    starts = [int(asked.removeprefix("bytes=").rstrip("-") or 0) for _, asked in web.requests]
    assert starts[0] == 0
    assert 900_000 < starts[1] <= 1_000_000, "all but a last piece of what arrived was kept"
    assert 2_900_000 - 100_000 < starts[2] <= starts[1] + 2_000_000
    assert len(starts) == 3


def test_a_download_that_never_gets_further_is_given_up(get: Get, web: Web) -> None:
    web.break_after = [10] * 20
    with pytest.raises(HostUnreachableError):
        get()
    assert len(web.requests) == 4


def test_a_later_run_resumes_what_an_earlier_one_left(get: Get, web: Web, tmp_path: Path) -> None:
    partial(tmp_path).write_bytes(BODY[:4_000_000])
    assert get().path.read_bytes() == BODY
    assert web.requests == [("/f.tar.gz", "bytes=4000000-")]


def test_a_rest_that_was_whole_already_is_taken(get: Get, tmp_path: Path) -> None:
    partial(tmp_path).write_bytes(BODY)
    assert get().path.read_bytes() == BODY


def test_a_server_without_ranges_sends_the_whole_file_again(get: Get, web: Web) -> None:
    web.ranges = False
    web.break_after = [1_000_000]
    assert get().path.read_bytes() == BODY


@pytest.mark.parametrize("rest", [b"\0" * 1_000_000, BODY + b"more"], ids=["zeros after a power cut", "too long"])
def test_a_damaged_rest_of_an_earlier_run_is_thrown_away_instead_of_blaming_upstream(
    get: Get, tmp_path: Path, rest: bytes
) -> None:
    partial(tmp_path).write_bytes(rest)
    assert get().path.read_bytes() == BODY


def test_what_does_not_match_is_named_with_both_hashes_and_deleted(get: Get, tmp_path: Path) -> None:
    with pytest.raises(HashMismatchError) as caught:
        get(sha256="0" * 64)
    assert "0" * 64 in caught.value.why
    assert SHA in caught.value.why
    assert [p for p in (tmp_path / "cache" / "files").rglob("*") if p.is_file()] == []


def test_an_answer_that_is_no_file_is_told_with_its_status(get: Get, web: Web) -> None:
    web.status["/f.tar.gz"] = 503
    with pytest.raises(DownloadError, match="503 Service Unavailable"):
        get()


def test_a_host_that_refuses_is_named_and_the_mirror_setting_explained(get: Get, web: Web) -> None:
    with pytest.raises(HostUnreachableError, match=r"cannot reach 127\.0\.0\.1:9") as caught:
        get(url="http://127.0.0.1:9/f.tar.gz")
    assert "refused" in caught.value.why
    assert "SM120_MIRROR" in caught.value.hint


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/f.tar.gz", "http:///f.tar.gz", "http://[::bad/f.tar.gz"])
def test_an_address_that_cannot_be_used_is_an_error_of_ours(get: Get, url: str) -> None:
    with pytest.raises((DownloadError, HostUnreachableError)) as caught:
        get(url=url)
    assert caught.value.where == url


def test_a_server_that_redirects_in_circles_is_an_error_of_ours(get: Get, web: Web) -> None:
    web.redirects["/f.tar.gz"] = "/f.tar.gz"
    with pytest.raises(DownloadError, match="cannot be downloaded") as caught:
        get()
    assert "redirects" in caught.value.why


def test_offline_nothing_is_asked(get: Get, web: Web) -> None:
    with pytest.raises(OfflineError, match=r"f\.tar\.gz is not in the cache"):
        get(offline=True)
    assert web.requests == []


def test_a_file_mirror_serves_offline(get: Get, tmp_path: Path) -> None:
    (tmp_path / "mirrored dir").mkdir()
    (tmp_path / "mirrored dir" / "f.tar.gz").write_bytes(BODY)
    found = get(url=(tmp_path / "mirrored dir" / "f.tar.gz").as_uri(), offline=True)
    assert found.path.read_bytes() == BODY


def test_a_file_mirror_without_the_file_says_so(get: Get, tmp_path: Path) -> None:
    with pytest.raises(HostUnreachableError, match="mirror has no such file"):
        get(url=(tmp_path / "none").as_uri())


def test_a_full_disk_is_one_error(web: Web) -> None:
    web.files["/f.tar.gz"] = BODY
    with small_disk("1m") as disk, pytest.raises(NoSpaceError):
        download("f", SHA, urls=[web.url("/f.tar.gz")], cache_root=disk, settings=Settings())
