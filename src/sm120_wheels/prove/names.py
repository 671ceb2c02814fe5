"""Kernel names: readable, and comparable between two builds of the same source.

Names with internal linkage carry a hash of the translation unit (its path, its options), so the same kernel has
another name in every build; names of CUB and Thrust carry the list of architectures that were compiled together.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from functools import cache

#: Parts of a mangled name that differ between builds of the same source, with what stands for them. Each is a
#: mangled identifier: its length in decimal, then the identifier.
_VARYING: tuple[tuple[re.Pattern[str], str], ...] = (
    # nvcc's unnamed namespace: _GLOBAL__N__<hash>_<length>_<file>_<hash>[_<number>]
    (re.compile(r"\d+_GLOBAL__N__[0-9a-f]{8}_\d+_(\w+?)_[0-9a-f]{8}(?:_\d+)?(?=[\dEILKNS]|$)"), r"<unnamed in \1>"),
    (re.compile(r"_GLOBAL__N__[0-9a-f]{8}_\d+_(\w+?)_[0-9a-f]{8}(?:_\d+)?"), r"<unnamed in \1>"),
    # device variables and functions of a translation unit that must not clash: _INTERNAL_<hash>_<length>_<file>_<hash>
    (re.compile(r"\d*_INTERNAL_[0-9a-f]{8}_\d+_(\w+?)_[0-9a-f]{8}(?:_\d+)?(?=[\dEILKNS]|$)"), r"<internal of \1>"),
    # static functions with a unique prefix: __nv_static_<n>__<hash>_<length>_<file>_<hash>_
    (re.compile(r"__nv_static_\d+__[0-9a-f]{8}_\d+_(\w+?)_[0-9a-f]{8}(?:_\d+)?_"), r"<static of \1>"),
    # lambdas and other local entities of nvcc carry the translation unit's id
    (re.compile(r"__T[0-9a-f]{8}_\d+_(\w+?)_[0-9a-f]{8}"), r"<id of \1>"),
    # CUB_300001_SM_800_900_1200_NS, THRUST_…: the architectures compiled together are part of the namespace's name
    (re.compile(r"\d+(CUB|THRUST)_(\d+)_SM_[\d_]+_NS"), r"<\1_\2>"),
)


@cache
def normalise(mangled: str) -> str:
    """The name without what differs between builds; not a mangled name any more where something was replaced."""
    for pattern, replacement in _VARYING:
        mangled = pattern.sub(replacement, mangled)
    return mangled


@cache
def _demangler() -> ctypes.CDLL | None:
    for name in ("libstdc++.so.6", ctypes.util.find_library("stdc++")):
        if name:
            try:
                library = ctypes.CDLL(name)
                library.__cxa_demangle.restype = ctypes.c_void_p
            except (OSError, AttributeError):
                continue
            return library
    return None


@cache
def demangle(mangled: str) -> str:
    """The name as written in the source; the mangled one where it is no C++ name, or libstdc++ is missing."""
    library = _demangler()
    if library is None or not mangled.startswith("_Z"):
        return mangled
    status = ctypes.c_int()
    pointer = library.__cxa_demangle(mangled.encode(), None, None, ctypes.byref(status))
    if not pointer:
        return mangled
    text = ctypes.string_at(pointer).decode("utf-8", "replace")
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(pointer)
    return text


def brief(mangled: str, width: int = 110) -> str:
    """A readable name of at most ``width`` characters: without arguments, its template arguments cut."""
    text = demangle(mangled)
    text = re.sub(r"^void ", "", text)
    text = re.sub(r"\((?!anonymous)[^()]*\)(?: \[.*\])?$", "", text)
    return text if len(text) <= width else text[: width - 1] + "…"
