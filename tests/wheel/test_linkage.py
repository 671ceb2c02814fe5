from __future__ import annotations

import pytest

from sm120_wheels.wheel.linkage import cuda_majors


@pytest.mark.parametrize(
    ("soname", "majors"),
    [
        ("libcudart.so.12", {12}),
        ("libcudart.so.13", {13}),
        ("libcublasLt.so.13", {13}),
        ("libnvrtc.so.11.2", {11}),
        ("libnvrtc-builtins.so.13.0", {13}),
        ("libnppc.so.12", {12}),
        ("libcufft.so.11", {12}),
        ("libcufft.so.12", {13}),
        ("libcusolver.so.11", {11, 12}),
        ("libcusparse.so.12", {12, 13}),
    ],
)
def test_a_librarys_number_tells_the_cuda_majors_that_ship_it(soname: str, majors: set[int]) -> None:
    assert cuda_majors(soname) == frozenset(majors)


@pytest.mark.parametrize("soname", ["libcurand.so.10", "libcuda.so.1", "libnccl.so.2", "libcudart.so", "libc.so.6"])
def test_a_library_that_every_cuda_ships_alike_tells_nothing(soname: str) -> None:
    assert cuda_majors(soname) is None
