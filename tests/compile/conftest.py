"""Fixtures: the stand-in compiler, a private broker, a project, cgroups."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sm120_wheels.compile.budget import GIB, measure
from sm120_wheels.files import human_bytes
from tests.compile.building import Cgroup, Project, Runtime
from tests.support.waiting import until

_FAKE = Path(__file__).with_name("fakecc.c")


@pytest.fixture(scope="session")
def fakecc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("fakecc") / "fakecc"
    subprocess.run(["cc", "-O1", "-o", str(target), str(_FAKE)], check=True)
    return target


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Runtime]:
    """A private runtime folder and cache; the broker that was started there is ended after the test."""
    _wait_for_memory()
    folder = Path(tempfile.mkdtemp(prefix="sm120-test-"))
    monkeypatch.setenv("SM120_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("SM120_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SM120_BROKER_IDLE_S", "20")
    runtime = Runtime(folder=folder)
    yield runtime
    runtime.stop_broker()
    shutil.rmtree(folder, ignore_errors=True)


#: How long the next test waits for memory: after one has waited in vain, the others do not.
_patience = [60.0]


def _wait_for_memory() -> None:
    """Compiles wait as long as other programs hold the memory, and so would these tests."""
    end = time.monotonic() + _patience[0]
    while (left := measure().memory) < GIB:
        if time.monotonic() > end:
            _patience[0] = 0.0
            pytest.skip(f"not run: other programs leave {human_bytes(left)} of memory for compiles")
        time.sleep(0.2)
    _patience[0] = 60.0


@pytest.fixture
def project(tmp_path: Path, fakecc: Path) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder=folder, fakecc=fakecc)


@pytest.fixture
def make_cgroup() -> Iterator[Callable[[int], Cgroup]]:
    """Make cgroups with a limit in bytes; the test is not run where that needs rights which we lack."""
    made: list[Path] = []

    def make(limit: int) -> Cgroup:
        v1 = Path("/sys/fs/cgroup/memory")
        top, file, kills = (
            (v1, "memory.limit_in_bytes", "memory.oom_control")
            if (v1 / "memory.limit_in_bytes").exists()
            else (Path("/sys/fs/cgroup"), "memory.max", "memory.events")
        )
        folder = top / f"sm120-test-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
            made.append(folder)
            (folder / file).write_text(str(limit))
        except OSError as exc:
            pytest.skip(f"not run: no memory cgroup can be made here ({exc})")
        return Cgroup(folder=folder, kills=folder / kills)

    yield make
    for folder in made:
        for line in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line), signal.SIGKILL)
        until(functools.partial(_removed, folder), what="the cgroup is removed")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return not folder.exists()
    return True
