"""Reads NVIDIA fat binaries: which machine code and PTX a library carries, for which architecture, packed how.

A host ELF keeps them in ``.nv_fatbin`` (what the CUDA runtime loads) and, with relocatable device code, in
``__nv_relfatbin`` (input of the device linker). A section is a row of containers, normally one for each translation
unit; a container is a header followed by entries, each with its own header.

NVIDIA does not document the format. The facts below come from public reverse engineering (the projects
cuda-fatbin-decompression and nvopen-tools) and were checked by compiling the same source for 14 targets and five
``--compress-mode`` values with nvcc 13.0 and comparing with cuobjdump; the tests repeat that.

    container  u32 magic 0xBA55ED50, u16 version, u16 header size, u64 size of all entries
    entry      u16 kind, u16 version, u32 header size, u64 payload size (padded to 8),
               u32 stored size if compressed, u32, u16 minor, u16 major, u32 SM number,
               u32, u32, u64 flags, u64, u64 size once unpacked (0 if not compressed)
    kind       1 PTX, 2 machine code (an ELF), 8 link-time-optimisation input
    flags      0x2000 LZ4 block, 0x8000 Zstandard frame, 0x100000 "a" target, 0x200000 "f" target
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import lz4.block
import zstandard

from sm120_wheels.arch import Arch
from sm120_wheels.elf import Buffer, Elf
from sm120_wheels.errors import WheelInvalidError

MAGIC = 0xBA55ED50
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")

#: Host sections that hold containers: what runs as it is, and what only a device linker reads.
RUN_SECTION = ".nv_fatbin"
LINK_SECTION = "__nv_relfatbin"

_FLAG_LZ4 = 0x2000
_FLAG_ZSTD = 0x8000
_FLAG_ARCH_SPECIFIC = 0x100000
_FLAG_FAMILY = 0x200000

#: No cubin or PTX comes near this once unpacked (the largest seen has 40 MB); a header that claims more is damaged.
MAX_UNPACKED_BYTES = 1 << 30

Kind = Literal["sass", "ptx", "lto", "other"]
Compression = Literal["none", "lz4", "zstd"]
_KINDS: dict[int, Kind] = {1: "ptx", 2: "sass", 8: "lto"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cubin or PTX text inside a container."""

    kind: Kind
    arch: Arch
    container: int
    """Which container of the file it is in, counted from 0."""
    linkable: bool
    """From ``__nv_relfatbin``: only a device linker reads it, the runtime never loads it."""
    offset: int
    """Where its payload starts, in bytes from the start of the file."""
    header_bytes: int
    payload_bytes: int
    """Bytes in the file, padding included."""
    stored_bytes: int
    unpacked_bytes: int
    compression: Compression

    @property
    def bytes_in_file(self) -> int:
        """Header and payload: what the file would lose without this entry."""
        return self.header_bytes + self.payload_bytes

    @property
    def target(self) -> str:
        """``sm_120a`` for machine code, ``compute_120a`` for PTX."""
        return self.arch.sm if self.kind != "ptx" else f"compute_{self.arch.number}"

    def payload(self, buffer: Buffer, where: str) -> bytes | memoryview:
        """The cubin or PTX, unpacked. Raises :class:`WheelInvalidError` where the packed bytes are damaged."""
        stored = memoryview(buffer)[self.offset : self.offset + self.stored_bytes]
        if self.compression == "none":
            return stored
        try:
            if self.compression == "lz4":
                return bytes(lz4.block.decompress(bytes(stored), uncompressed_size=self.unpacked_bytes))
            return zstandard.ZstdDecompressor().decompress(bytes(stored), max_output_size=self.unpacked_bytes)
        except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError, MemoryError) as exc:
            raise _damaged(where, f"the {self.target} code at byte {self.offset} cannot be unpacked: {exc}") from exc


def _damaged(where: str, why: str) -> WheelInvalidError:
    return WheelInvalidError(
        "GPU code in a binary is damaged", where=where, why=why, hint="fetch or build the file again"
    )


def entries_of_elf(elf: Elf) -> list[Entry]:
    """Every entry of a host ELF (.so or .o), containers numbered through all its sections."""
    found: list[Entry] = []
    for section in elf.sections:
        if section.name in (RUN_SECTION, LINK_SECTION) and section.size:
            elf.data(section)  # checks that it lies inside the file
            first = found[-1].container + 1 if found else 0
            found += entries(
                elf.view,
                section.offset,
                section.offset + section.size,
                where=elf.where,
                linkable=section.name == LINK_SECTION,
                first_container=first,
            )
    return found


def entries(
    buffer: Buffer, start: int, end: int, *, where: str, linkable: bool = False, first_container: int = 0
) -> Iterator[Entry]:
    """The entries of the containers between two bytes of a buffer."""
    view = memoryview(buffer)
    at, number = start, first_container
    while at + _CONTAINER.size <= end:
        magic, _, header, size = _CONTAINER.unpack_from(view, at)
        if magic != MAGIC:
            if any(view[at : at + 8]):
                raise _damaged(where, f"byte {at} should start a container of GPU code, and does not")
            at += 8  # padding between the contributions of two objects
            continue
        stop = at + header + size
        if header < _CONTAINER.size or stop > end:
            raise _damaged(where, f"the container at byte {at} claims {size} bytes, more than there are")
        yield from _container(view, at + header, stop, number, linkable, where)
        at, number = stop, number + 1


def _container(view: memoryview, at: int, stop: int, number: int, linkable: bool, where: str) -> Iterator[Entry]:
    while at < stop:
        if at + _ENTRY.size > stop:
            raise _damaged(where, f"an entry of GPU code at byte {at} is cut short")
        kind, _, header, payload, stored, _, _, _, sm, _, _, flags, _, unpacked = _ENTRY.unpack_from(view, at)
        if header < _ENTRY.size or at + header + payload > stop or stored > payload:
            raise _damaged(where, f"the entry at byte {at} claims more bytes than its container has")
        compression: Compression = "zstd" if flags & _FLAG_ZSTD else "lz4" if flags & _FLAG_LZ4 else "none"
        if compression != "none" and unpacked > MAX_UNPACKED_BYTES:
            raise _damaged(where, f"the entry at byte {at} claims to unpack to {unpacked} bytes")
        suffix: Literal["", "a", "f"] = "a" if flags & _FLAG_ARCH_SPECIFIC else "f" if flags & _FLAG_FAMILY else ""
        yield Entry(
            kind=_KINDS.get(kind, "other"),
            arch=Arch(sm // 10, sm % 10, suffix),
            container=number,
            linkable=linkable,
            offset=at + header,
            header_bytes=header,
            payload_bytes=payload,
            stored_bytes=stored if compression != "none" else payload,
            unpacked_bytes=unpacked if compression != "none" else payload,
            compression=compression,
        )
        at += header + payload
