"""Two builds compared kernel by kernel, through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120_wheels.arch import Arch
from sm120_wheels.elf import Elf
from sm120_wheels.prove import inputs
from sm120_wheels.prove.addresses import References
from sm120_wheels.prove.cubin import Cubin
from sm120_wheels.prove.equivalence import compare, match
from sm120_wheels.prove.fatbin import entries_of_elf
from sm120_wheels.prove.prints import Print
from tests.prove.conftest import Said, Samples

Run = Callable[..., Said]
Pack = Callable[..., Path]

cuda = [pytest.mark.cuda, pytest.mark.network]


def with_marks(*marks: pytest.MarkDecorator) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def apply(test: Callable[..., None]) -> Callable[..., None]:
        for mark in marks:
            test = mark(test)
        return test

    return apply


compiled = with_marks(*cuda)


@compiled
def test_the_same_source_compiled_elsewhere_for_more_targets_is_identical(samples: Samples, sm120: Run) -> None:
    said = sm120("equivalence", samples["libonly.so"], samples["elsewhere.o"], "--arch", "sm_120a", "--json")
    assert said.code == 0
    counts = json.loads(said.out)["counts"]
    assert counts == {"identical": 4, "relocated": 0, "different": 0, "only ours": 0, "missing": 0}


@compiled
def test_names_with_internal_linkage_differ_and_are_matched(samples: Samples) -> None:
    result = compare(
        inputs.subject(str(samples["libonly.so"])), inputs.subject(str(samples["elsewhere.o"])), Arch.parse("12.0a")
    )
    pair = next(p for p in result.pairs if "unnamed" in p.name)
    assert pair.ours and pair.reference
    assert pair.ours.name != pair.reference.name
    assert pair.status == "identical"


@compiled
def test_one_changed_byte_of_machine_code_is_found(samples: Samples, sm120: Run, tmp_path: Path) -> None:
    data = bytearray(samples["libonly.so"].read_bytes())
    entry = max(entries_of_elf(Elf(bytes(data), "")), key=lambda e: e.stored_bytes)
    assert entry.compression == "none"
    kernel = next(k for k in Cubin(entry.payload(bytes(data), ""), "").kernels if "add" in k.name)
    at = bytes(data).index(bytes(kernel.code))
    data[at + 16 * 3 + 4] ^= 0x01
    (tmp_path / "changed.so").write_bytes(data)
    said = sm120("equivalence", tmp_path / "changed.so", samples["libonly.so"], "--arch", "sm_120a", "--json")
    assert said.code == 62
    found = json.loads(said.out)
    assert found["counts"]["different"] == 1
    assert found["counts"]["identical"] == 3
    (different,) = [k for k in found["kernels"] if k["status"] == "different"]
    assert "add" in different["name"]
    assert different["why"] == ["code"]


@compiled
def test_a_changed_source_shows_the_instruction_that_changed(samples: Samples, sm120: Run) -> None:
    said = sm120(
        "equivalence", samples["changed.o"], samples["libonly.so"], "--arch", "120a", "--show", "hidden",
    )  # fmt: skip
    assert said.code == 62
    removed = [line for line in said.out.splitlines() if line.startswith("-") and not line.startswith("---")]
    added = [line for line in said.out.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert len(removed) == len(added) == 1  # the constant that is stored
    assert "the machine code of changed.o is not that of libonly.so" in said.err


@compiled
def test_a_listing_of_an_identical_kernel_is_what_nvdisasm_prints(samples: Samples, sm120: Run) -> None:
    said = sm120("equivalence", samples["libonly.so"], samples["elsewhere.o"], "--arch", "120a", "--show", "hidden")
    assert said.code == 0
    assert "STG.E" in said.out
    assert "EXIT" in said.out


@compiled
def test_what_is_missing_fails_unless_it_is_allowed(samples: Samples, sm120: Run) -> None:
    said = sm120(
        "equivalence", samples["plain.cubin"], samples["libtraps.so"], "--arch", "12.0", "--reference-arch", "12.0a"
    )
    assert said.code == 62
    assert "are missing" in said.err
    arguments = (
        "equivalence", samples["libonly.so"], samples.folder, "--arch", "120a",
        "--library", "libonly.so", "--library", "libtraps.so",
    )  # fmt: skip
    assert sm120(*arguments).code == 62
    assert sm120(*arguments, "--allow-missing", "libtraps.so").code == 0


@compiled
def test_nothing_in_common_is_not_a_success(samples: Samples, sm120: Run) -> None:
    said = sm120("equivalence", samples["libonly.so"], samples["libfamily.so"], "--arch", "120a")
    assert said.code == 62
    assert "libfamily.so has no machine code for sm_120a" in said.err
    assert "it has sm_120f" in said.err
    said = sm120("equivalence", samples["libonly.so"], samples["libptx.so"], "--arch", "120a", "--allow-missing", "*")
    assert said.code == 62


@compiled
def test_family_and_exact_code_of_plain_kernels_are_the_same(samples: Samples, sm120: Run) -> None:
    said = sm120(
        "equivalence", samples["libonly.so"], samples["libfamily.so"], "--arch", "120a", "--reference-arch", "120f"
    )
    assert said.code == 0


@compiled
def test_wheels_are_compared_by_the_libraries_that_would_be_loaded(samples: Samples, packed: Pack, sm120: Run) -> None:
    ours = packed({"sgl_kernel/sm100/common_ops.abi3.so": samples["libonly.so"]}, name="ours")
    reference = packed(
        {
            "sgl_kernel/sm90/common_ops.abi3.so": samples["libtraps.so"],
            "sgl_kernel/sm100/common_ops.abi3.so": samples["libmulti.so"],
        },
        name="reference",
    )
    said = sm120("equivalence", ours, reference, "--arch", "120a", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["skipped"][0]["library"] == "sgl_kernel/sm90/common_ops.abi3.so"


@compiled
def test_code_that_differs_only_in_where_addresses_lie_is_the_same(samples: Samples, sm120: Run) -> None:
    said = sm120("equivalence", samples["speaks_more.cubin"], samples["speaks.cubin"], "--arch", "120a", "--json")
    assert said.code == 0
    assert json.loads(said.out)["counts"] == {
        "identical": 0, "relocated": 1, "different": 0, "only ours": 1, "missing": 0,
    }  # fmt: skip


@compiled
def test_an_unknown_kernel_name_is_an_error(samples: Samples, sm120: Run) -> None:
    said = sm120("equivalence", samples["libonly.so"], samples["elsewhere.o"], "--arch", "120a", "--show", "no_such")
    assert said.code == 60
    assert "no kernel for sm_120a has 'no_such' in its name" in said.err


def fingerprint(code: str, *, key: str = "kernel", unit: int = 0, registers: int = 10) -> Print:
    return Print(
        name=f"{key}{unit}", key=key, library="lib.so", unit=unit, bytes=128, instructions=5, code=code,
        relocations="", constants="", references=References(functions=(), strings=()),
        needs=(("registers", registers),), compiler="13.0.88",
    )  # fmt: skip


def statuses(ours: list[Print], reference: list[Print]) -> list[str]:
    return sorted(p.status for p in match(ours, reference))


def test_equal_kernels_of_one_name_are_matched_before_different_ones() -> None:
    ours = [fingerprint("a"), fingerprint("b", unit=1)]
    reference = [fingerprint("b", unit=7), fingerprint("a", unit=8)]
    assert statuses(ours, reference) == ["identical", "identical"]
    assert statuses(ours, [*reference, fingerprint("c", unit=9)]) == ["identical", "identical", "missing"]
    assert statuses([*ours, fingerprint("x", unit=2)], [*reference, fingerprint("c", unit=9)]) == [
        "different",
        "identical",
        "identical",
    ]


def test_the_same_code_with_other_resources_is_different() -> None:
    (pair,) = match([fingerprint("a", registers=40)], [fingerprint("a", registers=48)])
    assert pair.status == "different"
    assert pair.why == ("registers 40/48",)
