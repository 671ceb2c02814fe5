"""uv's output becomes one error of the right kind, without the dump."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_wheels.errors import CommandError, DownloadError, NoSpaceError, OfflineError, Sm120Error
from sm120_wheels.toolchain.indexes import IndexSettings
from sm120_wheels.toolchain.locks import LockRequest
from sm120_wheels.toolchain.uv import explain, install, unwrapped, uv_binary, uv_environment

SETTINGS = IndexSettings(first={}, fallback={}, source="uv's default")


def explained(output: str, *, offline: bool = False) -> Sm120Error:
    locks = [LockRequest(path=Path("/locks/x.txt"))]
    return explain(output, entries=(), locks=locks, settings=SETTINGS, cache_root=Path("/tmp"), offline=offline)


def test_a_full_disk_is_no_space() -> None:
    output = (
        "Resolved 1 package\nerror: Failed to extract archive: x.whl\n  cause: No space left on device (os error 28)\n"
    )
    caught = explained(output)
    assert isinstance(caught, NoSpaceError)
    assert "SM120_CACHE_DIR" in caught.hint
    assert caught.exit_code == 44


def test_a_server_that_answers_with_an_error_is_a_download_error() -> None:
    output = (
        "error: Failed to fetch: `https://mirror.example/simple/x/`\n"
        "  cause: HTTP status server error (503 Service Unavailable) for url (https://mirror.example/simple/x/)\n"
    )
    caught = explained(output)
    assert isinstance(caught, DownloadError)
    assert "503 Service Unavailable" in caught.what
    assert caught.where == "https://mirror.example/simple/x/"


def test_offline_a_version_that_a_local_place_lacks_is_missing_from_the_cache() -> None:
    output = "error: No solution found\n  cause: Because there is no version of x==1.0 and you require x==1.0, no.\n"
    assert isinstance(explained(output, offline=True), OfflineError)
    assert isinstance(explained(output), DownloadError)


def test_what_is_not_known_shows_only_the_essential_lines() -> None:
    output = (
        "Using CPython 3.12\nResolved 3 packages in 1ms\nDownloading x\nerror: Something\n  cause: odd\n"
        + "  more\n" * 50
    )
    caught = explained(output)
    assert isinstance(caught, CommandError)
    assert caught.why.startswith("error: Something\ncause: odd")
    assert len(caught.why.splitlines()) <= 4
    assert "Downloading" not in caught.why


def test_messages_that_were_wrapped_are_joined() -> None:
    assert unwrapped("error: a\n  cause: b\n         c\nhint: d\n") == "error: a\ncause: b c\nhint: d"


def test_settings_that_would_bend_a_locked_install_are_left_out(tmp_path: Path) -> None:
    bent = {"UV_TORCH_BACKEND": "cpu", "UV_CONSTRAINT": "c.txt", "UV_EXCLUDE_NEWER": "2020-01-01", "VIRTUAL_ENV": "/v"}
    kept = uv_environment({**bent, "HTTPS_PROXY": "http://p", "UV_CACHE_DIR": "/own"}, cache_root=tmp_path)
    assert not bent.keys() & kept.keys()
    assert kept["HTTPS_PROXY"] == "http://p"
    assert kept["UV_CACHE_DIR"] == "/own"
    assert uv_environment({}, cache_root=tmp_path)["UV_CACHE_DIR"] == str(tmp_path / "uv")


def test_uv_comes_with_us() -> None:
    assert uv_binary().is_file()


def test_an_empty_lock_installs_nothing(tmp_path: Path) -> None:
    import sys

    with pytest.raises(CommandError):
        install(
            (),
            python=Path(sys.prefix) / "no-such-python",
            target=tmp_path / "t",
            workdir=tmp_path,
            locks=(),
            cache_root=tmp_path,
            offline=True,
        )
