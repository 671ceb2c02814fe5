"""Lean headers: fewer declarations, the same device code. A miniature stands for torch, with real nvcc and gcc."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sm120_wheels import headers
from sm120_wheels.toolchain.cuda import CudaToolkit
from sm120_wheels.wheel.reproducible import reproducible_build

#: The library's own headers, each in the shape of torch's: what includes what, and what needs what.
TORCH = """
== ATen/core/IListRef.h
#define HAS_LISTS
namespace at { struct ITensorListRef { bool empty() const; Tensor front() const; }; }
== ATen/core/Tensor.h
namespace at {
struct Tensor { int device; bool defined() const { return true; } };
struct ITensorListRef;
void stack(const ITensorListRef&);
}
== ATen/Dispatch.h
#define AT_DISPATCH(F) F()
== c10/core/DeviceGuard.h
== c10/core/ScalarType.h
== ATen/DeviceGuard.h
#include <ATen/core/Tensor.h>
#include <ATen/core/IListRef.h>
namespace at {
inline int device_of(const Tensor& t) { return t.defined() ? t.device : -1; }
inline int device_of(const ITensorListRef& t) { return t.empty() ? -1 : device_of(t.front()); }
}
== ATen/ops/empty.h
#include <ATen/core/Tensor.h>
namespace at { inline Tensor empty() { return {}; } }
== ATen/ops/sum.h
== ATen/Functions.h
#define HAS_ALL_OPERATORS
#include <ATen/ops/empty.h>
== ATen/ATen.h
#include <ATen/DeviceGuard.h>
#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
== torch/library.h
#define TORCH_LIBRARY(NAME) int NAME;
== torch/types.h
#include <ATen/ATen.h>
#ifdef AT_PER_OPERATOR_HEADERS
#include <ATen/ops/empty.h>
#else
#include <ATen/Functions.h>
#endif
#include <torch/library.h>
namespace torch { using namespace at; }
== torch/nn.h
#define HAS_MODULES
== torch/all.h
#include <torch/nn.h>
#include <torch/types.h>
"""
KERNEL = """
#include <torch/all.h>
template <typename T> __global__ void scale(T* p, T by) { p[blockIdx.x * blockDim.x + threadIdx.x] *= by; }
int run(torch::Tensor t, float* p) {
  auto made = torch::empty();
  scale<float><<<1, 32>>>(p, 2.f);
  scale<double><<<1, 32>>>(nullptr, 2.);
  return at::device_of(t) + made.device;
}
"""


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    root = tmp_path / "torch headers"
    for part in TORCH.split("== ")[1:]:
        name, _, text = part.partition("\n")
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"#pragma once\n{text}")
    return root


def host(torch: Path, text: str, *, lean: bool = True) -> str:
    """What gcc makes of a source: its complaint, or nothing."""
    first = ["-I", str(headers.folder("torch"))] if lean else []
    done = subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", "-x", "c++", *first, "-isystem", str(torch), "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or "error" in done.stderr
    return done.stderr


def test_what_kernels_use_is_there_and_what_is_costly_is_not(torch: Path) -> None:
    all_h = "#include <torch/all.h>\n"
    used = all_h + "int f(torch::Tensor t) { return at::device_of(t) + torch::empty().device; }\n"
    assert host(torch, used) == host(torch, used, lean=False) == ""
    for name in ("HAS_ALL_OPERATORS", "HAS_MODULES", "HAS_LISTS", "TORCH_LIBRARY"):
        text = f"{all_h}#ifdef {name}\n#error {name}\n#endif\n"
        assert host(torch, text) == ""
        assert f"#error {name}" in host(torch, text, lean=False)


@pytest.mark.parametrize("order", [("torch/all.h", "{}"), ("{}", "torch/all.h")], ids=["after", "before"])
@pytest.mark.parametrize(
    ("header", "macro"),
    [("torch/library.h", "TORCH_LIBRARY"), ("ATen/core/IListRef.h", "HAS_LISTS"), ("torch/nn.h", "HAS_MODULES")],
)
def test_a_source_that_names_a_header_gets_the_whole_of_it(
    torch: Path, order: tuple[str, str], header: str, macro: str
) -> None:
    text = "#include <ATen/core/Tensor.h>\n"
    text += "".join(f"#include <{name.format(header)}>\n" for name in order)
    assert host(torch, f"{text}#ifndef {macro}\n#error missing\n#endif\n") == ""


def test_a_source_that_needs_more_is_refused_by_the_compiler(torch: Path) -> None:
    text = "#include <torch/all.h>\nint f(const at::ITensorListRef& t) { return at::device_of(t); }\n"
    assert host(torch, text, lean=False) == ""
    assert "no matching function" in host(torch, text)


def test_the_vector_extensions_are_left_out_but_the_clock_is_there(torch: Path) -> None:
    clock = "#include <x86intrin.h>\nunsigned long long f() { return __rdtsc(); }\n"
    assert host(torch, clock) == ""
    assert host(torch, clock + "#include <immintrin.h>\nusing wide = __m256;\n") == ""


def test_an_unknown_set_is_refused() -> None:
    assert headers.names() == ["torch"]
    with pytest.raises(ValueError, match="no lean headers 'torhc'"):
        headers.folder("torhc")


def arguments(tmp_path: Path, *command: str, first: tuple[Path, ...]) -> list[str]:
    """What a compiler behind stable-compile.sh is given."""
    how = reproducible_build(
        source_root=tmp_path / "src", build_root=tmp_path / "b", source_date_epoch=0, before_includes=first
    )
    for name in ("nvcc", "g++"):
        (tmp_path / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [*how.launcher, str(tmp_path / command[0]), *command[1:]],
        env={**os.environ, **how.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_folder_stands_before_every_other_include_folder_of_nvcc(tmp_path: Path) -> None:
    lean = tmp_path / "a folder"
    rest = ("-I/x", "-D A=b c", "-c", "a.cu", "-o", "a.o")
    assert arguments(tmp_path, "nvcc", *rest, first=(lean,))[:7] == [f"-I{lean}", *rest]
    assert arguments(tmp_path, "nvcc", *rest, first=())[:6] == list(rest)


def test_host_compiles_and_links_keep_the_librarys_own_headers(tmp_path: Path) -> None:
    lean = tmp_path / "lean"
    assert f"-I{lean}" not in arguments(tmp_path, "g++", "-c", "a.cc", "-o", "a.o", first=(lean,))
    assert arguments(tmp_path, "nvcc", "a.o", "-o", "a.so", first=(lean,)) == ["a.o", "-o", "a.so"]


@pytest.mark.cuda
@pytest.mark.network
def test_device_code_is_the_same_with_and_without(torch: Path, tmp_path: Path, pypi_cuda: CudaToolkit) -> None:
    (tmp_path / "k.cu").write_text(KERNEL)
    cubins = []
    nvcc = [str(pypi_cuda.root / "bin" / "nvcc"), "-std=c++17", "-cubin", "-arch=sm_120a"]
    for first in ((), ("-I", str(headers.folder("torch")))):
        command = [*nvcc, *first, "-isystem", str(torch), "-o", "k.cubin", "k.cu"]
        subprocess.run(command, cwd=tmp_path, check=True)
        cubins.append((tmp_path / "k.cubin").read_bytes())
    assert cubins[0] == cubins[1]
    assert len(cubins[0]) > 1000
