from __future__ import annotations

import pytest

from sm120_wheels.prove.names import brief, demangle, normalise


def named(identifier: str) -> str:
    """As mangling writes an identifier: its length first."""
    return f"{len(identifier)}{identifier}"


def builds(template: str, *identifiers: str) -> list[str]:
    return [template.format(named(i)) for i in identifiers]


@pytest.mark.parametrize(
    "names",
    [
        builds(
            "_ZN{}11topk_kernelENS_14FastTopKParamsE",
            "_GLOBAL__N__ef64e897_7_topk_cu_e84ba852",
            "_GLOBAL__N__0123abcd_7_topk_cu_deadbeef",
        ),
        builds(
            "_Z1fIXadL_ZN{}17vec_dot_q4_1_q8_1EPKvEEEvi",
            "_INTERNAL_0b1ac145_14_gguf_kernel_cu_cd241319",
            "_INTERNAL_11111111_14_gguf_kernel_cu_22222222",
            "_INTERNAL_11111111_14_gguf_kernel_cu_22222222_1234567",
        ),
        builds(
            "_ZN10flashinfer3KerILN3cub{}18BlockScanAlgorithmE2EEEvi",
            "CUB_300001_SM_800_890_900_1000_1030_1200",
            "CUB_300001_SM_1200",
        ),
        builds("_ZN6thrust{}4fillE", "THRUST_300001_SM_800_1200_NS", "THRUST_300001_SM_1200_NS"),
        [
            "__nv_static_45__0b1ac145_14_gguf_kernel_cu_cd241319__Z5dequantPKv",
            "__nv_static_45__ffffffff_14_gguf_kernel_cu_eeeeeeee__Z5dequantPKv",
        ],
    ],
)
def test_names_of_the_same_kernel_in_several_builds_become_equal(names: list[str]) -> None:
    assert len(set(names)) == len(names)
    assert len({normalise(n) for n in names}) == 1
    assert normalise(names[0]) not in names


def test_names_from_two_files_stay_apart() -> None:
    one = "_ZN36_GLOBAL__N__bd68090a_4_k_cu_e6581e9d4anonEPf"
    other = "_ZN36_GLOBAL__N__bd68090a_4_j_cu_e6581e9d4anonEPf"
    assert normalise(one) != normalise(other)


def test_ordinary_names_are_left_alone() -> None:
    for name in ("_Z3addPfPKfi", "_ZN7cutlass13device_kernelIN4cute5tupleIJiiiEEEEEvT_", "plain_c"):
        assert normalise(name) == name


def test_names_are_readable_and_cut() -> None:
    assert demangle("_Z3addPfPKfi") == "add(float*, float const*, int)"
    assert brief("_Z3addPfPKfi") == "add"
    assert brief("_ZN36_GLOBAL__N__bd68090a_4_k_cu_e6581e9d4anonEPf").endswith("anon")
    assert demangle("not a mangled name") == "not a mangled name"
    assert brief("x" * 500, 40) == "x" * 39 + "…"
