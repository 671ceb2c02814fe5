"""What goes with what: CUDA, torch, Python, platform; and the name that one combination has, the build identifier."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence

from packaging.version import Version

from sm120_wheels.arch import Arch

#: Platforms that wheels are planned for. The second is Arm servers and DGX Spark.
PLATFORMS = ("linux_x86_64", "linux_aarch64")

#: CUDA that the torch wheels on the package index are built for: first torch release of each. Read from the
#: wheels' own ``torch.version.cuda`` and dependencies (torch 2.8 to 2.10, 2.11 to 2.14, 2.15).
_TORCH_CUDA: tuple[tuple[str, str], ...] = (("2.15", "13.2"), ("2.11", "13.0"), ("2.8", "12.8"))


def torch_cuda(torch: str) -> str | None:
    """The CUDA release that the index's wheel of this torch is built for, or None where it is not known."""
    for first, cuda in _TORCH_CUDA:
        if Version(torch) >= Version(first):
            return cuda
    return None


def cuda_tag(cuda: str) -> str:
    """``cu130`` for ``13.0``."""
    return f"cu{cuda.replace('.', '')}"


def platform_name() -> str:
    """``linux_x86_64`` or ``linux_aarch64``."""
    return f"linux_{platform.machine()}"


def build_identifier(
    *, distribution: str, version: str, cuda: str, torch: str, python_tag: str, archs: Sequence[Arch], platform: str
) -> str:
    """``sglang_kernel-0.4.4-cu130-torch2.11-cp310_abi3-sm120a-linux_x86_64``."""
    release = Version(torch).release
    return "-".join(
        [
            re.sub(r"[-.]+", "_", distribution),
            version,
            cuda_tag(cuda),
            f"torch{release[0]}.{release[1]}",
            python_tag,
            ".".join(arch.sm.replace("_", "") for arch in archs),
            platform,
        ]
    )
