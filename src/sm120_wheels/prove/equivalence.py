"""Compares two builds kernel by kernel: is the machine code the same?

A kernel of ours is ``identical`` to one of the reference where everything that a launch executes is equal (see
:mod:`prints`); ``relocated`` where the code differs only in where addresses lie in the module's table, so that it
does the same; else ``different``. What has no partner is ``only ours`` or ``missing`` (only in the reference).

Kernels are matched by name, without what names carry of the build (:mod:`names`). One name may occur many times (in
several translation units): equal ones are matched with equal ones first.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sm120_wheels.arch import Arch
from sm120_wheels.errors import SettingError
from sm120_wheels.prove import inputs, prints
from sm120_wheels.prove.addresses import table_offsets
from sm120_wheels.prove.names import brief, demangle
from sm120_wheels.prove.prints import Code, Print
from sm120_wheels.prove.sass import INSTRUCTION_BYTES, Instruction, disassemble, readable_archs
from sm120_wheels.prove.verdict import loader_skips

Status = Literal["identical", "relocated", "different", "only ours", "missing"]
STATUSES: tuple[Status, ...] = ("identical", "relocated", "different", "only ours", "missing")


@dataclass(frozen=True, kw_only=True)
class Pair:
    status: Status
    key: str
    ours: Print | None
    reference: Print | None
    why: tuple[str, ...] = ()
    """What differs: ``code``, ``registers 40/48``, …"""
    allowed: bool = False
    """Missing, and the user said that it may be."""

    @property
    def name(self) -> str:
        there = self.ours or self.reference
        assert there is not None
        return there.name


@dataclass(frozen=True, kw_only=True)
class Comparison:
    ours: str
    reference: str
    arch: Arch
    reference_arch: Arch
    pairs: tuple[Pair, ...]
    skipped: tuple[tuple[str, str], ...]
    """Libraries of the reference that were left out, with the reason."""
    compilers: tuple[tuple[str, ...], tuple[str, ...]]
    archs: tuple[tuple[str, ...], tuple[str, ...]]
    """All architectures with machine code on either side."""

    def count(self, status: Status) -> int:
        return sum(p.status == status for p in self.pairs)

    @property
    def holds(self) -> bool:
        """Whether something was compared, nothing differs, and nothing is missing that may not be."""
        compared = any(p.status in ("identical", "relocated") for p in self.pairs)
        return compared and not any(
            p.status == "different" or (p.status == "missing" and not p.allowed) for p in self.pairs
        )


def compare(
    ours: inputs.Subject,
    reference: inputs.Subject,
    arch: Arch,
    *,
    reference_arch: Arch | None = None,
    libraries: Sequence[str] = (),
    allow_missing: Sequence[str] = (),
    workers: int = 0,
) -> Comparison:
    """Compare the kernels of two subjects for one architecture.

    ``libraries``: shell patterns of the reference's libraries to compare with; all where empty. Libraries that the
    package would not load on the architecture's GPU are left out, unless ours has one of that path too.
    ``allow_missing``: shell patterns of kernels (mangled or readable names) or libraries that ours may lack.
    """
    reference_arch = reference_arch or arch
    members, skipped = _reference_members(ours, reference, arch, libraries)
    our_prints, our_archs = prints.take(ours, arch, ours.members, workers=workers)
    reference_prints, reference_archs = prints.take(reference, reference_arch, members, workers=workers)
    pairs = match(our_prints, reference_prints, allow_missing)
    pairs = _find_relocated(pairs, (ours, arch, ours.members), (reference, reference_arch, members))
    return Comparison(
        ours=str(ours.path),
        reference=str(reference.path),
        arch=arch,
        reference_arch=reference_arch,
        pairs=tuple(sorted(pairs, key=lambda p: (STATUSES.index(p.status), p.key))),
        skipped=tuple(skipped),
        compilers=(_compilers(our_prints), _compilers(reference_prints)),
        archs=(tuple(our_archs), tuple(reference_archs)),
    )


def _compilers(found: Sequence[Print]) -> tuple[str, ...]:
    return tuple(sorted({p.compiler for p in found}))


def _reference_members(
    ours: inputs.Subject, reference: inputs.Subject, arch: Arch, patterns: Sequence[str]
) -> tuple[list[inputs.Member], list[tuple[str, str]]]:
    mine = {m.name for m in ours.members}
    skips = loader_skips([m.name for m in reference.members], arch.capability)
    members, skipped = [], []
    for member in reference.members:
        if patterns and not any(fnmatch.fnmatchcase(member.name, p) for p in patterns):
            skipped.append((member.name, "not asked for"))
        elif member.name in skips and member.name not in mine and not patterns:
            skipped.append((member.name, skips[member.name]))
        else:
            members.append(member)
    if patterns and not members:
        raise SettingError(
            f"no library of {reference.path.name} has a name like {' or '.join(patterns)}",
            where="--library",
            hint=f"it has {', '.join(m.name for m in reference.members) or 'none'}",
        )
    return members, skipped


def match(ours: Sequence[Print], reference: Sequence[Print], allow_missing: Sequence[str] = ()) -> list[Pair]:
    """Pair the kernels: of each name first those that are equal, then those that are left, in order."""
    left: dict[str, list[Print]] = defaultdict(list)
    right: dict[str, list[Print]] = defaultdict(list)
    for p in ours:
        left[p.key].append(p)
    for p in reference:
        right[p.key].append(p)
    pairs: list[Pair] = []
    for key in sorted(set(left) | set(right)):
        equal: dict[tuple[object, ...], list[Print]] = defaultdict(list)
        for p in right[key]:
            equal[p.whole].append(p)
        unmatched = []
        for p in left[key]:
            if equal[p.whole]:
                pairs.append(Pair(status="identical", key=key, ours=p, reference=equal[p.whole].pop(0)))
            else:
                unmatched.append(p)
        rest = [p for group in equal.values() for p in group]
        for mine, theirs in zip(unmatched, rest, strict=False):
            pairs.append(Pair(status="different", key=key, ours=mine, reference=theirs, why=differences(mine, theirs)))
        pairs += [Pair(status="only ours", key=key, ours=p, reference=None) for p in unmatched[len(rest) :]]
        for p in rest[len(unmatched) :]:
            pairs.append(Pair(status="missing", key=key, ours=None, reference=p, allowed=_allowed(p, allow_missing)))
    return pairs


def _allowed(kernel: Print, patterns: Sequence[str]) -> bool:
    names = (kernel.library, kernel.name, demangle(kernel.name))
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


def differences(ours: Print, reference: Print) -> tuple[str, ...]:
    """What makes two kernels different, in words; ours first in ``40/48``."""
    found = []
    if ours.code != reference.code:
        found.append("code")
    if ours.bytes != reference.bytes:
        found.append(f"bytes {ours.bytes}/{reference.bytes}")
    if ours.instructions != reference.instructions:
        found.append(f"instructions {ours.instructions}/{reference.instructions}")
    for what in ("relocations", "constants", "references"):
        if getattr(ours, what) != getattr(reference, what):
            found.append(what)
    mine, theirs = dict(ours.needs), dict(reference.needs)
    found += [
        f"{name} {mine.get(name, '-')}/{theirs.get(name, '-')}"
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name) != theirs.get(name)
    ]
    return tuple(found)


_Side = tuple[inputs.Subject, Arch, Sequence[inputs.Member]]


def _find_relocated(pairs: list[Pair], ours: _Side, reference: _Side) -> list[Pair]:
    """Turn ``different`` into ``relocated`` where only offsets in the table of addresses differ."""
    suspects = [p for p in pairs if p.status == "different" and p.why == ("code",)]
    if not suspects or ours[1].sm not in readable_archs():
        return pairs
    keys = frozenset(p.key for p in suspects)
    mine = {_place(c.kernel): (c, lines) for c, lines in _listed(prints.codes(*ours, keys), ours[1])}
    theirs = {_place(c.kernel): (c, lines) for c, lines in _listed(prints.codes(*reference, keys), reference[1])}
    result = []
    for pair in pairs:
        if pair in suspects and pair.ours and pair.reference:
            left, right = mine.get(_place(pair.ours)), theirs.get(_place(pair.reference))
            if left and right and _differ_by_table_only(left, right):
                pair = replace(pair, status="relocated")
        result.append(pair)
    return result


def _differ_by_table_only(ours: tuple[Code, list[str]], reference: tuple[Code, list[str]]) -> bool:
    """Whether each instruction that differs loads the address of the same thing, with the same scheduling.

    What nvdisasm prints is not enough: it leaves out stalls and barriers, which a changed bit may be in.
    """
    size = INSTRUCTION_BYTES
    for i, (mine, theirs) in enumerate(zip(ours[1], reference[1], strict=True)):
        one, other = ours[0].text[i * size : (i + 1) * size], reference[0].text[i * size : (i + 1) * size]
        if one != other and (mine != theirs or "address[" not in mine or one[13:] != other[13:]):
            return False
    end = len(ours[1]) * size
    return ours[0].text[end:] == reference[0].text[end:]


def _place(kernel: Print) -> tuple[str, int, str]:
    return kernel.library, kernel.unit, kernel.name


def _listed(found: Iterable[Code], arch: Arch) -> list[tuple[Code, list[str]]]:
    codes = list(found)
    listings = disassemble([c.text for c in codes], arch)
    return [(c, listing_lines(c, listing)) for c, listing in zip(codes, listings, strict=True)]


def listing_lines(code: Code, instructions: Sequence[Instruction]) -> list[str]:
    """The instructions as text, addresses from the module's table named, the NOPs at the end left out."""
    table = dict(code.table)
    known: dict[str, int] = {}
    lines = []
    for instruction in instructions[: code.kernel.instructions]:
        named = [table[at] for at in table_offsets(instruction, known) if at in table]
        text = str(instruction)
        if named:
            # the replacement is a name from the table: no backslash of it may be read as a group
            text = re.sub(r"c\[0x4\]\[[^]]*\]", f"address[{', '.join(named)}]".replace("\\", r"\\"), text)
        lines.append(text)
    return lines


def show(
    comparison: Comparison, pattern: str, ours: inputs.Subject, reference: inputs.Subject, *, context: int = 3
) -> list[str]:
    """The SASS of the kernels whose name contains a text, as a diff: ``-`` the reference's, ``+`` ours.

    For an identical kernel the whole listing is given once.
    """
    wanted = [p for p in comparison.pairs if pattern in p.name or pattern in demangle(p.name)]
    keys = frozenset(p.key for p in wanted)
    if not keys:
        return []
    codes = prints.codes(ours, comparison.arch, ours.members, keys)
    mine = {_place(c.kernel): lines for c, lines in _listed(codes, comparison.arch)}
    codes = prints.codes(reference, comparison.reference_arch, reference.members, keys)
    theirs = {_place(c.kernel): lines for c, lines in _listed(codes, comparison.reference_arch)}
    lines: list[str] = []
    for pair in wanted:
        lines += ["", f"{pair.status}: {brief(pair.name, 200)}" + (f" ({', '.join(pair.why)})" if pair.why else "")]
        left = theirs.get(_place(pair.reference), []) if pair.reference else []
        right = mine.get(_place(pair.ours), []) if pair.ours else []
        if left == right:
            lines += [f"  {i * INSTRUCTION_BYTES:#06x}  {text}" for i, text in enumerate(right)]
        else:
            lines += difflib.unified_diff(left, right, "reference", "ours", lineterm="", n=context)
    return lines
