"""What a kernel refers to by address: outside functions and strings.

A cubin keeps such addresses in a table of its own (constant bank 4), one for the whole translation unit, and the code
loads them by their offset in the table. So the offset means nothing without the table, and the same code may have
another offset in another build. This reads which entries a piece of code uses, with the disassembler.

Only loads whose offset is a constant in the instruction, or was put into a register by an instruction before it, are
followed; that is how ptxas writes them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sm120_wheels.arch import Arch
from sm120_wheels.prove.cubin import Cubin, Kernel
from sm120_wheels.prove.sass import INSTRUCTION_BYTES, Instruction, decode

# Opcode numbers (the low 12 bits of an instruction) of NOP, and of MOV, UMOV, IMAD and HFMA2 with an immediate, for
# sm_75 to sm_121, read off nvdisasm's --hex output. They only choose what is disassembled; the tests compare them
# with nvdisasm.
OP_NOP = 0x918
OP_CONSTANTS = (0x802, 0x882, 0x424, 0x431)

_CONSTANT = re.compile(r"c\[0x4\]\[(U?R\d+|U?RZ)?\+?(-?0x[0-9a-f]+)?\]")
_REGISTER = re.compile(r"^(U?R\d+),")
_IMMEDIATE = re.compile(r"^(U?R\d+),(?:RZ,RZ,)?(0x[0-9a-f]+)$")
_HALVES = re.compile(r"^(R\d+),-RZ,RZ,([^,]+),([^,]+)$")

#: Maps the eighth byte of an instruction to 1 where its low bits are those of constant bank 4.
_BANK_4 = bytes(b & 0x07 == 1 for b in range(256))


@dataclass(frozen=True, kw_only=True)
class References:
    functions: tuple[str, ...]
    """Outside functions (``vprintf``) and variables of the module, in order of first use."""
    strings: tuple[str, ...]
    """String literals, in order of first use."""


def read_references(work: Sequence[tuple[Cubin, Kernel]], arch: Arch) -> list[References]:
    """What each kernel refers to, in the order given; one run of nvdisasm for all."""
    places = [address_loads(bytes(kernel.code)) for _, kernel in work]
    flat = [
        bytes(kernel.code[n * INSTRUCTION_BYTES :][:INSTRUCTION_BYTES])
        for (_, kernel), at in zip(work, places, strict=True)
        for n in at
    ]
    decoded = iter(decode(flat, arch))
    return [
        references(cubin, kernel, [(n, next(decoded)) for n in at])
        for (cubin, kernel), at in zip(work, places, strict=True)
    ]


def uses_table(code: bytes) -> bool:
    """Whether some instruction may load from constant bank 4."""
    return next(_bank_4(code), None) is not None


def _bank_4(code: bytes) -> Iterator[int]:
    marks, upper = code[7::INSTRUCTION_BYTES].translate(_BANK_4), code[6::INSTRUCTION_BYTES]
    at = marks.find(1)
    while at >= 0:
        if upper[at] & 0xC0 == 0:
            yield at
        at = marks.find(1, at + 1)


def address_loads(code: bytes) -> list[int]:
    """Indices of the instructions that may use constant bank 4 or make a constant, in order.

    The bank is in bits 54 to 58 of every instruction that reads one. Instructions that have other things there are
    sorted out by the disassembly that follows.
    """
    found = set(_bank_4(code))
    if not found:
        return []
    for opcode in OP_CONSTANTS:
        found.update(find_opcode(code, opcode))
    return sorted(found)


def find_opcode(code: bytes, opcode: int) -> Iterator[int]:
    """Indices of the instructions with this opcode number."""
    low, high = code[0::INSTRUCTION_BYTES], code[1::INSTRUCTION_BYTES]
    wanted, nibble = opcode & 0xFF, opcode >> 8
    at = low.find(wanted)
    while at >= 0:
        if high[at] & 0xF == nibble:
            yield at
        at = low.find(wanted, at + 1)


def length_without_padding(code: bytes) -> int:
    """How many instructions there are before the NOPs that fill up the end."""
    count = len(code) // INSTRUCTION_BYTES
    while count:
        low, high = code[(count - 1) * INSTRUCTION_BYTES : (count - 1) * INSTRUCTION_BYTES + 2]
        if low != OP_NOP & 0xFF or high & 0xF != OP_NOP >> 8:
            break
        count -= 1
    return count


def references(cubin: Cubin, kernel: Kernel, listing: Iterable[tuple[int, Instruction]]) -> References:
    """What these (index, instruction) of a kernel refer to."""
    functions: dict[str, None] = {}
    strings: dict[str, None] = {}

    def refer(index: int) -> None:
        symbol = cubin.symbols[index]
        text = cubin.string_at(symbol)
        if text is not None:
            strings[text] = None
        else:
            functions[symbol.name] = None

    relocated = {r.offset // INSTRUCTION_BYTES: r.symbol for r in cubin.elf.relocations(f".text.{kernel.name}")}
    known: dict[str, int] = {}
    for i, instruction in listing:
        if i in relocated and relocated[i] < len(cubin.symbols):
            refer(relocated[i])
        for at in table_offsets(instruction, known):
            if symbol := cubin.addresses.get(at):
                refer(symbol.index)
    return References(functions=tuple(functions), strings=tuple(strings))


def table_offsets(instruction: Instruction, known: dict[str, int]) -> list[int]:
    """The offsets in bank 4 that an instruction loads from; keeps ``known`` (register -> constant) up to date."""
    offsets = []
    for register, offset in _CONSTANT.findall(instruction.operands):
        base = known.get(register, -1) if register and not register.endswith("RZ") else 0
        if base >= 0:
            offsets.append(base + int(offset or "0", 16))
    if written := _REGISTER.match(instruction.operands):
        value = _constant(instruction)
        known.pop(written[1], None)
        if value is not None:
            known[written[1]] = value
    return offsets


def _constant(instruction: Instruction) -> int | None:
    """The constant that an instruction puts into its register, for the three ways ptxas writes one."""
    if instruction.predicate:
        return None
    if instruction.base in ("MOV", "UMOV", "IMAD") and (match := _IMMEDIATE.match(instruction.operands)):
        return int(match[2], 16)
    if instruction.base == "HFMA2" and (match := _HALVES.match(instruction.operands)):
        try:  # two half-precision immediates whose bits make the number
            high, low = (struct.unpack("<H", struct.pack("<e", float(part)))[0] for part in match.groups()[1:])
        except (ValueError, OverflowError):
            return None
        return int(high) << 16 | int(low)
    return None
