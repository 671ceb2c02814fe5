"""Kernel names: readable, and comparable between two builds of the same source.

Names with internal linkage carry a hash of the translation unit (its path, its options), so the same kernel has
another name in every build; names of CUB and Thrust carry the list of architectures that were compiled together.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from functools import cache

#: nvcc's id of a translation unit.
_UNIT = r"[0-9a-f]{8}_\d+_(\w+?)_[0-9a-f]{8}(?:_\d+)?"
#: Identifiers that differ between builds of the same source, with what stands for them.
_IDENTIFIERS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"_GLOBAL__N__{_UNIT}"), r"<unnamed in \1>"),
    (re.compile(rf"_INTERNAL_{_UNIT}"), r"<internal of \1>"),
    (re.compile(r"_GLOBAL__N__[0-9a-f]{8}_\d+_(\w+)"), r"<unnamed in \1>"),
    # CUB_300001_SM_800_900_1200, with or without _NS: the architectures compiled together are in the namespace's name
    (re.compile(r"(CUB|THRUST)_(\d+)_SM_[\d_]+(?:_NS)?"), r"<\1_\2>"),
)
#: Prefixes and suffixes inside an identifier: static functions, and the id of lambdas and other local entities.
_INSIDE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"__nv_static_\d+__{_UNIT}_"), r"<static of \1>"),
    (re.compile(rf"__T{_UNIT}"), r"<id of \1>"),
)
#: Where such an identifier starts: after its length in decimal, as C++ mangling writes names.
_LENGTH = re.compile(r"(\d+)(?=_GLOBAL__N__|_INTERNAL_|(?:CUB|THRUST)_\d+_SM_)")


@cache
def normalise(mangled: str) -> str:
    """The name without what differs between builds; not a mangled name any more where something was replaced."""
    parts, at = [], 0
    for match in _LENGTH.finditer(mangled):
        start, end = match.end(), match.end() + int(match[1])
        identifier = mangled[start:end]
        if match.start() < at or end > len(mangled):
            continue
        for pattern, replacement in _IDENTIFIERS:
            if whole := pattern.fullmatch(identifier):
                parts += [mangled[at : match.start()], whole.expand(replacement)]
                at = end
                break
    text = "".join([*parts, mangled[at:]])
    for pattern, replacement in _INSIDE:
        text = pattern.sub(replacement, text)
    return text


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
