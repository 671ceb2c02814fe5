from __future__ import annotations

import re

import pytest

from sm120_wheels.elf import Elf
from sm120_wheels.errors import WheelInvalidError
from sm120_wheels.prove import fatbin
from sm120_wheels.prove.cubin import Cubin
from tests.prove.conftest import TARGETS, Samples

pytestmark = [pytest.mark.cuda, pytest.mark.network]


def entries(data: bytes) -> list[fatbin.Entry]:
    return list(fatbin.entries(data, 0, len(data), where="sample"))


def test_every_entry_and_its_target_is_what_cuobjdump_lists(samples: Samples) -> None:
    ours = [(e.kind, e.arch.sm) for e in entries(samples["targets.fatbin"].read_bytes())]
    said = samples.tool("cuobjdump", samples["targets.fatbin"])
    kinds = {"elf": "sass", "ptx": "ptx"}
    theirs = [(kinds[k], a) for k, a in re.findall(r"Fatbin (elf|ptx) code:\n=+\narch = (sm_\w+)", said)]
    assert sorted(ours) == sorted(theirs)
    assert sorted(a for k, a in ours if k == "sass") == sorted(f"sm_{t}" for t in TARGETS)


@pytest.mark.parametrize(("mode", "compression"), [("none", "none"), ("speed", "lz4"), ("size", "zstd")])
def test_each_compression_gives_the_same_ptx(samples: Samples, mode: str, compression: str) -> None:
    data = samples[f"{mode}.fatbin"].read_bytes()
    plain = samples["none.fatbin"].read_bytes()
    ptx = next(e for e in entries(data) if e.kind == "ptx")
    wanted = next(e for e in entries(plain) if e.kind == "ptx")
    assert ptx.compression == compression
    text = bytes(ptx.payload(data, "sample")).rstrip(b"\0")
    assert text == bytes(wanted.payload(plain, "sample")).rstrip(b"\0")
    assert b".entry" in text


def test_compressed_machine_code_unpacks_to_the_same_cubin(samples: Samples) -> None:
    codes = []
    for mode in ("none", "size"):
        data = samples[f"{mode}.fatbin"].read_bytes()
        entry = next(e for e in entries(data) if e.kind == "sass")
        codes.append({k.name: bytes(k.code) for k in Cubin(entry.payload(data, mode), mode).kernels})
    assert codes[0] == codes[1]
    assert len(codes[0]) == 4


def test_relocatable_code_is_marked_as_for_linking(samples: Samples) -> None:
    found = fatbin.entries_of_elf(Elf(samples["linkable.o"].read_bytes(), "linkable.o"))
    assert [e.arch.sm for e in found if e.kind == "sass"] == ["sm_120a"]
    assert all(e.linkable for e in found)


def test_entries_account_for_every_byte_of_the_section(samples: Samples) -> None:
    elf = Elf(samples["libmulti.so"].read_bytes(), "libmulti.so")
    section = elf.section(fatbin.RUN_SECTION)
    assert section is not None
    found = fatbin.entries_of_elf(elf)
    headers = 16 * len({e.container for e in found})
    assert section.size - sum(e.bytes_in_file for e in found) - headers < 8 * len(found)


def test_damage_is_one_error_that_names_the_place(samples: Samples) -> None:
    data = bytearray(samples["size.fatbin"].read_bytes())
    entry = next(e for e in entries(bytes(data)) if e.kind == "sass")
    data[entry.offset + 40 : entry.offset + 200] = b"\xff" * 160
    with pytest.raises(WheelInvalidError, match="GPU code in a binary is damaged") as failure:
        entry.payload(bytes(data), "broken.so")
    assert "sm_120a code at byte" in str(failure.value)
    assert "broken.so" in str(failure.value)


def test_a_container_that_claims_too_much_is_refused(samples: Samples) -> None:
    data = samples["none.fatbin"].read_bytes()
    with pytest.raises(WheelInvalidError) as failure:
        entries(data[: len(data) // 2])
    assert "more than there are" in str(failure.value)
    with pytest.raises(WheelInvalidError) as failure:
        entries(b"\x01\x02\x03\x04" * 16)
    assert "should start a container" in str(failure.value)
