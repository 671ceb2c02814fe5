from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.tags import parse_tag

from sm120_wheels.errors import UnsupportedTargetError, WheelInvalidError
from sm120_wheels.wheel.library import Library
from sm120_wheels.wheel.tags import CUDA_AND_TORCH, abi3_baseline, decide_platform, platform_problems


def library(member: str = "a/ops.so", **changes: Any) -> Library:
    """A library as it was read; only what a test is about differs."""
    values: dict[str, Any] = {
        "member": member,
        "path": Path(member),
        "machine": "x86_64",
        "soname": "",
        "needed": ("libc.so.6",),
        "rpath": (),
        "versions": {"libc.so.6": frozenset({"GLIBC_2.2.5"})},
        "init_functions": (),
        "undefined": frozenset(),
        "python_symbols": frozenset(),
    }
    return Library(**{**values, **changes})


def asks(version: str, provider: str = "libc.so.6") -> dict[str, frozenset[str]]:
    return {provider: frozenset({version})}


@pytest.mark.parametrize(
    ("versions", "tag"),
    [
        (asks("GLIBC_2.17"), "manylinux_2_17_x86_64"),
        (asks("GLIBC_2.28"), "manylinux_2_28_x86_64"),
        (asks("GLIBC_2.34"), "manylinux_2_34_x86_64"),
        (asks("GLIBC_2.36"), "manylinux_2_36_x86_64"),
        (asks("GLIBCXX_3.4.30", "libstdc++.so.6"), "manylinux_2_35_x86_64"),
    ],
)
def test_the_newest_symbol_version_decides(versions: dict[str, frozenset[str]], tag: str) -> None:
    decision = decide_platform([library(), library("a/new.so", versions=versions)], excluded=())
    assert decision.tags[0] == tag
    assert decision.because, "what keeps it from an older tag is said"
    assert all("a/new.so asks" in reason for reason in decision.because)


def test_old_spellings_are_listed_beside_the_tag() -> None:
    decision = decide_platform([library(versions=asks("GLIBC_2.17"))], excluded=())
    assert decision.tags == ("manylinux_2_17_x86_64", "manylinux2014_x86_64")


def test_a_symbol_newer_than_any_policy_leaves_a_plain_linux_tag() -> None:
    decision = decide_platform([library(versions=asks("GLIBC_2.99"))], excluded=())
    assert decision.tags == ("linux_x86_64",)
    assert "GLIBC_2.99" in decision.because[0]


def test_a_library_that_no_policy_promises_leaves_a_plain_linux_tag_and_is_named() -> None:
    decision = decide_platform([library(needed=("libnuma.so.1", "libc.so.6"))], excluded=())
    assert decision.tags == ("linux_x86_64",)
    assert "a/ops.so needs libnuma.so.1" in decision.because[0]


def test_cuda_torch_and_the_driver_are_excluded_by_name() -> None:
    needed = ("libtorch.so", "libc10_cuda.so", "libcudart.so.13", "libcublasLt.so.13", "libcuda.so.1", "libnvrtc.so.13")
    versions = {"libcudart.so.13": frozenset({"libcudart.so.13"})}
    assert decide_platform([library(needed=needed, versions=versions)], excluded=()).tags == ("linux_x86_64",)
    decision = decide_platform([library(needed=needed, versions=versions)], excluded=CUDA_AND_TORCH)
    assert decision.tags[0].startswith("manylinux")


def test_libraries_inside_the_wheel_are_not_foreign() -> None:
    inner = library("a/libinner.so.2", soname="libinner.so.2")
    outer = library(needed=("libinner.so.2",), versions=asks("INNER_9", "libinner.so.2"))
    assert decide_platform([outer, inner], excluded=()).tags[0].startswith("manylinux")


def test_symbols_that_a_policy_forbids_are_named() -> None:
    uses = library(needed=("libz.so.1",), undefined=frozenset({"inflate_fast"}))
    (first, *_) = platform_problems([uses], "manylinux_2_28_x86_64", excluded=())
    assert first == "a/ops.so uses inflate_fast of libz.so.1, which manylinux_2_28_x86_64 forbids"


def test_a_tag_that_promises_too_much_is_found_with_library_and_symbol() -> None:
    """As in a published wheel whose tag says manylinux2014."""
    found = platform_problems(
        [library(versions=asks("GLIBCXX_3.4.21", "libstdc++.so.6"))], "manylinux2014_x86_64", excluded=()
    )
    assert found == ["a/ops.so asks libstdc++.so.6 for GLIBCXX_3.4.21, newer than manylinux_2_17_x86_64 promises"]


@pytest.mark.parametrize("tag", ["linux_x86_64", "any", "manylinux_2_36_x86_64"])
def test_a_tag_that_holds_has_no_problems(tag: str) -> None:
    assert platform_problems([library()], tag, excluded=()) == []


def test_a_tag_that_no_policy_has_is_a_problem() -> None:
    assert (
        "no policy named manylinux_9_9_x86_64" in platform_problems([library()], "manylinux_9_9_x86_64", excluded=())[0]
    )


def test_libraries_of_two_machines_are_refused() -> None:
    with pytest.raises(WheelInvalidError, match="more than one machine") as caught:
        decide_platform([library(), library("a/arm.so", machine="aarch64")], excluded=())
    assert "a/arm.so" in caught.value.where


def test_a_machine_without_policies_is_refused() -> None:
    with pytest.raises(UnsupportedTargetError, match="no platform tag is known for EM_SPARC"):
        decide_platform([library(machine="EM_SPARC")], excluded=())


@pytest.mark.parametrize(
    ("tags", "baseline"),
    [
        ("cp310-abi3-linux_x86_64", (3, 10)),
        ("cp312.cp39-abi3-linux_x86_64", (3, 9)),
        ("cp312-cp312-linux_x86_64", None),
        ("py3-none-any", None),
    ],
)
def test_the_oldest_promised_python_is_the_baseline(tags: str, baseline: tuple[int, int] | None) -> None:
    assert abi3_baseline(parse_tag(tags)) == baseline
