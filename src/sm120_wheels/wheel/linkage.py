"""What a library links to that it must not: a CUDA of another major, search paths of the build machine."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sm120_wheels.wheel.library import Library

#: Libraries whose number is the CUDA major itself.
_NUMBERED_BY_CUDA = re.compile(
    r"lib(?:cudart|cublas|cublasLt|nvblas|nvrtc|nvrtc-builtins|nvJitLink|nvfatbin|nvjpeg|cupti|npp\w+)\.so\.(\d+)"
)
#: Libraries that count for themselves: number to the CUDA majors that ship it (NVIDIA's release notes for 11 to 13; for
#: 13 seen in the NEEDED entries of torch 2.11's libtorch_cuda.so).
_OWN_NUMBERS: dict[str, dict[int, frozenset[int]]] = {
    "cufft": {10: frozenset({11}), 11: frozenset({12}), 12: frozenset({13})},
    "cusolver": {11: frozenset({11, 12}), 12: frozenset({13})},
    "cusparse": {11: frozenset({11}), 12: frozenset({12, 13})},
}


def cuda_majors(soname: str) -> frozenset[int] | None:
    """The CUDA majors that ship a library of this name; None where the name does not tell."""
    if match := _NUMBERED_BY_CUDA.match(soname):
        return frozenset({int(match.group(1))})
    if match := re.match(r"lib(\w+)\.so\.(\d+)", soname):
        return _OWN_NUMBERS.get(match.group(1), {}).get(int(match.group(2)))
    return None


def foreign_cuda(needed: Sequence[str], *, expected_major: int) -> list[str]:
    """NEEDED entries that belong to another CUDA major than the one expected."""
    return [name for name in needed if (majors := cuda_majors(name)) is not None and expected_major not in majors]


def foreign_search_paths(library: Library) -> list[str]:
    """RPATH and RUNPATH entries that mean nothing, or something else, on another machine.

    Only entries relative to the library itself (``$ORIGIN/…``) travel; an empty entry is the current folder.
    """
    return [entry for entry in library.rpath if not re.match(r"\$(ORIGIN|\{ORIGIN\})(/|$)", entry)]


def describe(entries: Sequence[str]) -> str:
    """Entries for a message; an empty one made visible."""
    return ", ".join(entry or "'' (the current folder)" for entry in entries)
