from __future__ import annotations

import re

import pytest

from sm120_wheels.elf import Elf
from sm120_wheels.prove import fatbin, inputs
from sm120_wheels.prove.addresses import OP_CONSTANTS, OP_NOP, find_opcode
from sm120_wheels.prove.audit import audit
from sm120_wheels.prove.cubin import Cubin
from sm120_wheels.prove.sass import disassemble
from sm120_wheels.prove.traps import _OP_BPT, _OP_STG, Trap, find_traps
from tests.prove.conftest import Samples

pytestmark = [pytest.mark.cuda, pytest.mark.network]


def traps(samples: Samples, target: tuple[int, int]) -> dict[str, Trap]:
    found = audit(inputs.subject(str(samples["libtraps.so"])), [target])
    every = [t for i in found.libraries[0].images for t in i.traps]
    return {re.sub(r"^_Z\d+(\w+?)PK?fi?$", r"\1", t.kernel): t for t in every}


def test_each_kind_of_trap_is_found_with_its_message(samples: Samples) -> None:
    found = traps(samples, (12, 0))
    assert {name: t.reason for name, t in found.items()} == {
        "guarded": "guard",
        "through_a_call": "guard",
        "reporting": "report",
        "aborting": "abort",
        "silent": "empty",
    }
    assert "without CUTE_ARCH_TCGEN05_TMEM_ENABLED" in found["guarded"].message
    assert found["through_a_call"].message == "Trying to use tma without CUTE_ARCH_TMA_SM90_ENABLED."
    assert found["reporting"].message == "made for another GPU"


def test_on_the_architecture_that_they_were_made_for_they_are_kernels(samples: Samples) -> None:
    assert traps(samples, (9, 0)) == {}


def test_alone_in_a_file_a_kernel_that_does_nothing_is_a_trap_but_cubs_is_not(samples: Samples) -> None:
    # with no other architecture to compare, "does nothing" is all that is known
    data = samples["libtraps.so"].read_bytes()
    entry = max(
        (e for e in fatbin.entries_of_elf(Elf(data, "")) if e.arch.sm == "sm_120a"), key=lambda e: e.stored_bytes
    )
    (reading,) = find_traps([Cubin(entry.payload(data, ""), "")])
    names = {t.kernel for t in reading.traps}
    assert any("nothing_anywhere" in n for n in names)
    assert not any("EmptyKernel" in n for n in names)


def test_opcode_numbers_are_those_of_nvdisasm(samples: Samples) -> None:
    data = samples["libtraps.so"].read_bytes()
    for entry in fatbin.entries_of_elf(Elf(data, "")):
        cubin = Cubin(entry.payload(data, ""), "")
        codes = [bytes(k.code) for k in cubin.kernels]
        for code, listing in zip(codes, disassemble(codes, cubin.arch), strict=True):
            for number, name in ((OP_NOP, "NOP"), (_OP_BPT, "BPT"), (_OP_STG, "STG")):
                assert list(find_opcode(code, number)) == [i for i, x in enumerate(listing) if x.base == name]
            for i in (i for number in OP_CONSTANTS for i in find_opcode(code, number)):
                assert listing[i].base in ("MOV", "UMOV", "IMAD", "HFMA2")
