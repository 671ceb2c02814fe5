"""Finds arch-guard traps: kernels that exist for a target, but whose code only says that they do not.

CUTLASS, CuTe, PyTorch and others compile every kernel for every target and guard the body with ``#if``: on a target
without the instructions, what is left prints a message, aborts, or is empty. Such a kernel looks like any other in a
list of symbols. A kernel is called a trap when, following its machine code from the entry,

- ``guard``: it can reach a call of ``vprintf`` or ``__assertfail`` in a kernel that loads the address of a string
  known to be such a guard's message (:data:`GUARDS`). CUTLASS kernels of this kind hold other code too (barriers,
  even stores by warps that do not multiply), but no launch of them can give a result;
- ``report``: whichever way control goes, it reaches such a call, with any other message, or ``BPT.TRAP``, and it
  never writes to global memory;
- ``abort``: the same with ``BPT.TRAP`` alone (``__trap()``, ``__brkpt()``);
- ``empty``: it does nothing but return.

``assert`` and ``printf`` in a kernel that also works are not traps, nor is a kernel whose work is an assertion. The
last three must also depend on the architecture: where the same library has the kernel for other architectures and
it is no better there, it is that way by design (:func:`by_design`). What this cannot see: code of functions that are
linked later (relocatable objects), and a string whose address is computed. Kernels that are empty by design are
listed in :data:`EMPTY_BY_DESIGN`. Only kernels that can be one of these are disassembled (:func:`_candidates`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sm120_wheels.arch import Arch
from sm120_wheels.prove.addresses import References, find_opcode, length_without_padding, read_references, references
from sm120_wheels.prove.cubin import Cubin, Kernel
from sm120_wheels.prove.sass import INSTRUCTION_BYTES, Instruction, disassemble, readable_archs, target_of

Reason = Literal["guard", "report", "abort", "empty"]

#: Messages of known guards, with the project whose sources they come from.
GUARDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("CUTLASS (CuTe)", re.compile(r"without CUTE_ARCH_\w+|CUTE_ARCH_\w+ is not defined")),
    ("CUTLASS (CuTe)", re.compile(r"Support for cp\.async instructions has not been enabled")),
    ("CUTLASS", re.compile(r"Arch conditional MMA instruction used without targeting")),
    ("CUTLASS", re.compile(r"^%s not implemented$")),
    ("PyTorch", re.compile(r"FATAL: kernel `.*` is for sm.* but was built for sm")),
    ("FlashAttention", re.compile(r"FATAL: FlashAttention requires building with sm")),
    ("FlashMLA", re.compile(r"This kernel only supports sm", re.IGNORECASE)),
)
_GUARD_BYTES = (
    b"CUTE_ARCH_", b"cp.async instructions has not", b"Arch conditional MMA", b"not implemented",
    b"FATAL: ", b"only supports sm", b"only supports SM",
)  # fmt: skip

#: Kernels that are empty in the source: CUB asks the runtime about this one to learn what it was compiled for.
EMPTY_BY_DESIGN = re.compile(r"11EmptyKernel")

_REPORTERS = {"vprintf", "__assertfail", "__assert_fail"}
#: Opcodes that write to global memory (generic, global, reductions, atomics, surfaces, bulk and tensor copies).
_WRITES = {
    "ST", "STG", "RED", "REDG", "ATOM", "ATOMG", "SUST", "SURED", "SUATOM", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED",
}  # fmt: skip
#: Opcodes that a kernel without effect consists of.
_IDLE = {"LDC", "LDCU", "ULDC", "MOV", "UMOV", "NOP", "EXIT", "ACQBULK", "PREEXIT"}

# Opcode numbers (the low 12 bits of an instruction) of sm_70 to sm_121, read off nvdisasm's --hex output. They only
# choose what is disassembled: a wrong one could hide a trap, so the tests compare them with nvdisasm.
_OP_BPT, _OP_STG = 0x95C, 0x986
_OP_SETS_UP = (0xB82, 0xA02)  # LDC, and MOV from a constant: how sm_90 and later, and those before, load R1
#: An EXIT that nothing is a condition of; what follows in its 16 bytes is scheduling.
_EXIT = bytes.fromhex("4d79 0000 0000 0000 0000 8003")
_SMALL = 8  # instructions; an empty kernel has three
_SMALL_BYTES = 1024
#: Bytes. Larger kernels are only looked at for known guards: what just reports or aborts has some hundred bytes.
_LARGEST_READ_WHOLE = 8 << 10


@dataclass(frozen=True, kw_only=True)
class Trap:
    kernel: str
    """The mangled name."""
    reason: Reason
    message: str
    """What it would print, where that could be read."""


@dataclass(frozen=True, kw_only=True)
class TrapReading:
    """What was found in some cubins. ``unread`` says why nothing was, and is empty where all was read."""

    traps: tuple[Trap, ...]
    unread: str = ""


def find_traps(cubins: Sequence[Cubin]) -> list[TrapReading]:
    """The traps of each cubin, in the order given.

    Two runs of nvdisasm for each architecture: first the few instructions of reporting kernels that load addresses,
    which tells the guards; then the whole code of small kernels that might do nothing.
    """
    readings: list[TrapReading | None] = [None] * len(cubins)
    by_arch: dict[Arch, list[int]] = {}
    for index, cubin in enumerate(cubins):
        by_arch.setdefault(cubin.arch, []).append(index)
    for arch, indices in by_arch.items():
        work = [(i, k, suspect) for i in indices for k, suspect in _candidates(cubins[i])]
        if work and arch.sm not in readable_archs():
            unread = f"nvdisasm does not read {arch.sm}"
            readings_of = {i: TrapReading(traps=(), unread=unread) for i in indices}
        else:
            found = _find(cubins, work, arch)
            readings_of = {i: TrapReading(traps=tuple(t for j, t in found if j == i)) for i in indices}
        for i, reading in readings_of.items():
            readings[i] = reading
    return [r for r in readings if r is not None]


def by_design(suspects: Sequence[tuple[Sequence[Trap], Iterable[Cubin]]]) -> list[list[bool]]:
    """For each of the traps of a piece of code, given the code of other architectures for the same translation unit:
    is the kernel no better there?

    Then what it does is meant, and has nothing to do with the architecture. False where no other architecture has
    the kernel, and for known guards. One run of nvdisasm for each of the other architectures, or none.
    """
    known: set[tuple[int, int]] = set()  # (piece of code, trap of it)
    better: set[tuple[int, int]] = set()
    jobs: dict[Arch, list[tuple[tuple[int, int], Cubin, Kernel]]] = {}
    for n, (traps, others) in enumerate(suspects):
        for cubin in others:
            kernels = {kernel.name: kernel for kernel in cubin.kernels}
            for m, trap in enumerate(traps):
                kernel = kernels.get(trap.kernel)
                if trap.reason == "guard" or kernel is None:
                    continue
                code = bytes(kernel.code)
                known.add((n, m))
                if len(code) > _LARGEST_READ_WHOLE or _has(code, _OP_STG) or cubin.arch.sm not in readable_archs():
                    better.add((n, m))
                elif not returns_at_once(code):
                    jobs.setdefault(cubin.arch, []).append(((n, m), cubin, kernel))
    for arch, all_work in jobs.items():
        work = [job for job in all_work if job[0] not in better]
        listings = disassemble([bytes(k.code) for _, _, k in work], arch)
        for (place, cubin, kernel), instructions in zip(work, listings, strict=True):
            found = classify(cubin, kernel, instructions)
            if found is None or found.reason == "guard":
                better.add(place)
    return [[(n, m) in known - better for m in range(len(traps))] for n, (traps, _) in enumerate(suspects)]


def _find(cubins: Sequence[Cubin], work: Sequence[tuple[int, Kernel, bool]], arch: Arch) -> list[tuple[int, Trap]]:
    found: list[tuple[int, Trap]] = []
    guarded = [(i, k) for i, k, suspect in work if suspect]
    caught = set()
    for (i, kernel), refers in zip(guarded, read_references([(cubins[i], k) for i, k in guarded], arch), strict=True):
        if trap := _guard(cubins[i], kernel, refers):
            found.append((i, trap))
            caught.add((i, kernel.symbol.index))
    rest = []
    for i, kernel, _ in work:
        if (i, kernel.symbol.index) in caught or len(kernel.code) > _LARGEST_READ_WHOLE:
            continue
        if returns_at_once(bytes(kernel.code)):
            found.append((i, Trap(kernel=kernel.name, reason="empty", message="")))
        else:
            rest.append((i, kernel))
    listings = disassemble([bytes(k.code) for _, k in rest], arch)
    for (i, kernel), instructions in zip(rest, listings, strict=True):
        if trap := classify(cubins[i], kernel, instructions):
            found.append((i, trap))
    return found


def _candidates(cubin: Cubin) -> Iterator[tuple[Kernel, bool]]:
    """The kernels that can be traps, told without disassembling them, and whether a guard's message is near."""
    texts = bytes(cubin.elf.content(".nv.global.init"))
    guarded = any(mark in texts for mark in _GUARD_BYTES)
    for kernel in cubin.kernels:
        code = bytes(kernel.code)
        small = len(code) <= _SMALL_BYTES and length_without_padding(code) <= _SMALL
        if small and EMPTY_BY_DESIGN.search(kernel.name):
            continue
        reports = bool(cubin.externs(kernel) & _REPORTERS)
        if guarded and reports:
            yield kernel, True
        elif small or (
            len(code) <= _LARGEST_READ_WHOLE and not _has(code, _OP_STG) and (reports or _has(code, _OP_BPT))
        ):
            yield kernel, False


def returns_at_once(code: bytes) -> bool:
    """Whether a kernel is seen to do nothing without disassembling it: it sets up its stack pointer and exits."""
    for at in range(0, len(code), INSTRUCTION_BYTES):
        if code[at : at + len(_EXIT)] == _EXIT:
            return True
        if int.from_bytes(code[at : at + 2], "little") & 0xFFF not in _OP_SETS_UP:
            return False
    return False


def _has(code: bytes, opcode: int) -> bool:
    return next(find_opcode(code, opcode), None) is not None


def classify(cubin: Cubin, kernel: Kernel, instructions: Sequence[Instruction]) -> Trap | None:
    """Whether a kernel is a trap, from its whole disassembly. See the module's docstring for what counts."""
    reached = _reachable(instructions)
    bases = {instructions[i].base for i in reached}
    if bases <= _IDLE:
        return Trap(kernel=kernel.name, reason="empty", message="")
    refers = references(cubin, kernel, [(i, instructions[i]) for i in reached])
    if trap := _guard(cubin, kernel, refers):
        return trap
    names, messages = set(refers.functions), refers.strings
    if bases & _WRITES or names - _REPORTERS:
        return None
    ends = _reachable(instructions, calls_return=False)
    if any(instructions[i].base in ("EXIT", "RET") for i in ends):
        return None
    if names & _REPORTERS:
        return Trap(kernel=kernel.name, reason="report", message=_one_line(messages[0] if messages else ""))
    if any(instructions[i].opcode.startswith("BPT.TRAP") for i in ends):
        return Trap(kernel=kernel.name, reason="abort", message="")
    return None


def _guard(cubin: Cubin, kernel: Kernel, refers: References) -> Trap | None:
    guards = [m for m in refers.strings if any(pattern.search(m) for _, pattern in GUARDS)]
    if guards and (set(refers.functions) | cubin.externs(kernel)) & _REPORTERS:
        return Trap(kernel=kernel.name, reason="guard", message=_one_line(guards[0]))
    return None


def _one_line(message: str) -> str:
    return " ".join(message.split())


def _reachable(instructions: Sequence[Instruction], *, calls_return: bool = True) -> list[int]:
    """Indices of the instructions that control can reach from the entry, in order.

    Nothing follows an unconditional EXIT, BRA, RET or BPT.TRAP. A branch whose target is computed may go anywhere.
    """
    seen: set[int] = set()
    stack = [0]
    while stack:
        at = stack.pop()
        while 0 <= at < len(instructions) and at not in seen:
            seen.add(at)
            instruction = instructions[at]
            if instruction.base in ("BRX", "JMX", "BRXU", "JMXU"):
                return list(range(len(instructions)))
            target = target_of(instruction) if instruction.base in ("BRA", "CALL", "JMP", "BSSY") else None
            if target is not None:
                stack.append(target // INSTRUCTION_BYTES)
            always = not instruction.predicate and "P" not in instruction.operands.split("0x")[0]
            if always and (
                instruction.base in ("EXIT", "BRA", "JMP", "RET")
                or instruction.opcode.startswith("BPT.TRAP")
                or (instruction.opcode.startswith("CALL.ABS") and not calls_return)
            ):
                break
            at += 1
    return sorted(seen)
