"""Provide what a build compiles with: the CUDA toolkit, the Python environment with torch, and libnuma."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sm120_wheels.plan import Plan
from sm120_wheels.toolchain.cuda import CudaToolkit, ensure_cuda
from sm120_wheels.toolchain.given import given_environment
from sm120_wheels.toolchain.locks import LockRequest, lock_path
from sm120_wheels.toolchain.numa import Numa, ensure_numa
from sm120_wheels.toolchain.pyenv import PythonEnvironment, ensure_environment
from sm120_wheels.toolchain.uv import note_downloads

#: What torch's wheel needs to be compiled against, but not imported.
_TORCH_HEADERS_ONLY = ("torch", "typing-extensions")


@dataclass(frozen=True, kw_only=True)
class Provisioned:
    """The toolchain of one build."""

    cuda: CudaToolkit
    environment: PythonEnvironment
    numa: Numa | None

    @property
    def torch_dir(self) -> Path:
        """Folder of TorchConfig.cmake."""
        return self.environment.site_packages / "torch" / "share" / "cmake" / "Torch"

    def record(self) -> dict[str, Any]:
        return {
            "cuda": self.cuda.record(),
            "python": self.environment.version,
            "packages": dict(sorted(self.environment.packages.items())),
            "python_origin": "given" if self.environment.key == "given" else "locked",
            "numa": None if self.numa is None else self.numa.record(),
        }


def provision(
    plan: Plan,
    *,
    cache_root: Path,
    offline: bool,
    cuda_source: Literal["auto", "pypi", "system"],
    cuda_home: Path | None,
    host_compiler: Path | None,
    environment: Path | None,
    torch_runtime: bool,
    cuda_needs: Sequence[Literal["compiler", "libs", "tools"]],
    tools: Sequence[str],
) -> Provisioned:
    """Find or make everything; cached by content and shared between builds. Raises the 2x and 4x of errors.py."""
    cuda = ensure_cuda(
        plan.cuda,
        cache_root=cache_root,
        offline=offline,
        source=cuda_source,
        cuda_home=cuda_home,
        need=tuple(cuda_needs),
        host_compiler=host_compiler,
        on_line=note_downloads,
    )
    if environment is not None:
        needs = () if torch_runtime else ("build", "cmake", "ninja", "scikit-build-core")
        python = given_environment(environment, wanted_python=plan.python, torch=plan.torch, needs=needs)
    else:
        torch = LockRequest(path=lock_path(f"torch-{plan.torch}"), only=() if torch_runtime else _TORCH_HEADERS_ONLY)
        python = ensure_environment(
            plan.python,
            [*(LockRequest(path=lock_path(name)) for name in tools), torch],
            cache_root=cache_root,
            offline=offline,
            need_headers=True,
            on_line=note_downloads,
        )
    numa = ensure_numa(cache_root=cache_root, offline=offline, allow_install=True) if plan.numa else None
    return Provisioned(cuda=cuda, environment=python, numa=numa)
