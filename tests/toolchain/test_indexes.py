"""Index settings: pip's are translated for uv, uv's own are left alone, and broken local places are passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_wheels.toolchain.indexes import index_settings, pip_files, pip_settings

EMPTY = {"HOME": "/nonexistent"}


def conf(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_without_any_setting_uv_keeps_its_default() -> None:
    settings = index_settings(EMPTY, files=[])
    assert (settings.first, settings.fallback, settings.source) == ({}, {}, "uv's default")


def test_pips_main_index_certificate_host_and_proxy_are_translated(tmp_path: Path) -> None:
    file = conf(
        tmp_path / "pip.conf",
        "[global]\nindex-url = https://mirror.example/simple\ncert = /ca.pem\ntrusted-host = a.example\n  b.example\n"
        "proxy = http://proxy.example:3128\n",
    )
    assert index_settings(EMPTY, files=[file]).first == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INSECURE_HOST": "a.example b.example",
        "SSL_CERT_FILE": "/ca.pem",
        "ALL_PROXY": "http://proxy.example:3128",
    }


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"])
def test_uvs_own_variables_win_over_pip(name: str, tmp_path: Path) -> None:
    file = conf(tmp_path / "pip.conf", "[global]\nindex-url = https://mirror.example/simple\n")
    settings = index_settings({**EMPTY, name: "https://own.example/simple"}, files=[file])
    assert (settings.first, settings.fallback, settings.source) == ({}, {}, "uv's own settings")


def test_uvs_own_config_file_wins_over_pip(tmp_path: Path) -> None:
    (tmp_path / "uv").mkdir()
    conf(tmp_path / "uv" / "uv.toml", '[[index]]\nurl = "https://own.example/simple"\ndefault = true\n')
    environ = {**EMPTY, "XDG_CONFIG_HOME": str(tmp_path), "PIP_INDEX_URL": "https://mirror.example/simple"}
    assert index_settings(environ, files=[]).first == {}


def test_a_certificate_that_the_shell_set_is_kept(tmp_path: Path) -> None:
    environ = {**EMPTY, "PIP_CERT": "/pip.pem", "SSL_CERT_FILE": "/own.pem"}
    assert "SSL_CERT_FILE" not in index_settings(environ, files=[]).first


def test_extra_places_are_only_a_fallback_and_local_ones_must_be_there(tmp_path: Path) -> None:
    here = tmp_path / "simple"
    here.mkdir()
    environ = {
        **EMPTY,
        "PIP_EXTRA_INDEX_URL": f"file:///no/such/folder {here.as_uri()} https://extra.example/simple",
        "PIP_FIND_LINKS": f"/no/such/wheels {here}",
    }
    settings = index_settings(environ, files=[])
    assert settings.first == {}
    assert settings.fallback == {
        "UV_INDEX": f"{here.as_uri()} https://extra.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": str(here),
    }


def test_later_files_win_and_variables_win_over_files(tmp_path: Path) -> None:
    first = conf(
        tmp_path / "1", "[global]\nindex-url = https://one.example\ncert = /one\n[install]\nproxy = http://p\n"
    )
    second = conf(tmp_path / "2", "[global]\nindex_url = https://two.example\n")
    assert pip_settings({"PIP_CERT": "/three"}, files=[first, second]) == {
        "index-url": "https://two.example",
        "cert": "/three",
        "proxy": "http://p",
    }


@pytest.mark.parametrize("text", ["index-url = https://no.section", "[global\nx", "[global]\nindex-url = %(x)s\n"])
def test_a_file_that_is_broken_stops_nothing(tmp_path: Path, text: str) -> None:
    pip_settings({}, files=[conf(tmp_path / "pip.conf", text), tmp_path / "absent"])


def test_pips_files_are_those_that_its_manual_names(tmp_path: Path) -> None:
    environ = {"HOME": "/home/u", "XDG_CONFIG_DIRS": "/etc/xdg", "PIP_CONFIG_FILE": "/own.conf"}
    files = [str(path) for path in pip_files(environ)]
    assert files[:4] == [
        "/etc/xdg/pip/pip.conf",
        "/etc/pip.conf",
        "/home/u/.pip/pip.conf",
        "/home/u/.config/pip/pip.conf",
    ]
    assert files[-1] == "/own.conf"
    assert pip_files({"PIP_CONFIG_FILE": "/dev/null"}) == []
