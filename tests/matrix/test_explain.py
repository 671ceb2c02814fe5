"""Why an identifier is not in the matrix: the part that rules it out, and what is close."""

from __future__ import annotations

import pytest

from sm120_wheels import recipe
from sm120_wheels.errors import (
    Sm120Error,
    UnknownArchError,
    UnknownCudaError,
    UnknownRecipeError,
    UnknownVersionError,
    UnsupportedTargetError,
)
from sm120_wheels.matrix.explain import explain
from sm120_wheels.matrix.jobs import Matrix, make_matrix
from sm120_wheels.matrix.lookup import find_job, not_there

REST = "cu130-torch2.11-cp310_abi3-sm120a-linux_x86_64"


@pytest.fixture(scope="module")
def ours() -> tuple[Matrix, list[recipe.Recipe]]:
    return make_matrix(), [recipe.load(name) for name in recipe.names()]


@pytest.mark.parametrize(
    ("identifier", "axis", "why", "error"),
    [
        (f"sglang_kernal-0.4.4-{REST}", "distribution", "did you mean sglang_kernel", UnknownRecipeError),
        (f"sglang_kernel-0.4.6-{REST}", "version", "Known: 0.4.4, 0.4.5", UnknownVersionError),
        (
            f"sglang_kernel-0.4.4-{REST.replace('cu130', 'cu128')}",
            "CUDA",
            "it has cu130 with torch2.11",
            UnknownCudaError,
        ),
        (
            f"sglang_kernel-0.4.4-{REST.replace('2.11', '2.12')}",
            "torch",
            "no pairing with torch2.12",
            UnsupportedTargetError,
        ),
        (
            f"sm120_selftest-0.1.0-{REST.replace('cu130', 'cu128')}",
            "combination",
            "torch2.11 is built for CUDA 13.0, and majors must agree",
            UnsupportedTargetError,
        ),
        (
            "sm120_selftest-0.1.0-cu128-torch2.9-cp310_abi3-sm120f-linux_x86_64",
            "combination",
            "12.0f needs CUDA 12.9 or newer",
            UnsupportedTargetError,
        ),
        (f"sglang_kernel-0.4.4-{REST.replace('abi3', 'cp310')}", "Python", "tagged cp310_abi3", UnsupportedTargetError),
        (f"sglang_kernel-0.4.4-{REST.replace('120a', '120')}", "architecture", "FP4", UnknownArchError),
        (f"sglang_kernel-0.4.4-{REST.replace('120a', '89')}", "architecture", "not built for 8.9", UnknownArchError),
        (f"sglang_kernel-0.4.4-{REST.replace('120a', '120z')}", "architecture", "sm120a", UnknownArchError),
        (
            f"sglang_kernel-0.4.4-{REST.replace('120a', '120a.sm121a')}",
            "architecture",
            "--arch 12.0a,12.1a",
            UnknownArchError,
        ),
        (
            f"sglang_kernel-0.4.4-{REST.replace('linux_x86_64', 'win_amd64')}",
            "platform",
            "win_amd64",
            UnsupportedTargetError,
        ),
        ("sglang-kernel-0.4.4", "form", "it has 3 parts between dashes; an identifier has 7", UnsupportedTargetError),
        ("", "form", "an identifier has 7", UnsupportedTargetError),
    ],
)
def test_the_part_that_rules_it_out_is_named(
    ours: tuple[Matrix, list[recipe.Recipe]], identifier: str, axis: str, why: str, error: type[Sm120Error]
) -> None:
    explained = explain(identifier, *ours)
    assert (explained.present, explained.axis) == (False, axis)
    assert why in explained.why
    assert len(explained.near) == 3
    assert type(not_there(explained)) is error


def test_the_closest_differs_in_one_part(ours: tuple[Matrix, list[recipe.Recipe]]) -> None:
    explained = explain(f"sglang_kernel-0.4.4-{REST.replace('120a', '120')}", *ours)
    assert explained.near[0] == f"sglang_kernel-0.4.4-{REST}"


def test_what_is_there_is_said_to_be_there_and_found(ours: tuple[Matrix, list[recipe.Recipe]]) -> None:
    assert explain(f" sglang_kernel-0.4.4-{REST} ", *ours).present
    assert find_job(f"sglang_kernel-0.4.4-{REST}").request.cuda == "13.0"
    with pytest.raises(UnknownVersionError, match=r"'sglang_kernel-9-.*' is not in the matrix"):
        find_job(f"sglang_kernel-9-{REST}")
