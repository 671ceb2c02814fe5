"""Which package has which suites, what is imported of it, and in which namespaces its operators are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

PAYLOAD = Path(__file__).resolve().parent / "payload"
SUITES = PAYLOAD / "sm120_smoke" / "suites"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A distribution that can be smoke-tested."""

    suite: str
    """Folder below the suites; empty where there is none for it."""
    imports: tuple[str, ...]
    parts: tuple[str, ...] = ()
    """Modules that register more operators; a wheel may leave them out."""
    namespaces: tuple[str, ...] = ()
    functions: bool = False
    """Its operators are the functions of TVM-FFI libraries in the wheel."""


_KNOWN: dict[str, Package] = {
    "sglang-kernel": Package(
        suite="sgl_kernel",
        imports=("sgl_kernel",),
        parts=("sgl_kernel.spatial", "sgl_kernel.flash_attn", "sgl_kernel.flash_mla", "sgl_kernel.sparse_flash_attn"),
        namespaces=("sgl_kernel",),
    ),
    "flashinfer-python": Package(suite="flashinfer", imports=("flashinfer",)),
    "flashinfer-jit-cache": Package(suite="flashinfer", imports=(), functions=True),
    "sm120-controls": Package(suite="controls", imports=("sm120_controls",), namespaces=("sm120_controls",)),
    "sm120-selftest": Package(suite="selftest", imports=("sm120_selftest",), namespaces=("sm120_selftest",)),
}
_OTHER_NAMES = {"sgl-kernel": "sglang-kernel"}


def package_of(distribution: str) -> Package | None:
    """What is known of a distribution: by its name, or by the beginning of it (``flashinfer-jit-cache-sm120f``)."""
    name = str(canonicalize_name(distribution))
    name = _OTHER_NAMES.get(name, name)
    if name in _KNOWN:
        return _KNOWN[name]
    return next((package for known, package in _KNOWN.items() if name.startswith(f"{known}-")), None)


def known_suites() -> list[str]:
    """Names of the suites that we bring."""
    return sorted(p.name for p in SUITES.iterdir() if p.is_dir() and any(p.glob("test_*.py")))
