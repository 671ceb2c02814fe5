"""Fixtures that tests of several packages share: the real CUDA toolkit and one warm package cache."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm120_wheels.paths import cache_root
from sm120_wheels.toolchain.cuda import CudaToolkit, ensure_cuda

# A run in the background (nohup, a script's job) ignores Ctrl-C, and so would every program that the tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
