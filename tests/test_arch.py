"""Targets: how they are written, and which GPUs run them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_wheels.arch import KNOWN, Arch
from sm120_wheels.errors import UnknownArchError


@pytest.mark.parametrize("name", KNOWN)
def test_every_way_to_write_a_target_is_the_same_target(name: str) -> None:
    arch = Arch.parse(name)
    assert str(arch) == name
    assert {Arch.parse(text) for text in (arch.number, arch.sm, f"compute_{arch.number}", f" {name} ")} == {arch}


@given(st.text())
def test_any_other_text_is_refused_with_the_known_ones(text: str) -> None:
    try:
        arch = Arch.parse(text)
    except UnknownArchError as exc:
        assert "12.0a" in exc.hint
    else:
        assert str(arch) in KNOWN


@pytest.mark.parametrize(
    ("target", "runs", "not_on"),
    [
        ("12.0", [(12, 0), (12, 1)], [(9, 0), (10, 0), (13, 0)]),
        ("12.0a", [(12, 0)], [(12, 1), (10, 0)]),
        ("12.0f", [(12, 0), (12, 1)], [(10, 0), (11, 0)]),
        ("12.1a", [(12, 1)], [(12, 0)]),
        ("12.1", [(12, 1)], [(12, 0)]),
        ("12.1f", [(12, 1)], [(12, 0)]),
        ("9.0a", [(9, 0)], [(12, 0)]),
        ("8.0", [(8, 0), (8, 6), (8, 9)], [(7, 5), (9, 0)]),
        ("8.6", [(8, 6), (8, 9)], [(8, 0)]),
        ("10.0f", [(10, 0), (10, 3)], [(12, 0)]),
    ],
)
def test_which_gpus_run_a_target(target: str, runs: list[tuple[int, int]], not_on: list[tuple[int, int]]) -> None:
    arch = Arch.parse(target)
    assert [gpu for gpu in runs if not arch.runs_on(gpu)] == []
    assert [gpu for gpu in not_on if arch.runs_on(gpu)] == []


def test_the_option_for_nvcc_asks_for_machine_code_and_no_ptx() -> None:
    assert Arch.parse("12.0a").gencode == "-gencode=arch=compute_120a,code=sm_120a"


def test_family_targets_need_a_newer_cuda_than_plain_ones() -> None:
    assert Arch.parse("12.0a").min_cuda == (12, 8)
    assert Arch.parse("12.0f").min_cuda == (12, 9)


def test_targets_sort_by_number() -> None:
    assert [str(a) for a in sorted(map(Arch.parse, ["12.1a", "9.0a", "12.0f", "12.0a"]))] == [
        "9.0a",
        "12.0a",
        "12.0f",
        "12.1a",
    ]
