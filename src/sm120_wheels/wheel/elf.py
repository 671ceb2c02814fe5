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
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from sm120_wheels.errors import WheelInvalidError

#: ELF machines as platform tags name them. EM_CUDA (cubins) is left out on purpose: those are data.
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_EM_CUDA = 190


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
            elf = ELFFile(stream)
            _check_whole(elf, path.stat().st_size)
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


def _check_whole(elf: ELFFile, size: int) -> None:
    header = elf.header
    end = header["e_shoff"] + header["e_shnum"] * header["e_shentsize"] if header["e_shoff"] else 0
    for segment in elf.iter_segments():
        end = max(end, segment["p_offset"] + segment["p_filesz"])
    if end > size:
        raise ValueError(f"its headers describe {end} bytes, the file has {size}: it was cut short")


def _library(elf: ELFFile, segment: DynamicSegment, path: Path, member: str) -> Library:
    soname, needed, rpath = "", [], []
    tags: dict[str, int] = {}
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
    for symbol in _symbols(elf, segment):
        name = str(symbol.name)
        if symbol["st_shndx"] == "SHN_UNDEF":
            if name and symbol["st_info"]["bind"] != "STB_WEAK":
                undefined.add(name)
        elif name.startswith("PyInit_"):
            init.append(name)
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


def _symbols(elf: ELFFile, segment: DynamicSegment) -> Iterator[Any]:
    """.dynsym: its section where section headers are left, else what the dynamic segment's hash table covers."""
    section = elf.get_section_by_name(".dynsym")
    yield from (section or segment).iter_symbols()


def _versions(elf: ELFFile, segment: DynamicSegment, tags: dict[str, int]) -> dict[str, frozenset[str]]:
    """The version needs, found by DT_VERNEED rather than by a section's name."""
    if "DT_VERNEED" not in tags:
        return {}
    offset = next(elf.address_offsets(tags["DT_VERNEED"]))
    header = {"sh_offset": offset, "sh_info": tags.get("DT_VERNEEDNUM", 0)}
    names = _DynamicStrings(elf, tags)
    section = GNUVerNeedSection(header, ".gnu.version_r", elf, names)
    found: dict[str, set[str]] = {}
    for need, versions in section.iter_versions():
        found.setdefault(str(need.name), set()).update(str(v.name) for v in versions)
    return {library: frozenset(versions) for library, versions in found.items()}


class _DynamicStrings:
    """DT_STRTAB in the shape that pyelftools' version sections ask strings of."""

    def __init__(self, elf: ELFFile, tags: dict[str, int]) -> None:
        self._stream = elf.stream
        self._offset = next(elf.address_offsets(tags["DT_STRTAB"]))
        self._size = tags["DT_STRSZ"]

    def get_string(self, offset: int) -> str:
        if offset >= self._size:
            raise ValueError("a name lies outside the string table")
        self._stream.seek(self._offset + offset)
        text: bytes = self._stream.read(min(4096, self._size - offset))
        return text.split(b"\0", 1)[0].decode()
