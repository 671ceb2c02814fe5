"""Sources of every kind become folders; two processes that want the same one do not disturb each other."""

from __future__ import annotations

import hashlib
import io
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from sm120_wheels.errors import DownloadError, HostUnreachableError
from sm120_wheels.fetch import fetch_source
from sm120_wheels.fetch.index import find_file, index_url
from sm120_wheels.recipe import Source
from sm120_wheels.settings import Mirror, Settings
from tests.support.web import Web


def tarball(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for number in range(200):
            member = tarfile.TarInfo(f"top/{number}")
            member.size = 1000
            tar.addfile(member, io.BytesIO(b"x" * 1000))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_archive_is_taken_from_the_mirror_and_then_from_the_cache(tmp_path: Path) -> None:
    sha = tarball(tmp_path / "m" / "v1.tar.gz")
    source = Source(archive="https://example.org/a/b/v1.tar.gz", sha256=sha)
    online = Settings(mirror=Mirror(template=f"file://{tmp_path}/m/{{file}}", origin="test"))
    got = [
        fetch_source("x", source, recipe_folder=tmp_path, cache_root=tmp_path / "c", settings=settings)
        for settings in (online, Settings(offline=True))
    ]
    assert [one.came_from for one in got] == [f"file://{tmp_path}/m/v1.tar.gz", "cache"]
    assert got[0].folder == got[1].folder
    assert len(list(got[0].folder.iterdir())) == 200


def test_a_folder_beside_the_recipe_is_used_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_text("1")
    got = fetch_source(
        "x", Source(folder="source"), recipe_folder=tmp_path, cache_root=tmp_path / "c", settings=Settings(offline=True)
    )
    assert got.folder == tmp_path / "source"
    assert got.pin.startswith("sha256:")
    assert not (tmp_path / "c").exists()


def test_processes_that_want_the_same_archive_all_get_it_whole(tmp_path: Path) -> None:
    sha = tarball(tmp_path / "m" / "v1.tar.gz")
    code = (
        "import sys; from pathlib import Path; from sm120_wheels.fetch import fetch_source\n"
        "from sm120_wheels.recipe import Source; from sm120_wheels.settings import Mirror, Settings\n"
        f"m = Mirror(template='file://{tmp_path}/m/{{file}}', origin='t'); root = Path({str(tmp_path)!r})\n"
        f"s = Source(archive='https://example.org/a/b/v1.tar.gz', sha256={sha!r})\n"
        "got = fetch_source('x', s, recipe_folder=root, cache_root=root / 'c', settings=Settings(mirror=m))\n"
        "print(len(list(got.folder.iterdir())))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    ended = [process.communicate(timeout=120) for process in running]
    assert [out.strip() for out, _ in ended] == ["200"] * 3, ended
    assert [p.name for p in (tmp_path / "c" / "trees").iterdir()] == [sha]


# The package index


@pytest.fixture
def index(web: Web, monkeypatch: pytest.MonkeyPatch) -> Web:
    for name in ("UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_DEFAULT_INDEX", web.url("/simple"))
    return web


def test_an_sdist_is_found_on_the_index_that_uv_is_set_to(index: Web, tmp_path: Path) -> None:
    sha = tarball(tmp_path / "demo_pkg-1.0.tar.gz")
    index.files["/files/demo_pkg-1.0.tar.gz"] = (tmp_path / "demo_pkg-1.0.tar.gz").read_bytes()
    page = f'<a href="../../files/demo_pkg-1.0.tar.gz#sha256={sha}">demo_pkg-1.0.tar.gz</a>'
    index.files["/simple/demo-pkg/"] = f"<!DOCTYPE html><html><body>{page}</body></html>".encode()
    got = fetch_source(
        "x",
        Source(pypi="demo_pkg-1.0.tar.gz", sha256=sha),
        recipe_folder=tmp_path,
        cache_root=tmp_path / "c",
        settings=Settings(),
    )
    assert len(list(got.folder.iterdir())) == 200


def test_an_index_without_the_project_or_the_file_is_told(index: Web) -> None:
    with pytest.raises(DownloadError, match="does not know demo-1"):
        find_file("demo-1.0.tar.gz")
    index.files["/simple/demo/"] = b"<html><body></body></html>"
    with pytest.raises(DownloadError, match="has no file demo-1"):
        find_file("demo-1.0.tar.gz")


def test_an_index_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    with pytest.raises(HostUnreachableError, match="cannot reach the package index") as caught:
        find_file("demo-1.0.tar.gz")
    assert "UV_DEFAULT_INDEX" in caught.value.hint


def test_an_index_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm120_wheels.fetch.index._TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        with pytest.raises(HostUnreachableError, match="cannot reach the package index") as caught:
            find_file("demo-1.0.tar.gz")
    assert "timed out" in caught.value.why


def test_a_file_that_is_no_sdist_is_told(index: Web) -> None:
    with pytest.raises(DownloadError, match="not the name of an sdist"):
        find_file("demo.exe")


def test_the_index_is_uvs_then_pips() -> None:
    both = {"UV_DEFAULT_INDEX": "https://u.example/simple", "PIP_INDEX_URL": "https://p.example/simple"}
    assert index_url(both) == "https://u.example/simple"
    assert index_url({"PIP_INDEX_URL": "https://p.example/simple"}) == "https://p.example/simple"
