"""Whether another build gave the same bytes: which members and which of their sections differ, and most likely why.

The cause is told from a section's name alone. Whether differing GPU code is the same code is :mod:`equivalence`'s.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path

from sm120_wheels.elf import MAGIC, Elf, Section
from sm120_wheels.files import sha256_file
from sm120_wheels.prove.verdict import Failure
from sm120_wheels.wheel.archive import WheelFile, open_wheel

#: Section name to the most likely cause; the first that fits. Each was met while builds were made reproducible
#: (wheel/reproducible.py, docs/how-to/compare-two-builds.md).
_CAUSES = (
    (r"\.(symtab|strtab)", "names of temporary files, or of what a checksum of a path stands in"),
    (r"\.nv_fatbin|__nv_relfatbin", "another nvcc, other flags or names with a path's checksum; see sm120 equivalence"),
    (r"\.rodata.*", "__FILE__ of a folder that is not mapped, or __DATE__ and __TIME__"),
    (r"\.(nv_)?debug_.*", "debug or line information (-g, -lineinfo, -G), which holds paths"),
    (r"\.dynstr|\.dynamic", "another search path or library was linked"),
    (r"\.comment", "another compiler"),
    (r"\.note\.gnu\.build-id", "it follows from what else differs"),
)
_UNKNOWN = "code or data that moved or changed with another section, or another compiler or source"


def differences(wheel: Path, other: Path) -> list[Failure]:
    """What differs between two wheels, member by member; nothing where they are the same file.

    Members are compared by RECORD. Raises :class:`WheelInvalidError` for what is no sound wheel.
    """
    with open_wheel(wheel, same_tags=False) as one, open_wheel(other, same_tags=False) as two:
        found = [
            Failure(what=f"{name}: only one of the two builds has it", why=f"not in {lacking.name}")
            for names, lacking in (
                (set(one.members) - set(two.members), other),
                (set(two.members) - set(one.members), wheel),
            )
            for name in sorted(names)
        ]
        for name in sorted(set(one.members) & set(two.members)):
            if one.record.get(name) != two.record.get(name):
                found.append(_member(name, one, two))
    if not found and sha256_file(wheel) != sha256_file(other):
        why = "packed by another zlib, or in another order or with other dates"
        found.append(Failure(what="every member is the same, and the archives are not", why=why))
    return found


def _member(name: str, one: WheelFile, two: WheelFile) -> Failure:
    mine, theirs = one.read(name), two.read(name)
    if not (mine.startswith(MAGIC) and theirs.startswith(MAGIC)):
        return Failure(what=f"{name} differs", why=f"{len(mine)} and {len(theirs)} bytes")
    names = _sections(Elf(mine, f"{one.path}: {name}"), Elf(theirs, f"{two.path}: {name}"))
    by_cause: dict[str, list[str]] = {}
    for section in names:
        by_cause.setdefault(cause(section), []).append(section)
    return Failure(
        what=f"{name} differs in {len(names)} section{'' if len(names) == 1 else 's'}",
        why="\n".join(f"{', '.join(sections)}: {why}" for why, sections in by_cause.items())
        or "every section is the same, the file's headers are not",
    )


def _sections(mine: Elf, theirs: Elf) -> list[str]:
    """Names of the sections that differ or that one file lacks, in the order of the files."""
    names = []
    for left, right in zip_longest(mine.sections, theirs.sections):
        same_name = left is not None and right is not None and left.name == right.name
        if not same_name or bytes(mine.data(left)) != bytes(theirs.data(right)):
            names += [section.name for section in (left, right) if isinstance(section, Section)]
    return list(dict.fromkeys(filter(None, names)))


def cause(section: str) -> str:
    """Most likely why a section of this name differs."""
    return next((why for pattern, why in _CAUSES if re.fullmatch(pattern, section)), _UNKNOWN)
