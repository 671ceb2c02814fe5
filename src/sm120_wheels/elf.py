"""The one reader of ELF files (64-bit, little-endian): segments, sections, symbols, relocations.

Written for buffers (a memory-mapped library of 1.8 GB, a cubin inside it) and for speed: a library of a million
symbols is walked with ``struct.iter_unpack``. Every offset is checked against the buffer first, so a file that was
cut short gives one :class:`WheelInvalidError` and never a traceback. It writes nothing and knows nothing of CUDA
(:mod:`sm120_wheels.prove.cubin`) nor of what the dynamic linker makes of a library (:mod:`sm120_wheels.wheel.library`).

Format: System V ABI, chapters 4 and 5.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property

from sm120_wheels.errors import WheelInvalidError

#: What can be read from: bytes, a memory map, or a window of either.
Buffer = bytes | bytearray | memoryview | mmap.mmap

MAGIC = b"\x7fELF"
EM_CUDA = 190

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_OTHER_AT = 5  # where st_other lies in it
_RELA = struct.Struct("<QQq")
_REL = struct.Struct("<QQ")

SHT_NULL, SHT_RELA, SHT_NOBITS, SHT_REL, SHT_DYNSYM = 0, 4, 8, 9, 11
PT_LOAD, PT_DYNAMIC = 1, 2
STB_GLOBAL, STB_WEAK = 1, 2
_SHN_XINDEX = 0xFFFF


@dataclass(frozen=True, kw_only=True)
class Segment:
    type: int
    offset: int
    address: int
    size: int
    """In the file."""


@dataclass(frozen=True, kw_only=True)
class Section:
    index: int
    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True, kw_only=True)
class Symbol:
    index: int
    name: str
    value: int
    size: int
    type: int
    bind: int
    other: int
    section: int
    """Index of the section it is defined in; 0 means undefined."""


@dataclass(frozen=True, kw_only=True)
class Relocation:
    offset: int
    type: int
    symbol: int
    addend: int


class Elf:
    """One ELF file in a buffer. ``where`` names it in errors."""

    def __init__(self, buffer: Buffer, where: str) -> None:
        self.view = memoryview(buffer)
        self.where = where
        if len(self.view) < _HEADER.size or bytes(self.view[:4]) != MAGIC:
            raise self._damaged("it does not start with an ELF header")
        ident, kind, machine, _, _, phoff, shoff, flags, _, phentsize, phnum, shentsize, shnum, shstrndx = (
            _HEADER.unpack_from(self.view)
        )
        if ident[4] != 2 or ident[5] != 1:
            raise self._damaged("only 64-bit little-endian files are read")
        self.abi_version: int = ident[8]
        self.type: int = kind
        self.machine: int = machine
        self.flags: int = flags
        if phnum and phentsize != _SEGMENT.size:
            raise self._damaged(f"program headers of {phentsize} bytes")
        headers = self._window(phoff, phentsize * phnum, "the program header table")
        self.segments = [
            Segment(type=kind, offset=offset, address=address, size=size)
            for kind, _, offset, address, _, size, _, _ in _SEGMENT.iter_unpack(headers)
        ]
        self._headers, self._names = self._read_sections(shoff, shentsize, shnum, shstrndx)

    def _damaged(self, why: str) -> WheelInvalidError:
        return WheelInvalidError(
            "a binary is damaged or cut short", where=self.where, why=why, hint="fetch or build the file again"
        )

    def _window(self, offset: int, size: int, what: str) -> memoryview:
        if offset < 0 or size < 0 or offset + size > len(self.view):
            raise self._damaged(
                f"{what} lies at bytes {offset} to {offset + size}, but the file ends at {len(self.view)}: "
                "it was cut short"
            )
        return self.view[offset : offset + size]

    def _read_sections(self, offset: int, entry: int, count: int, names_at: int) -> tuple[list[tuple[int, ...]], bytes]:
        """The section headers as they are, and the table of their names."""
        if offset == 0:
            return [], b""
        if entry != _SECTION.size:
            raise self._damaged(f"section headers of {entry} bytes")
        if count == 0 or names_at == _SHN_XINDEX:  # more than 65,279 sections: the true numbers are in the first header
            first = _SECTION.unpack(self._window(offset, entry, "the first section header"))
            count = count or first[5]
            names_at = first[6] if names_at == _SHN_XINDEX else names_at
        raw = list(_SECTION.iter_unpack(self._window(offset, entry * count, "the section header table")))
        if names_at >= len(raw):
            raise self._damaged("the section names are missing")
        return raw, bytes(self._window(raw[names_at][4], raw[names_at][5], "the section names"))

    @cached_property
    def sections(self) -> list[Section]:
        """All sections, in the file's order."""
        return [self._section(i) for i in range(len(self._headers))]

    def _section(self, index: int) -> Section:
        name, kind, flags, _, offset, size, link, info, _, _ = self._headers[index]
        return Section(
            index=index,
            name=_string(self._names, name),
            type=kind,
            flags=flags,
            offset=offset,
            size=size,
            link=link,
            info=info,
        )

    def section(self, name: str) -> Section | None:
        """The first section of that name.

        Found in the headers themselves: a cubin has thousands of sections, and an audit asks for four of them.
        """
        if "sections" in self.__dict__:
            return self._by_name.get(name)
        wanted = name.encode() + b"\0"
        starts = self._names.startswith
        return next((self._section(i) for i, header in enumerate(self._headers) if starts(wanted, header[0])), None)

    @cached_property
    def _by_name(self) -> dict[str, Section]:
        return {s.name: s for s in reversed(self.sections)}

    def data(self, section: Section) -> memoryview:
        """A section's bytes; empty for one that takes no room in the file (.bss)."""
        if section.type == SHT_NOBITS:
            return self.view[:0]
        return self._window(section.offset, section.size, f"section {section.name}")

    def content(self, name: str) -> memoryview:
        """The bytes of the first section of that name, or nothing where there is none."""
        section = self.section(name)
        return self.view[:0] if section is None else self.data(section)

    def check_whole(self) -> None:
        """Whether every segment and section lies inside the file."""
        for segment in self.segments:
            self._window(segment.offset, segment.size, f"a segment of type {segment.type}")
        for section in self.sections:
            if section.type != SHT_NULL:
                self.data(section)

    def at_address(self, address: int) -> memoryview:
        """The file from the byte that is loaded to an address, to the end of that segment."""
        for segment in self.segments:
            if segment.type == PT_LOAD and segment.address <= address < segment.address + segment.size:
                skip = address - segment.address
                return self._window(segment.offset + skip, segment.size - skip, "a segment")
        raise self._damaged(f"no segment holds address {address:#x}")

    def _strings(self, table: Section) -> memoryview:
        if table.link >= len(self._headers):
            raise self._damaged(f"section {table.name} refers to a missing string table")
        return self.data(self._section(table.link))

    def symbols(self, table: str = ".symtab", *, other_bits: int = 0) -> list[Symbol]:
        """The symbols of a table, or those whose ``st_other`` has one of these bits.

        The filter comes before anything is unpacked: a cubin can have a thousand symbols for each kernel.
        """
        section = self.section(table)
        if section is None:
            return []
        # One copy of the tables: slicing bytes is much faster than slicing a memoryview for each name.
        strings = bytes(self._strings(section))
        data = bytes(self.data(section))
        count = len(data) // _SYMBOL.size
        indices: Iterable[int] = range(count)
        if other_bits:
            marks = data[_OTHER_AT : count * _SYMBOL.size : _SYMBOL.size].translate(_marks(other_bits))
            indices = (match.start() for match in re.finditer(b"\1", marks))
        return [_symbol(i, strings, _SYMBOL.unpack_from(data, i * _SYMBOL.size)) for i in indices]

    @cached_property
    def _relocated_by(self) -> dict[str, Section]:
        return {s.name: s for s in self.sections if s.type in (SHT_RELA, SHT_REL)}

    def relocations(self, name: str) -> list[Relocation]:
        """The relocations of the section of that name (its ``.rela`` or ``.rel`` partner), in file order."""
        for prefix, layout in ((".rela", _RELA), (".rel", _REL)):
            section = self._relocated_by.get(prefix + name)
            if section is not None:
                data = self.data(section)
                whole = data[: len(data) // layout.size * layout.size]
                return [
                    Relocation(offset=e[0], type=e[1] & 0xFFFFFFFF, symbol=e[1] >> 32, addend=e[2] if len(e) > 2 else 0)
                    for e in layout.iter_unpack(whole)
                ]
        return []


def _symbol(index: int, strings: bytes, raw: tuple[int, ...]) -> Symbol:
    name, info, other, section, value, size = raw
    return Symbol(
        index=index,
        name=_string(strings, name),
        value=value,
        size=size,
        type=info & 15,
        bind=info >> 4,
        other=other,
        section=section,
    )


@cache
def _marks(bits: int) -> bytes:
    """A translation table: 1 for the bytes that have one of these bits."""
    return bytes(bool(byte & bits) for byte in range(256))


def _string(table: bytes, offset: int) -> str:
    """The NUL-terminated string at an offset of a string table; empty where the offset is outside."""
    end = table.find(b"\0", offset)
    return table[offset : end if end >= 0 else None].decode("utf-8", "replace")
