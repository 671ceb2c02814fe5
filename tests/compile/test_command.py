"""Command lines as CMake, ninja files and flashinfer write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120_wheels.compile.command import parse


def test_a_cmake_nvcc_line_is_understood() -> None:
    command = parse(
        [
            "/cuda/bin/nvcc",
            "-forward-unknown-to-host-compiler",
            "-DX=1",
            "-I/a/inc",
            "-isystem",
            "/b/inc",
            "-O3",
            "--generate-code=arch=compute_120a,code=[sm_120a]",
            "--generate-code=arch=compute_90a,code=[compute_90a,sm_90a]",
            "--threads=4",
            "-Xcompiler=-fPIC",
            "-MD",
            "-MT",
            "x.o",
            "-MF",
            "x.o.d",
            "-x",
            "cu",
            "-c",
            "../csrc/a.cu",
            "-o",
            "obj/a.cu.o",
        ],
        "/w/build",
    )
    assert command.compiler == "/cuda/bin/nvcc"
    assert command.source == "/w/build/../csrc/a.cu"
    assert command.output == "/w/build/obj/a.cu.o"
    assert command.targets == ("120a", "90a")
    assert command.include_folders == ("/a/inc", "/b/inc")
    assert (command.threads, command.parallel) == (4, 2)


@pytest.mark.parametrize(
    ("flags", "parallel"),
    [
        ("-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90", 1),
        ("-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -t 2", 2),
        ("-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -t0", 2),
        ("-arch=sm_120a --threads 32", 1),
        ("-gencode=arch=compute_120f,code=sm_120f --threads=32", 1),
    ],
)
def test_threads_never_exceed_the_targets(flags: str, parallel: int) -> None:
    assert parse(["nvcc", *flags.split(), "-c", "a.cu"], "/").parallel == parallel


def test_wrappers_before_the_compiler_are_skipped() -> None:
    assert parse(["/usr/bin/ccache", "g++", "-c", "a.cpp"], "/w").compiler == "g++"


def test_response_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "includes.rsp").write_text('-I"/x/with space" -isystem=/y')
    (tmp_path / "more.rsp").write_text("-c a.cu")
    command = parse(["nvcc", "--options-file", "includes.rsp", "@more.rsp"], str(tmp_path))
    assert command.include_folders == ("/x/with space", "/y")
    assert command.source == str(tmp_path / "a.cu")


def test_only_flags_that_change_the_cost_change_the_variant() -> None:
    base = parse(["nvcc", "-O3", "-c", "a.cu"], "/").variant
    assert parse(["nvcc", "-O3", "-DX", "-I/z", "-c", "a.cu", "-o", "b.o"], "/").variant == base
    assert parse(["nvcc", "-O3", "-G", "-c", "a.cu"], "/").variant != base
    assert parse(["nvcc", "-O0", "-c", "a.cu"], "/").variant != base


def test_a_line_without_a_source_is_no_failure() -> None:
    assert parse([], "/").source == ""
    assert parse(["ld", "-o", "a.so", "a.o"], "/w").source == ""
    assert parse(["nvcc", "--options-file", "/no/such.rsp", "-o"], "/").source == ""
