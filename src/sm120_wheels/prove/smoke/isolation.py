"""What the worker is kept from: compilers, the network, caches of earlier runs, settings of the caller's shell."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

#: Compilers that a consumer's machine need not have.
COMPILERS = ("nvcc", "ptxas", "cicc", "nvlink", "ninja", "gcc", "g++", "cc", "c++", "clang", "clang++", "cmake", "make")
_DROPPED = (
    "CC",
    "CONDA_PREFIX",
    "CUDACXX",
    "CUDA_HOME",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_PATH",
    "CUDA_ROOT",
    "CXX",
    "LD_PRELOAD",
    "VIRTUAL_ENV",
)
_DROPPED_PREFIXES = (
    "PYTHON",
    "FLASHINFER_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "SGL_",
    "SGLANG_",
    "PYTEST_",
    "COV_",
)


def worker_environment(
    environ: Mapping[str, str], *, scratch: Path, visible: str | None, network: bool
) -> dict[str, str]:
    """The environment of a worker. ``scratch`` is an empty folder that becomes its home and all its caches.

    ``visible`` is CUDA_VISIBLE_DEVICES; ``network`` says that it has one, so that NCCL may look for itself.
    """
    kept = {k: v for k, v in environ.items() if k not in _DROPPED and not k.startswith(_DROPPED_PREFIXES)}
    home = scratch / "home"
    home.mkdir(parents=True, exist_ok=True)
    kept.update(
        PATH=without_compilers(environ.get("PATH", os.defpath)),
        HOME=str(home),
        XDG_CACHE_HOME=str(home / ".cache"),
        TRITON_CACHE_DIR=str(home / "triton"),
        TORCH_EXTENSIONS_DIR=str(home / "torch_extensions"),
        TORCHINDUCTOR_CACHE_DIR=str(home / "inductor"),
        FLASHINFER_WORKSPACE_BASE=str(home),
        FLASHINFER_CUBIN_DIR=str(home / "cubins"),
        FLASHINFER_DISABLE_JIT="1",
        FLASHINFER_NO_DOWNLOAD="1",
        CUDA_CACHE_DISABLE="1",  # what the driver compiled from PTX in an earlier run must not hide that it compiles
        PYTHONNOUSERSITE="1",
    )
    if visible is not None:
        kept["CUDA_VISIBLE_DEVICES"] = visible
        kept["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if not network:
        kept.update(NCCL_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1", MASTER_ADDR="127.0.0.1")
    return kept


def without_compilers(path: str) -> str:
    """A PATH without the folders that hold a compiler."""
    folders = [folder for folder in path.split(os.pathsep) if folder]
    return os.pathsep.join(f for f in folders if not any((Path(f) / name).exists() for name in COMPILERS))
