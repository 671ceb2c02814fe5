"""Takes the fingerprint of every kernel of a wheel, library or object file, for one architecture.

A fingerprint holds everything that decides what a launch of the kernel executes: the code, the relocations in it,
its own constant banks, what it refers to through the module's table of addresses, and the resources it is launched
with. Two kernels whose fingerprints are equal do the same. Debug information, notes and the order of sections are
left out on purpose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from sm120_wheels.arch import Arch
from sm120_wheels.elf import Buffer, Elf, Section
from sm120_wheels.prove import fatbin, inputs
from sm120_wheels.prove.addresses import References, length_without_padding, read_references, uses_table
from sm120_wheels.prove.cubin import Cubin, Kernel
from sm120_wheels.prove.names import normalise
from sm120_wheels.prove.sass import readable_archs


@dataclass(frozen=True, kw_only=True)
class Print:
    """One kernel, as far as it matters for comparing it."""

    name: str
    key: str
    """The name without what differs between builds (see :mod:`names`)."""
    library: str
    unit: int
    """Which fat binary of the library it is in."""
    bytes: int
    instructions: int
    """Without the NOPs that fill up the end."""
    code: str
    """sha256 of the machine code."""
    relocations: str
    constants: str
    references: References
    needs: tuple[tuple[str, int], ...]
    compiler: str

    @property
    def whole(self) -> tuple[object, ...]:
        """Equal for kernels that do the same."""
        return (self.code, self.relocations, self.constants, self.references, self.needs)


@dataclass(frozen=True, kw_only=True)
class Code:
    """A kernel's code and what is needed to show it."""

    kernel: Print
    text: bytes
    table: tuple[tuple[int, str], ...]
    """The module's table of addresses: offset -> what lies there."""


def take(
    subject: inputs.Subject, arch: Arch, members: Sequence[inputs.Member], *, workers: int = 0
) -> tuple[list[Print], list[str]]:
    """The fingerprints of the kernels for an architecture, and every architecture that there is machine code for."""
    jobs = [(subject, member) for member in members]
    prints: list[Print] = []
    archs: set[str] = set()
    for found, seen in inputs.read_members(jobs, partial(_take, arch=arch), workers=workers):
        prints += found
        archs |= seen
    return prints, sorted(archs)


def codes(subject: inputs.Subject, arch: Arch, members: Iterable[inputs.Member], keys: frozenset[str]) -> list[Code]:
    """The code of the kernels with these keys."""
    jobs = [(subject, member) for member in members]
    return [c for found in inputs.read_members(jobs, partial(_codes, arch=arch, keys=keys), workers=1) for c in found]


def _take(subject: inputs.Subject, member: inputs.Member, *, arch: Arch) -> tuple[list[Print], set[str]]:
    seen: set[str] = set()
    with inputs.mapped(subject, member) as (buffer, _):
        cubins = list(_cubins(member, buffer, inputs.place(subject, member), arch, seen))
        return [p for p, _, _ in _prints(member, cubins, arch)], seen


def _codes(subject: inputs.Subject, member: inputs.Member, *, arch: Arch, keys: frozenset[str]) -> list[Code]:
    with inputs.mapped(subject, member) as (buffer, _):
        cubins = list(_cubins(member, buffer, inputs.place(subject, member), arch, set()))
        return [
            Code(
                kernel=p,
                text=bytes(kernel.code),
                table=tuple((at, _symbol(cubin, s.index)) for at, s in sorted(cubin.addresses.items())),
            )
            for p, cubin, kernel in _prints(member, cubins, arch, keys)
        ]


def _cubins(
    member: inputs.Member, buffer: Buffer, where: str, arch: Arch, seen: set[str]
) -> Iterable[tuple[int, Cubin]]:
    if member.kind == "ptx":
        return
    if member.kind == "cubin":
        cubin = Cubin(buffer, where)
        seen.add(cubin.arch.sm)
        if cubin.arch == arch:
            yield 0, cubin
        return
    if member.kind == "fatbin":
        entries = list(fatbin.entries(buffer, 0, member.bytes, where=where))
    else:
        entries = fatbin.entries_of_elf(Elf(buffer, where))
    code = [e for e in entries if e.kind == "sass"]
    only_linkable = all(e.linkable for e in code)  # an object file with relocatable code: compare what will be linked
    for entry in code:
        if not entry.linkable or only_linkable:
            seen.add(entry.arch.sm)
            if entry.arch == arch:
                yield entry.container, Cubin(entry.payload(buffer, where), where)


def _prints(
    member: inputs.Member, cubins: Sequence[tuple[int, Cubin]], arch: Arch, keys: frozenset[str] | None = None
) -> list[tuple[Print, Cubin, Kernel]]:
    work = [
        (unit, cubin, kernel, key)
        for unit, cubin in cubins
        for kernel in cubin.kernels
        for key in [normalise(kernel.name)]
        if keys is None or key in keys
    ]
    tabled = [i for i, (_, cubin, kernel, _) in enumerate(work) if cubin.addresses and uses_table(bytes(kernel.code))]
    refers: dict[int, References] = {}
    if tabled and arch.sm in readable_archs():
        read = read_references([(work[i][1], work[i][2]) for i in tabled], arch)
        refers = dict(zip(tabled, read, strict=True))
    nothing = References(functions=(), strings=())
    return [
        (_print(member, unit, cubin, kernel, key, refers.get(i, nothing)), cubin, kernel)
        for i, (unit, cubin, kernel, key) in enumerate(work)
    ]


def _print(member: inputs.Member, unit: int, cubin: Cubin, kernel: Kernel, key: str, refers: References) -> Print:
    code = bytes(kernel.code)
    return Print(
        name=kernel.name,
        key=key,
        library=member.name,
        unit=unit,
        bytes=len(code),
        instructions=length_without_padding(code),
        code=hashlib.sha256(code).hexdigest(),
        relocations=_digest(_relocations(cubin, f".text.{kernel.name}")),
        constants=_digest(
            part for name, section in cubin.sections_of(kernel) for part in _constants(cubin, name, section)
        ),
        references=References(functions=tuple(map(normalise, refers.functions)), strings=refers.strings),
        needs=tuple(sorted(cubin.needs(kernel).items())),
        compiler=cubin.compiler,
    )


def _constants(cubin: Cubin, name: str, section: Section) -> Iterable[str]:
    if name == ".nv.constant0":  # the parameters, filled in at launch: only the size says something
        yield f"{name} {section.size}"
        return
    yield f"{name} {hashlib.sha256(cubin.elf.data(section)).hexdigest()}"
    yield from _relocations(cubin, section.name)


def _relocations(cubin: Cubin, section: str) -> Iterable[str]:
    for r in sorted(cubin.elf.relocations(section), key=lambda r: r.offset):
        yield f"{r.offset} {r.type} {r.addend} {_symbol(cubin, r.symbol)}"


def _symbol(cubin: Cubin, index: int) -> str:
    """What a symbol stands for, comparable between builds: a string's text, or the normalised name."""
    if index >= len(cubin.symbols):
        return "?"
    symbol = cubin.symbols[index]
    text = cubin.string_at(symbol)
    return normalise(symbol.name) if text is None else repr(text)


def _digest(parts: Iterable[str]) -> str:
    text = "\n".join(parts)
    return hashlib.sha256(text.encode()).hexdigest() if text else ""
