"""What the dynamic linker will read of a library: NEEDED, RPATH, symbol versions, Python init functions.

Read through the program headers where there are any, as the linker does, so that a fully stripped library (even one
without section headers) tells the same. GPU code inside it is not looked at here; the ELF format is
:mod:`sm120_wheels.elf`'s.

Formats: System V ABI, chapter 5; the version needs and DT_GNU_HASH as in the Linux Standard Base, Core specification.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels.elf import EM_CUDA, MAGIC, PT_DYNAMIC, SHT_DYNSYM, STB_GLOBAL, STB_WEAK, Elf, Section
from sm120_wheels.errors import WheelInvalidError

#: ELF machines as platform tags name them.
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64le", 22: "s390x"}

_DYNAMIC = struct.Struct("<qQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NEED = struct.Struct("<HHIII")
_NEED_VERSION = struct.Struct("<IHHII")
_NULL, _NEEDED, _HASH, _STRTAB, _SYMTAB, _SONAME, _RPATH, _RUNPATH = 0, 1, 4, 5, 6, 14, 15, 29
_GNU_HASH, _VERNEED, _VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFFE, 0x6FFFFFFF


@dataclass(frozen=True, kw_only=True)
class Library:
    """The dynamic section of one shared object or program."""

    member: str
    """Its name in the wheel."""
    path: Path
    """Where it was unpacked to."""
    machine: str
    """``x86_64`` or another that platform tags name; else ``ELF machine N``."""
    soname: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    """The entries of DT_RPATH and DT_RUNPATH."""
    versions: dict[str, frozenset[str]]
    """Library to symbol versions asked of it: ``{"libc.so.6": {"GLIBC_2.34"}}``."""
    init_functions: tuple[str, ...]
    """The ``PyInit_*`` functions it exports: empty for what is not a Python extension."""
    undefined: frozenset[str]
    """Symbols that must come from elsewhere (weak ones left out)."""
    python_symbols: frozenset[str]
    """Of an extension: the symbols of Python's C API that it asks for, or that are inlined in it and not local."""

    @property
    def filename(self) -> str:
        return self.member.rpartition("/")[2]


def is_host_elf(head: bytes) -> bool:
    """Whether a file that starts with these (at least 20) bytes is host code: an ELF file, and not a cubin."""
    return len(head) >= 20 and head[:4] == MAGIC and int(struct.unpack_from("<H", head, 18)[0]) != EM_CUDA


def read_library(path: Path, *, member: str = "", where: str = "") -> Library | None:
    """Read a file's dynamic section; None where it has none (an object file, a static program).

    Raises :class:`WheelInvalidError` naming ``member`` for a file that is cut short or garbled. ``where`` says where it
    came from, if that is not ``path``.
    """
    member, where = member or path.name, where or str(path)
    try:
        with path.open("rb") as stream:
            buffer = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return library_of(Elf(buffer, str(path)), path, member=member)
    except WheelInvalidError as exc:
        raise _not_whole(member, where, exc.why) from exc
    except (ValueError, IndexError, OverflowError, struct.error, OSError) as exc:
        # whatever the garbled bytes lead to; all of it means the same to a user
        raise _not_whole(member, where, f"{type(exc).__name__}: {exc}") from exc


def _not_whole(member: str, where: str, why: str) -> WheelInvalidError:
    return WheelInvalidError(
        f"{member} is not a whole ELF file",
        where=where,
        why=why,
        hint="the file was damaged before it was packed: build or download the wheel again",
    )


def library_of(elf: Elf, path: Path, *, member: str) -> Library | None:
    """The same of a file that is open already. Raises besides what garbled bytes lead to (:class:`ValueError`, …)."""
    elf.check_whole()
    segment = next((s for s in elf.segments if s.type == PT_DYNAMIC), None)
    if segment is None:
        return None
    tags = list(_tags(elf.view[segment.offset : segment.offset + segment.size]))
    last = dict(tags)
    strings = elf.at_address(last[_STRTAB]) if _STRTAB in last else memoryview(b"")
    init: set[str] = set()
    undefined: set[str] = set()
    python: set[str] = set()
    table, names = _dynamic_symbols(elf, last, bytes(strings))
    for start, info, _, where, _, _ in _SYMBOL.iter_unpack(table):
        name = names[start : names.index(b"\0", start)].decode()
        if where and name.startswith("PyInit_"):
            init.add(name)
        elif name and not where and info >> 4 != STB_WEAK:
            undefined.add(name)
    if init:
        python = _python_symbols(table, names)
        symtab = elf.section(".symtab")  # code of Python that was inlined shows up here only
        if symtab is not None:
            python |= _python_symbols(*_table_of(elf, symtab))

    def named(*kinds: int) -> list[str]:
        return [_string(strings, value) for kind, value in tags if kind in kinds]

    return Library(
        member=member,
        path=path,
        machine=_MACHINES.get(elf.machine, f"ELF machine {elf.machine}"),
        soname=next(iter(named(_SONAME)), ""),
        needed=tuple(named(_NEEDED)),
        rpath=tuple(entry for paths in named(_RPATH, _RUNPATH) for entry in paths.split(":")),
        versions=_versions(elf, last, strings),
        init_functions=tuple(sorted(init)),
        undefined=frozenset(undefined),
        python_symbols=frozenset(python),
    )


def _tags(dynamic: memoryview) -> Iterator[tuple[int, int]]:
    for tag, value in _DYNAMIC.iter_unpack(dynamic[: len(dynamic) // _DYNAMIC.size * _DYNAMIC.size]):
        if tag == _NULL:
            return
        yield tag, value


def _dynamic_symbols(elf: Elf, tags: dict[int, int], strings: bytes) -> tuple[memoryview, bytes]:
    """The table of dynamic symbols and their names: their section's where section headers are left, else as many as
    the hash table covers."""
    section = next((s for s in elf.sections if s.type == SHT_DYNSYM), None)
    if section is not None:
        return _table_of(elf, section)
    if _SYMTAB in tags:
        return elf.at_address(tags[_SYMTAB])[: _SYMBOL.size * _symbol_count(elf, tags)], strings
    return elf.view[:0], b""


def _table_of(elf: Elf, section: Section) -> tuple[memoryview, bytes]:
    table = elf.data(section)
    return table[: len(table) // _SYMBOL.size * _SYMBOL.size], bytes(elf.data(elf.sections[section.link]))


def _python_symbols(table: memoryview, names: bytes) -> set[str]:
    """What a table of symbols has of Python's C API, local symbols and the module's own entry left out."""
    return {
        names[start : names.index(b"\0", start)].decode()
        for start, info, _, _, _, _ in _SYMBOL.iter_unpack(table)
        if names.startswith((b"Py", b"_Py"), start)
        and not names.startswith(b"PyInit_", start)
        and info >> 4 in (STB_GLOBAL, STB_WEAK)
    }


def _symbol_count(elf: Elf, tags: dict[int, int]) -> int:
    """How many dynamic symbols there are, which only the hash tables tell: DT_HASH has a chain for each; the last in
    DT_GNU_HASH is found by walking the chain of its highest bucket."""
    if _HASH in tags:
        return int(struct.unpack_from("<II", elf.at_address(tags[_HASH]))[1])
    if _GNU_HASH not in tags:
        return 0
    table = elf.at_address(tags[_GNU_HASH])
    buckets, first, bloom, _ = struct.unpack_from("<IIII", table)
    start = 16 + 8 * bloom
    highest = max((n for (n,) in struct.iter_unpack("<I", table[start : start + 4 * buckets])), default=0)
    if highest < first:
        return int(first)
    at = start + 4 * buckets + 4 * (highest - first)
    while not struct.unpack_from("<I", table, at)[0] & 1:  # the lowest bit ends a chain
        highest, at = highest + 1, at + 4
    return int(highest) + 1


def _versions(elf: Elf, tags: dict[int, int], strings: memoryview) -> dict[str, frozenset[str]]:
    """The version needs: two nested linked lists, found by DT_VERNEED rather than by a section's name."""
    found: dict[str, set[str]] = {}
    if _VERNEED not in tags:
        return {}
    needs = elf.at_address(tags[_VERNEED])
    at = 0
    for _ in range(tags.get(_VERNEEDNUM, 0)):
        _, count, file, aux, following = _NEED.unpack_from(needs, at)
        versions = found.setdefault(_string(strings, file), set())
        version_at = at + aux
        for _ in range(count):
            _, _, _, name, step = _NEED_VERSION.unpack_from(needs, version_at)
            versions.add(_string(strings, name))
            version_at += step
            if not step:
                break
        at += following
        if not following:  # the count may be garbage
            break
    return {library: frozenset(versions) for library, versions in found.items()}


def _string(strings: memoryview, offset: int) -> str:
    """A name of the string table. Raises :class:`ValueError` where it has no end."""
    end = offset
    while strings[end]:
        end += 1
    return bytes(strings[offset:end]).decode()
