"""Fixtures that tests of several packages share: the real CUDA toolkit, one warm package cache, a small world."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sm120_wheels.paths import cache_root
from sm120_wheels.toolchain.cuda import CudaToolkit, ensure_cuda
from tests.support.demo import torch_stand_in
from tests.support.world import World

# How fast an example runs says how busy the machine is, not whether the code is right. Here, so that it holds for every
# file, whichever are run and in whatever order.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

# A run in the background (nohup, a script's job) ignores Ctrl-C, and so would every program that the tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: with two processes, the last one to start must be a short one."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


#: The cache that the test run uses, fixed before any test changes SM120_CACHE_DIR.
_CACHE = cache_root()


@pytest.fixture(scope="session")
def shared_cache() -> Path:
    """The user's real cache: what was downloaded once is not downloaded by the next run."""
    return _CACHE


@pytest.fixture(scope="session")
def pypi_cuda(shared_cache: Path) -> CudaToolkit:
    """CUDA 13.0 from the package index (compiler, runtime, cuobjdump), assembled once. Mark tests cuda and network."""
    return ensure_cuda("13.0", cache_root=shared_cache, offline=False, source="pypi", need=("compiler", "tools"))


@pytest.fixture(autouse=True)
def no_cuda_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests see no toolkit or compiler that the developer's shell chose."""
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDACXX", "CUDAHOSTCXX", "NVCC_CCBIN", "CXX", "CC"):
        if name in os.environ:
            monkeypatch.delenv(name)
    yield


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel called torch."""
    return torch_stand_in(tmp_path_factory.mktemp("links"))


@pytest.fixture
def world(tmp_path: Path, stand_in: Path, pypi_cuda: CudaToolkit, shared_cache: Path) -> Iterator[World]:
    """A world whose cache shares the big tools with the user's, and nothing else."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for shared in ("cuda", "uv", "environments"):
        (shared_cache / shared).mkdir(exist_ok=True)
        (cache / shared).symlink_to(shared_cache / shared)
    runtime = tempfile.mkdtemp(prefix="sm120-test-")
    world = World(
        root=tmp_path,
        env={
            "SM120_RUNTIME_DIR": runtime,
            "SM120_BROKER_IDLE_S": "20",
            "PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {stand_in}".strip(),
        },
    )
    assert pypi_cuda.version.startswith("13.0.")
    yield world
    for process in world.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    shutil.rmtree(runtime, ignore_errors=True)
