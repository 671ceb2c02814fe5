"""Reads one cubin: its exact target, its kernels, what each needs, and the compiler that made it.

A cubin is an ELF file of machine 190. Each kernel is a function symbol marked ``STO_CUDA_ENTRY`` with its own
``.text.<name>`` section. NVIDIA does not document the details; those below were read off cuobjdump's output for
cubins that nvcc 13.0 made for 14 targets, and the tests compare with cuobjdump again.

Target. The SM number is in the ELF header flags: bits 0-7 up to ABI version 7, bits 8-15 from version 8 (CUDA 12.8 and
12.9 for sm_100 and later, CUDA 13 for all). The ``a`` of ``sm_120a`` is header flag 0x800 in the old layout. In the new
one CUDA 12 sets header flag 8; with CUDA 13 the header flags of sm_120, sm_120a and sm_120f are equal, and it is the
attribute CUDA_ACCELERATOR_TARGET (9) of the section ``.nv.compat``. The ``f`` is in neither: an sm_120f cubin differs
from an sm_120 one only in the options that ptxas noted in ``.note.nv.tkinfo`` and in the flags of the fat binary's
entry (see :mod:`sm120_wheels.prove.fatbin`), and cuobjdump prints ``sm_120`` for it. A GPU loads both alike.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sm120_wheels.arch import Arch
from sm120_wheels.elf import EM_CUDA, Buffer, Elf, Section, Symbol
from sm120_wheels.errors import WheelInvalidError

STT_FUNC, STT_OBJECT = 2, 1
STO_CUDA_ENTRY = 0x10

_NEW_ABI = 8
_OLD_FLAG_ARCH_SPECIFIC, _FLAG_ARCH_SPECIFIC = 0x800, 0x8
_COMPAT_ACCELERATOR_TARGET = 9

#: Attributes of .nv.info that say what a kernel needs (names as cuobjdump prints them: EIATTR_…).
_ATTRIBUTES = {0x2F: "registers", 0x11: "frame_bytes", 0x12: "min_stack_bytes"}
_MAX_THREADS, _PARAM_BYTES, _EXTERNS = 0x05, 0x19, 0x0F


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel of a cubin."""

    name: str
    """The mangled name."""
    code: memoryview
    """Its machine code, padding included, as it lies in the file: before relocation."""
    symbol: Symbol


class Cubin:
    """One cubin in a buffer. ``where`` names it in errors."""

    def __init__(self, buffer: Buffer, where: str) -> None:
        self.elf = Elf(buffer, where)
        self.where = where
        if self.elf.machine != EM_CUDA:
            raise WheelInvalidError(
                "not GPU machine code", where=where, why=f"ELF machine {self.elf.machine} instead of {EM_CUDA}"
            )

    @cached_property
    def arch(self) -> Arch:
        """The target, ``f`` included where the compiler's note tells."""
        flags = self.elf.flags
        new = self.elf.abi_version >= _NEW_ABI
        number = flags >> 8 & 0xFF if new else flags & 0xFF
        specific = bool(flags & (_FLAG_ARCH_SPECIFIC if new else _OLD_FLAG_ARCH_SPECIFIC))
        specific = specific or (new and _compat(self.elf, _COMPAT_ACCELERATOR_TARGET) == 1)
        suffix: Literal["", "a", "f"] = "a" if specific else ""
        if not suffix and re.search(rf"-arch[ =]sm_{number}f\b", self.options):
            suffix = "f"
        return Arch(number // 10, number % 10, suffix)

    @cached_property
    def _toolkit_note(self) -> list[str]:
        note = bytes(self.elf.content(".note.nv.tkinfo"))
        return [text.decode("ascii") for text in re.findall(rb"[\x20-\x7e]{5,}", note)]

    @property
    def compiler(self) -> str:
        """``13.0.88``: the version of ptxas, or nothing where an old compiler left no note."""
        for text in self._toolkit_note:
            if match := re.search(r"\bV(\d+\.\d+\.\d+)", text):
                return match[1]
        return ""

    @property
    def options(self) -> str:
        """The options that ptxas noted, e.g. ``-arch sm_120f -m 64``."""
        return next((t.strip() for t in self._toolkit_note if t.lstrip().startswith("-")), "")

    @cached_property
    def kernels(self) -> list[Kernel]:
        found = []
        for symbol in self._kernel_symbols():
            if symbol.section < len(self.elf.sections):
                section = self.elf.sections[symbol.section]
                found.append(Kernel(name=symbol.name, code=self.elf.data(section), symbol=symbol))
        return found

    def kernel_names(self) -> tuple[str, ...]:
        """The kernels' names alone: much cheaper where the code is not looked at."""
        return tuple(s.name for s in self._kernel_symbols())

    def _kernel_symbols(self) -> list[Symbol]:
        marked = self.elf.symbols(other_bits=STO_CUDA_ENTRY)
        return [s for s in marked if s.type == STT_FUNC and s.section != 0]

    @cached_property
    def symbols(self) -> list[Symbol]:
        return self.elf.symbols()

    @cached_property
    def _info(self) -> dict[int, dict[str, int]]:
        table: dict[int, dict[str, int]] = {}
        for attribute, value in _attributes(self.elf.content(".nv.info")):
            if attribute in _ATTRIBUTES and len(value) >= 8:
                symbol, number = struct.unpack_from("<II", value)
                table.setdefault(symbol, {})[_ATTRIBUTES[attribute]] = number
        return table

    def needs(self, kernel: Kernel) -> dict[str, int]:
        """What a launch of the kernel takes: registers, shared and constant bytes, the limits it was compiled with."""
        needs = dict(self._info.get(kernel.symbol.index, {}))
        text = self.elf.sections[kernel.symbol.section]
        if "registers" not in needs and self.elf.abi_version < _NEW_ABI:
            needs["registers"] = text.info >> 24
        for attribute, value in _attributes(self.elf.content(f".nv.info.{kernel.name}")):
            if attribute == _PARAM_BYTES:
                needs["param_bytes"] = int.from_bytes(value, "little")
            elif attribute == _MAX_THREADS and len(value) == 12:  # x, y and z of __launch_bounds__
                needs["max_threads"] = math.prod(struct.unpack("<III", value))
        for prefix, what in ((".nv.shared.", "shared_bytes"), (".nv.constant0.", "constant_bytes")):
            section = self.elf.section(prefix + kernel.name)
            if section is not None:
                needs[what] = section.size
        return needs

    def externs(self, kernel: Kernel) -> set[str]:
        """Functions of the driver that the kernel may call, as the compiler listed them: ``vprintf``, …"""
        names: set[str] = set()
        for attribute, value in _attributes(self.elf.content(f".nv.info.{kernel.name}")):
            if attribute == _EXTERNS:
                for (index,) in struct.iter_unpack("<I", value[: len(value) // 4 * 4]):
                    if index < len(self.symbols):
                        names.add(self.symbols[index].name)
        return names

    def sections_of(self, kernel: Kernel) -> Iterator[tuple[str, Section]]:
        """Constant banks and the like that belong to one kernel: (``.nv.constant2``, section)."""
        for section in self.elf.sections:
            if section.name.endswith("." + kernel.name) and section.name.startswith(".nv.constant"):
                yield section.name[: -len(kernel.name) - 1], section

    @cached_property
    def addresses(self) -> dict[int, Symbol]:
        """The module's table of addresses (constant bank 4): offset in bytes -> the symbol whose address lies there."""
        return {
            r.offset: self.symbols[r.symbol]
            for r in self.elf.relocations(".nv.constant4")
            if r.symbol < len(self.symbols)
        }

    def string_at(self, symbol: Symbol) -> str | None:
        """The text that a symbol names in ``.nv.global.init`` (where device string literals live), or None."""
        if not 0 < symbol.section < len(self.elf.sections):
            return None
        section = self.elf.sections[symbol.section]
        if section.name != ".nv.global.init" and not section.name.startswith(".nv.global.init."):
            return None
        data = bytes(self.elf.data(section)[symbol.value :])
        text = data[: data.find(b"\0")] if b"\0" in data else data
        return text.decode("utf-8", "replace")


def _attributes(data: memoryview) -> Iterator[tuple[int, bytes]]:
    """The (attribute, value) pairs of a ``.nv.info`` or ``.nv.compat`` section.

    Each starts with a format byte: 1 no value, 2 one byte, 3 two bytes, 4 a size of two bytes and as many bytes.
    """
    at = 0
    while at + 4 <= len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == 4:
            yield attribute, bytes(data[at : at + value])
            at += value + -value % 4
        elif form in (1, 2, 3):
            yield attribute, b"" if form == 1 else bytes([value & 0xFF]) if form == 2 else value.to_bytes(2, "little")
        else:
            return


def _compat(elf: Elf, wanted: int) -> int | None:
    for attribute, value in _attributes(elf.content(".nv.compat")):
        if attribute == wanted and value:
            return value[0]
    return None
