"""The mechanism of the patches that leave out other GPU families' kernels, on a source of the same shape.

CMake's part and the header are taken from the patch itself; only what the patched sources do with them is imitated,
since upstream's sources are not at hand here. docs/evidence/lean.md has the same check on real translation units.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from unidiff.patch import PatchSet

from sm120_wheels import patch
from sm120_wheels.arch import Arch
from sm120_wheels.paths import cache_root
from sm120_wheels.prove import inputs
from sm120_wheels.prove.audit import audit
from sm120_wheels.prove.equivalence import compare
from sm120_wheels.toolchain.cuda import CudaToolkit
from sm120_wheels.toolchain.locks import LockRequest, lock_path
from sm120_wheels.toolchain.pyenv import ensure_environment

pytestmark = [pytest.mark.cuda, pytest.mark.network]

_CACHE = cache_root()
VERSIONS = ("0.4.4", "0.4.5", "0.3.21")

#: One op with kernels of two families, chosen by compute capability at run time; the SM90 kernel's body is guarded as
#: CUTLASS guards its own. Compiled with -DPATCHED it looks at the families as the patched sources do.
DISPATCH = """
#include <cstdio>
#ifdef PATCHED
#include "arch_families.h"
#endif
struct Sm90 {
  static __device__ void run(float *a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    a[threadIdx.x] = 90;
#else
    printf("Trying to use tma without CUTE_ARCH_TMA_SM90_ENABLED."); __brkpt();
#endif
  }
};
struct Sm120 { static __device__ void run(float *a) { a[threadIdx.x] *= 120; } };
template <typename Family> __global__ void device_kernel(float *a) { Family::run(a); }

void scaled_mm(float *a, int sm_version) {
#ifndef SGL_KERNEL_DISABLE_SM120
  if (sm_version >= 120) { device_kernel<Sm120><<<1, 32>>>(a); return; }
#endif
#ifndef SGL_KERNEL_DISABLE_SM90
  if (sm_version >= 90 && sm_version < 100) { device_kernel<Sm90><<<1, 32>>>(a); return; }
#endif
#ifdef PATCHED
  throwOpNotSupported("scaled_mm", "compute capability 9.0 and 12.x");
#endif
}
#ifdef MAIN
int main() { try { scaled_mm(nullptr, 75); } catch (const std::exception &e) { puts(e.what()); return 3; } return 0; }
#endif
"""

#: As much of PyTorch as the header asks for.
C10 = """#pragma once
#include <sstream>
#include <stdexcept>
namespace c10 { template <typename... T> std::string str(const T &...t) { std::ostringstream s; (s << ... << t); return s.str(); } }
#define C10_THROW_ERROR(type, text) throw std::runtime_error(std::string(#type ": ") + (text))
"""  # noqa: E501


def lean_patches(version: str) -> list[patch.Patch]:
    chosen = patch.select(patch.discover("sgl-kernel"), version, VERSIONS)
    return [p for p in chosen if "SGL_KERNEL_DISABLE_" in p.path.read_text(encoding="utf-8") and p.path.name > "0009"]


def added_lines(path: str) -> str:
    """What the first of the patches adds to a file."""
    (found,) = [f for f in PatchSet(lean_patches("0.4.4")[0].path.read_text(encoding="utf-8")) if f.path == path]
    return "".join(line.value for hunk in found for line in hunk if line.is_added)


@pytest.fixture(scope="session")
def cmake() -> Path:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    lock = LockRequest(path=lock_path("build-cmake3"))
    return ensure_environment(python, [lock], cache_root=_CACHE, offline=False, need_headers=True).bin / "cmake"


def flags_for(targets: str, cmake: Path, folder: Path) -> list[str]:
    """The flags that CMake adds for a list of targets."""
    script = folder / "families.cmake"
    script.write_text(added_lines("sgl-kernel/CMakeLists.txt") + 'message("${SGL_KERNEL_CUDA_FLAGS}")\n')
    done = subprocess.run(
        [cmake, f"-DSGL_KERNEL_CUDA_ARCHS={targets}", "-P", script], check=True, capture_output=True, text=True
    )
    return [flag for flag in done.stderr.strip().split(";") if flag]


@pytest.mark.parametrize(
    ("targets", "disabled"),
    [
        ("", []),
        ("120a", ["BELOW_SM90", "SM90", "SM100"]),
        ("120f", ["BELOW_SM90", "SM90", "SM100"]),
        ("121a", ["BELOW_SM90", "SM90", "SM100"]),
        ("90a", ["BELOW_SM90", "SM100", "SM120"]),
        ("90a;120a", ["BELOW_SM90", "SM100"]),
        ("80;100a;103a", ["SM90", "SM120"]),
        ("89;90;110a;120a", []),
    ],
)
def test_families_without_a_target_are_left_out(targets: str, disabled: list[str], cmake: Path, tmp_path: Path) -> None:
    assert flags_for(targets, cmake, tmp_path) == [f"-DSGL_KERNEL_DISABLE_{family}" for family in disabled]


def compiled(name: str, toolkit: CudaToolkit, folder: Path, *flags: str) -> Path:
    (folder / "dispatch.cu").write_text(DISPATCH)
    (folder / "arch_families.h").write_text(added_lines("sgl-kernel/include/arch_families.h"))
    (folder / "c10/util").mkdir(parents=True, exist_ok=True)
    (folder / "c10/util/Exception.h").write_text(C10)
    (folder / "c10/util/StringUtil.h").write_text(C10)
    ccbin = f"-ccbin={toolkit.host_compiler.path}"
    command = [str(toolkit.nvcc), ccbin, "-std=c++17", "-I.", *flags, "-o", name, "dispatch.cu"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / name


def kernels_and_traps(path: Path, capability: tuple[int, int]) -> tuple[set[str], set[str]]:
    (library,) = audit(inputs.subject(str(path)), [capability]).libraries
    family = re.compile(r"Sm\d+")
    kernels = {found.group() for i in library.images for k in i.kernels if (found := family.search(k))}
    return kernels, {found.group() for i in library.images for t in i.traps if (found := family.search(t.kernel))}


def test_without_the_patch_the_trap_is_back_and_with_it_the_other_kernel_is_the_same(
    pypi_cuda: CudaToolkit, cmake: Path, tmp_path: Path
) -> None:
    target = "-gencode=arch=compute_120a,code=sm_120a"
    before = compiled("before.o", pypi_cuda, tmp_path, "-c", target)
    lean = compiled("lean.o", pypi_cuda, tmp_path, "-c", target, "-DPATCHED", *flags_for("120a", cmake, tmp_path))
    assert kernels_and_traps(before, (12, 0)) == ({"Sm90", "Sm120"}, {"Sm90"})
    assert kernels_and_traps(lean, (12, 0)) == ({"Sm120"}, set())

    same = compare(
        inputs.subject(str(lean)), inputs.subject(str(before)), Arch.parse("sm_120a"), allow_missing=["*Sm90*"]
    )
    assert same.holds
    assert (same.count("identical"), same.count("missing")) == (1, 1)


def test_a_build_for_hopper_keeps_only_its_own(pypi_cuda: CudaToolkit, cmake: Path, tmp_path: Path) -> None:
    flags = flags_for("90a", cmake, tmp_path)
    lean = compiled("hopper.o", pypi_cuda, tmp_path, "-c", "-gencode=arch=compute_90a,code=sm_90a", "-DPATCHED", *flags)
    assert kernels_and_traps(lean, (9, 0)) == ({"Sm90"}, set())


def test_an_op_without_a_kernel_says_what_supports_it(pypi_cuda: CudaToolkit, cmake: Path, tmp_path: Path) -> None:
    libraries = pypi_cuda.root / "lib64"
    flags = ("-DPATCHED", "-DMAIN", "-cudart", "shared", f"-L{libraries}", *flags_for("120f", cmake, tmp_path))
    program = compiled("program", pypi_cuda, tmp_path, "-gencode=arch=compute_120f,code=sm_120f", *flags)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout.strip() == (
        "NotImplementedError: scaled_mm has no kernel for this GPU (compute capability unknown): it is implemented for "
        "compute capability 9.0 and 12.x. This sgl-kernel was compiled for SM120."
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_each_patch_says_which_kernels_it_removes(version: str) -> None:
    found = lean_patches(version)
    assert len(found) >= 8
    for one in found:
        assert re.search(r"^Kernels removed", one.path.read_text(encoding="utf-8"), re.M), one.name
