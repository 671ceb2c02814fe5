"""What the dynamic linker will read of a library: NEEDED, RPATH, symbol versions, Python init functions.

Read through the program headers where there are any, as the linker does, so that a fully stripped library (even one
without section headers) tells the same. GPU code inside it is not looked at here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.common.utils import parse_cstring_from_stream, struct_parse
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

from sm120_wheels.errors import WheelInvalidError

#: ELF machines as platform tags name them. EM_CUDA (cubins) is left out on purpose: those are data.
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_EM_CUDA = 190
_CUT = "its headers describe {} bytes, the file has {}: it was cut short"


@dataclass(frozen=True, kw_only=True)
class Library:
    """The dynamic section of one shared object or program."""

    member: str
    """Its name in the wheel."""
    path: Path
    """Where it was unpacked to."""
    machine: str
    """``x86_64`` or ``aarch64``; else ELF's own name."""
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

    @property
    def filename(self) -> str:
        return self.member.rpartition("/")[2]


def is_host_elf(head: bytes) -> bool:
    """Whether a file that starts with these (at least 20) bytes is host code: an ELF file, and not a cubin."""
    return len(head) >= 20 and head[:4] == b"\x7fELF" and int(struct.unpack_from("<H", head, 18)[0]) != _EM_CUDA


def read_library(path: Path, *, member: str = "") -> Library | None:
    """Read a file's dynamic section; None where it has none (an object file, a static program).

    Raises :class:`WheelInvalidError` naming ``member`` for a file that is cut short or garbled.
    """
    member = member or path.name
    try:
        with path.open("rb") as stream:
            _check_end(stream.read(64), path.stat().st_size)
            elf = ELFFile(stream)
            _check_segments(elf, path.stat().st_size)
            segment = next((s for s in elf.iter_segments() if isinstance(s, DynamicSegment)), None)
            if segment is None:
                return None
            return _library(elf, segment, path, member)
    except (ELFError, ValueError, KeyError, IndexError, AttributeError, TypeError, struct.error, OSError) as exc:
        # pyelftools raises whatever the garbled bytes lead it to; all of it means the same to a user
        raise WheelInvalidError(
            f"{member} is not a whole ELF file",
            where=str(path),
            why=f"{type(exc).__name__}: {exc}",
            hint="the file was damaged before it was packed: build or download the wheel again",
        ) from exc


def _check_end(head: bytes, size: int) -> None:
    """Whether the file reaches to the end of its section headers, the last thing in it as linkers write it."""
    if len(head) == 64 and head[4] == 2:  # ELFCLASS64; the other class is left to pyelftools
        order = "<" if head[5] == 1 else ">"
        (offset,) = struct.unpack_from(f"{order}Q", head, 0x28)
        entry_size, count = struct.unpack_from(f"{order}HH", head, 0x3A)
        if offset and offset + entry_size * count > size:
            raise ValueError(_CUT.format(offset + entry_size * count, size))


def _check_segments(elf: ELFFile, size: int) -> None:
    end = max((s["p_offset"] + s["p_filesz"] for s in elf.iter_segments()), default=0)
    if end > size:
        raise ValueError(_CUT.format(end, size))


def _library(elf: ELFFile, segment: DynamicSegment, path: Path, member: str) -> Library:
    soname, needed, rpath = "", [], []
    tags: dict[str, int] = {}
    tag: Any
    for tag in segment.iter_tags():
        kind = tag.entry.d_tag
        if kind == "DT_NEEDED":
            needed.append(str(tag.needed))
        elif kind == "DT_SONAME":
            soname = str(tag.soname)
        elif kind in ("DT_RPATH", "DT_RUNPATH"):
            rpath += str(tag.rpath if kind == "DT_RPATH" else tag.runpath).split(":")
        elif isinstance(kind, str):
            tags[kind] = int(tag.entry.d_val)
    init, undefined = [], set()
    for name, defined, weak in _symbols(elf, segment):
        if defined and name.startswith("PyInit_"):
            init.append(name)
        elif name and not defined and not weak:
            undefined.add(name)
    return Library(
        member=member,
        path=path,
        machine=_MACHINES.get(str(elf["e_machine"]), str(elf["e_machine"])),
        soname=soname,
        needed=tuple(needed),
        rpath=tuple(rpath),
        versions=_versions(elf, segment, tags),
        init_functions=tuple(sorted(set(init))),
        undefined=frozenset(undefined),
    )


def _symbols(elf: ELFFile, segment: DynamicSegment) -> Iterator[tuple[str, bool, bool]]:
    """(name, defined, weak) of .dynsym: its section where section headers are left, else what the dynamic segment's
    hash table covers.

    The section is walked here and not by pyelftools: a torch library has 200,000 symbols, which takes that 17 s.
    """
    section = elf.get_section_by_name(".dynsym")
    if section is None:
        for symbol in segment.iter_symbols():
            yield str(symbol.name), symbol["st_shndx"] != "SHN_UNDEF", symbol["st_info"]["bind"] == "STB_WEAK"
        return
    names: bytes = elf.get_section(section["sh_link"]).data()
    order = "<" if elf.little_endian else ">"
    layout = f"{order}IBBHQQ" if elf.elfclass == 64 else f"{order}IIIBBH"
    for entry in struct.iter_unpack(layout, section.data()):
        info, where = (entry[1], entry[3]) if elf.elfclass == 64 else (entry[3], entry[5])
        name = names[entry[0] : names.index(b"\0", entry[0])].decode()
        yield name, where != 0, info >> 4 == 2


def _versions(elf: ELFFile, segment: DynamicSegment, tags: dict[str, int]) -> dict[str, frozenset[str]]:
    """The version needs: two nested linked lists, found by DT_VERNEED rather than by a section's name."""
    if "DT_VERNEED" not in tags:
        return {}
    found: dict[str, set[str]] = {}
    names = _file_offset(elf, tags["DT_STRTAB"])
    need_at = _file_offset(elf, tags["DT_VERNEED"])
    for _ in range(tags.get("DT_VERNEEDNUM", 0)):
        need = struct_parse(elf.structs.Elf_Verneed, elf.stream, need_at)
        library = _string(elf, names + need["vn_file"])
        versions = found.setdefault(library, set())
        version_at = need_at + need["vn_aux"]
        for _ in range(need["vn_cnt"]):
            version = struct_parse(elf.structs.Elf_Vernaux, elf.stream, version_at)
            versions.add(_string(elf, names + version["vna_name"]))
            version_at += version["vna_next"]
            if not version["vna_next"]:
                break
        need_at += need["vn_next"]
        if not need["vn_next"]:  # the count may be garbage
            break
    return {library: frozenset(versions) for library, versions in found.items()}


def _file_offset(elf: ELFFile, address: int) -> int:
    for offset in elf.address_offsets(address):
        return int(offset)
    raise ValueError(f"no segment holds address {address:#x}")


def _string(elf: ELFFile, offset: int) -> str:
    text = parse_cstring_from_stream(elf.stream, offset)
    if text is None:
        raise ValueError("a name in the string table has no end")
    return text.decode()
