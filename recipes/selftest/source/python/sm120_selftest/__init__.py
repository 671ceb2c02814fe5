"""Loads the operators ``torch.ops.sm120_selftest.*``: one small kernel for each thing that an SM120 GPU needs.

Importing registers the operators and launches nothing. ``python -m sm120_selftest`` runs every one of them against a
PyTorch reference. Raises :class:`ImportError`, with what to do, where the library cannot be loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch  # its libraries must be in the process before ours

__version__ = "0.1.0"


def installed_build_info() -> dict[str, Any]:
    """What the wheel was built for, from the file beside the library; needs no GPU and no loaded library."""
    info: dict[str, Any] = json.loads(Path(__file__).with_name("build_info.json").read_text(encoding="utf-8"))
    return info


def build_info() -> dict[str, Any]:
    """What the loaded library says that it was built for: ``archs``, ``cuda``, ``torch``, ``features``."""
    info: dict[str, Any] = json.loads(torch.ops.sm120_selftest.build_info())
    return info


def _why_not_loaded(error: ImportError) -> str:
    text = str(error)
    if "libnuma.so" in text:
        return (
            "sm120_selftest needs libnuma.so.1, which this machine lacks: "
            "install libnuma1 (Debian, Ubuntu) or numactl-libs (Fedora, RHEL)"
        )
    built = installed_build_info()["torch"]
    if built != torch.__version__:
        return f"sm120_selftest was built against torch {built}, but this is torch {torch.__version__}: {text}"
    return f"sm120_selftest's library does not load: {text}"


try:
    from . import _C  # type: ignore[attr-defined]  # noqa: F401
except ImportError as _error:
    raise ImportError(_why_not_loaded(_error)) from _error
