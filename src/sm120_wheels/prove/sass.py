"""Disassembles machine code with NVIDIA's nvdisasm, many kernels in one run.

nvdisasm takes half a second to start, so kernels of one architecture are laid end to end and disassembled as one raw
binary. What a cubin adds to the raw code (relocations, names) is the caller's to bring together. Instructions of
sm_70 and later have 16 bytes; older code is not read.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sm120_wheels.arch import Arch
from sm120_wheels.errors import ToolMissingError
from sm120_wheels.process import run

INSTRUCTION_BYTES = 16

_DISTRIBUTION = "nvidia-cuda-nvdisasm"
_VARIABLE = "SM120_NVDISASM"


@dataclass(frozen=True, kw_only=True)
class Instruction:
    opcode: str
    """With its modifiers: ``LDG.E.64``."""
    operands: str
    predicate: str
    """``@!P0``, or nothing where it is always executed."""

    @property
    def base(self) -> str:
        """The opcode without modifiers: ``LDG``."""
        return self.opcode.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.predicate + ' ' if self.predicate else ''}{self.opcode} {self.operands}".rstrip()


@cache
def nvdisasm() -> Path:
    """The program: ``SM120_NVDISASM``, else the one that came from PyPI, else CUDA_HOME's, else the one on PATH."""
    if named := os.environ.get(_VARIABLE):
        if not Path(named).is_file():
            raise ToolMissingError(f"no nvdisasm at {named}", where=f"environment variable {_VARIABLE}")
        return Path(named)
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    places = [Path(str(f.locate())) for f in files if f.name == "nvdisasm"]
    if home := os.environ.get("CUDA_HOME"):
        places.append(Path(home) / "bin" / "nvdisasm")
    if found := shutil.which("nvdisasm"):
        places.append(Path(found))
    for place in places:
        if place.is_file() and os.access(place, os.X_OK):
            return place
    raise ToolMissingError(
        "nvdisasm is not installed",
        why="reading kernels that may be arch-guard traps, and showing differences, needs NVIDIA's disassembler",
        hint=f"pip install {_DISTRIBUTION}",
    )


@cache
def readable_archs() -> frozenset[str]:
    """The architectures that this nvdisasm knows: ``sm_120a``, …"""
    text = run([nvdisasm(), "--help"]).output
    return frozenset(name.replace("SM", "sm_") for name in re.findall(r"'(SM\d+[af]?)'", text))


def disassemble(codes: Sequence[bytes], arch: Arch) -> list[list[Instruction]]:
    """The instructions of each piece of code, in the order given. Branch targets are relative to each piece.

    Raises :class:`CommandError` where nvdisasm refuses the code.
    """
    if not codes:
        return []
    program = nvdisasm()
    with tempfile.TemporaryDirectory(prefix="sm120-sass-") as folder:
        raw = Path(folder) / "code.bin"
        raw.write_bytes(b"".join(codes))
        answer = run([program, "--no-dataflow", "--emit-json", "--binary", arch.sm.replace("sm_", "SM"), raw])
    listing = json.loads(answer.output)[1][0]["sass-instructions"]
    found: list[list[Instruction]] = []
    at = 0
    for code in codes:
        count = len(code) // INSTRUCTION_BYTES
        found.append([_instruction(entry, at * INSTRUCTION_BYTES) for entry in listing[at : at + count]])
        at += count
    return found


def decode(instructions: Sequence[bytes], arch: Arch) -> list[Instruction]:
    """Single instructions without their surroundings (branch targets mean nothing), each distinct one read once."""
    distinct = list(dict.fromkeys(instructions))
    read = disassemble([b"".join(distinct)], arch)[0] if distinct else []
    table = dict(zip(distinct, read, strict=True))
    return [table[i] for i in instructions]


def _instruction(entry: dict[str, str], base: int) -> Instruction:
    operands = entry.get("operands", "")
    if base and "control-flow" in entry.get("other-attributes", ""):
        operands = re.sub(r"(?<![\[\w])0x[0-9a-f]+$", lambda m: hex(int(m[0], 16) - base), operands)
    return Instruction(opcode=entry["opcode"], operands=operands, predicate=entry.get("predicate", ""))


def target_of(instruction: Instruction) -> int | None:
    """Where a branch or relative call goes, in bytes from the start of its code; None where that is computed."""
    match = re.search(r"(?:^|,)(0x[0-9a-f]+)$", instruction.operands)
    return int(match[1], 16) if match else None
