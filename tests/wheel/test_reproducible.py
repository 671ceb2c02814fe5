from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sm120_wheels.toolchain.cuda import CudaToolkit
from sm120_wheels.wheel.reproducible import Reproducible, reproducible_build

KERNELS = """
#include <cassert>
#include <cstdio>
#include "shared.h"
static __device__ int counter;
static __global__ void bump(int *p) { assert(p); atomicAdd(&counter, 1); *p = counter; }
namespace {
__constant__ float table[4];
template <typename T> __global__ void scale(T *p) { p[threadIdx.x] *= table[threadIdx.x & 3]; }
}
__global__ void open_to_all(int *p) { *p = helper(*p); }
extern "C" void launch(int *p, float *q) {
  bump<<<1, 1>>>(p);
  scale<float><<<1, 32>>>(q);
  open_to_all<<<1, 1>>>(p);
  std::printf("%s %s %s\\n", __FILE__, __DATE__, __TIME__);
}
"""
#: Nothing with external linkage: nvcc names such a file's symbols after its own process id.
CLOSED = """
#include <cstdio>
namespace {
__global__ void hidden(int *p) { *p = 1; }
struct AtLoad { AtLoad() { hidden<<<1, 1>>>(nullptr); std::puts(__FILE__); } } at_load;
}
"""
HOST = '#include "shared.h"\nextern "C" const char *built() { return __FILE__ __DATE__ __TIME__; }\n'
HEADER = """#pragma once
#include <cassert>
#ifdef __CUDACC__
__device__ inline int helper(int x) { assert(x > 0); return x + 1; }
#endif
"""


def sources(root: Path) -> Path:
    folder = root / "sources"
    folder.mkdir(parents=True)
    for name, text in {"kernels.cu": KERNELS, "closed.cu": CLOSED, "host.cpp": HOST, "shared.h": HEADER}.items():
        (folder / name).write_text(text)
    (root / "objects").mkdir()
    return root


def made(root: Path) -> Reproducible:
    return reproducible_build(
        source_root=root / "sources", build_root=root / "objects", source_date_epoch=1_700_000_000
    )


def compiled(root: Path, compiler: str, source: str, *options: str, stable: bool = True) -> bytes:
    """Compiles as ninja does: in the build folder, the source as an absolute path."""
    how = made(root)
    environment = {**os.environ, **(how.environment if stable else {})}
    launcher = how.launcher if stable else ()
    target = f"{source}.o"
    command = [*launcher, compiler, *options, "-c", str(root / "sources" / source), "-o", target]
    subprocess.run(command, cwd=root / "objects", env=environment, check=True)
    return (root / "objects" / target).read_bytes()


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    return sources(tmp_path / "one"), sources(tmp_path / "another, and longer, folder")


def test_host_code_compiled_in_two_folders_is_the_same(roots: tuple[Path, Path]) -> None:
    first, second = (compiled(root, "g++", "host.cpp", "-O2", "-g", "-fPIC") for root in roots)
    assert first == second


def test_host_code_differs_without_these_options(roots: tuple[Path, Path]) -> None:
    first, second = (compiled(root, "g++", "host.cpp", "-O2", "-g", "-fPIC", stable=False) for root in roots)
    assert first != second


def test_what_is_no_compile_passes_unchanged(roots: tuple[Path, Path], tmp_path: Path) -> None:
    how = made(roots[0])
    shown = tmp_path / "g++"
    shown.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    shown.chmod(0o755)
    for arguments in (["--version"], ["-c", "a.cpp"], ["a.o", "-o", "a b.so"], ["-E", "a.cpp", "-o", "a.i"]):
        said = subprocess.run(
            [*how.launcher, shown, *arguments], env={**os.environ, **how.environment}, check=True, capture_output=True
        )
        assert said.stdout.decode() == "|".join(arguments) + "|"


def test_a_compiler_behind_other_launchers_is_recognised(roots: tuple[Path, Path], tmp_path: Path) -> None:
    how = made(roots[0])
    for name in ("sccache", "nvcc"):
        (tmp_path / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (tmp_path / name).chmod(0o755)
    objects = roots[0] / "objects"
    command: list[str | Path] = [
        *how.launcher,
        tmp_path / "sccache",
        tmp_path / "nvcc",
        "-c",
        "a.cu",
        "-o",
        objects / "sub/a.cu.o",
    ]
    said = subprocess.run(command, env={**os.environ, **how.environment}, check=True, capture_output=True, text=True)
    added = said.stdout.splitlines()[5:]
    assert "-frandom-seed=sub/a.cu.o" in added, "named below the build folder, not by an absolute path"
    assert added[-2:] == ["-Xcudafe", "--orig_src_path_name=sub/a.cu.o"]
    assert f'-Xcompiler=-ffile-prefix-map="{roots[0]}/sources"=src' in added
    assert "-objtemp" not in added, "sccache loses the object with it"
    assert "-Xcompiler=-no-integrated-cpp" in added


#: The whole body of a function from a macro of a system header, as in CUDA's crt/host_runtime.h.
BODY = "#define BODY(p) { volatile static void **ref; ref = (volatile void **)p; }\nstatic void f(void *p) BODY(p)\n"


def test_behind_sccache_preprocessed_text_and_source_give_the_same_object(tmp_path: Path) -> None:
    """A builder of sccache-dist compiles the one, this machine the other."""
    (tmp_path / "system").mkdir()
    (tmp_path / "system/body.h").write_text(BODY)
    (tmp_path / "a.cpp").write_text("#include <body.h>\nvoid (*p)(void *) = &f;\n")
    how = reproducible_build(source_root=tmp_path, build_root=tmp_path, source_date_epoch=0)
    (tmp_path / "sccache").write_text('#!/bin/sh\nexec "$@"\n')
    (tmp_path / "sccache").chmod(0o755)

    def objects(*front: str) -> list[bytes]:
        found = []
        for source in ("a.cpp", "a.ii"):
            command = [*front, "g++", "-isystem", "system", "-c", source, "-o", "a.o"]
            subprocess.run(command, cwd=tmp_path, env={**os.environ, **how.environment}, check=True)
            found.append((tmp_path / "a.o").read_bytes())
        return found

    preprocess = ["g++", "-isystem", "system", "-E", "a.cpp", "-o", "a.ii"]
    subprocess.run(preprocess, cwd=tmp_path, check=True)
    source, text = objects(*how.launcher, str(tmp_path / "sccache"))
    assert source == text


@pytest.mark.parametrize("compiler", ["nvcc", "g++"])
def test_an_object_that_cmake_names_after_the_whole_path_of_its_source_has_a_name_without_it(
    tmp_path: Path, compiler: str
) -> None:
    shown = tmp_path / compiler
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    shown.chmod(0o755)
    for top in ("/home/me/b", "/a longer, one/b"):
        how = reproducible_build(source_root=Path(top, "src"), build_root=Path(top, "c"), source_date_epoch=0)
        target = f"x.dir{top.replace(' ', '_')}/src/other/norm.cu.o"
        command = [*how.launcher, str(shown), "-c", f"{top}/src/other/norm.cu", "-o", target]
        said = subprocess.run(
            command, env={**os.environ, **how.environment}, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        assert target in said, "the object lies where the build tool wants it"
        assert "-frandom-seed=x.dir/src/other/norm.cu.o" in said
        if compiler == "nvcc":
            assert said[-1] == "--orig_src_path_name=x.dir/src/other/norm.cu.o"


@pytest.mark.parametrize("compiler", ["nvcc", "g++"])
def test_a_seed_that_the_project_gives_is_kept_and_not_given_twice(
    roots: tuple[Path, Path], tmp_path: Path, compiler: str
) -> None:
    how = made(roots[0])
    shown = tmp_path / compiler
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    shown.chmod(0o755)
    command: list[str | Path] = [*how.launcher, shown, "-frandom-seed=own", "-c", "a.cu", "-o", "a.o"]
    said = subprocess.run(command, env={**os.environ, **how.environment}, check=True, capture_output=True, text=True)
    assert [word for word in said.stdout.splitlines() if "random-seed" in word] == ["-frandom-seed=own"]


def test_an_old_nvcc_gets_the_seed_for_its_host_compiler_only(tmp_path: Path) -> None:
    how = reproducible_build(source_root=tmp_path, build_root=tmp_path / "b", source_date_epoch=0, nvcc=(12, 8))
    assert how.environment["SM120_STABLE_NVCC_SEED"] == "-Xcompiler=-frandom-seed"


def test_inner_folders_are_mapped_after_outer_ones(tmp_path: Path) -> None:
    inner = tmp_path / "src/third/party"
    how = reproducible_build(
        source_root=tmp_path / "src", build_root=tmp_path / "b", source_date_epoch=0, others={inner: "party"}
    )
    flags = how.environment["SM120_STABLE_HOST_FLAGS"].splitlines()
    assert flags[-1] == f"-ffile-prefix-map={inner}=party"


GENCODE = ("-gencode=arch=compute_120a,code=sm_120a", "-std=c++17", "-O2", "-Xcompiler=-fPIC")


@pytest.fixture(scope="module")
def nvcc(pypi_cuda: CudaToolkit) -> str:
    return str(pypi_cuda.nvcc)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, nvcc: str) -> tuple[Path, Path]:
    """Both files of kernels compiled and linked in two folders."""
    made_in = tmp_path_factory.mktemp("reproducible")
    both = sources(made_in / "one"), sources(made_in / "another, and longer, folder")
    for root in both:
        for source in ("kernels.cu", "closed.cu"):
            compiled(root, nvcc, source, *GENCODE)
        link = ["g++", "-shared", "kernels.cu.o", "closed.cu.o", "-o", "ops.so", *made(root).ldflags]
        subprocess.run(link, cwd=root / "objects", check=True)
    return both


@pytest.mark.cuda
@pytest.mark.network
@pytest.mark.parametrize("name", ["kernels.cu.o", "closed.cu.o", "ops.so"])
def test_kernels_built_in_two_folders_are_the_same(built: tuple[Path, Path], name: str) -> None:
    first, second = ((root / "objects" / name).read_bytes() for root in built)
    assert first == second
    assert str(built[0]).encode() not in first, "no path of the build is left inside"


@pytest.mark.cuda
@pytest.mark.network
def test_temporary_files_beside_the_objects_are_removed_again(built: tuple[Path, Path]) -> None:
    left = {p.name for p in (built[0] / "objects").iterdir()}
    assert left == {"kernels.cu.o", "closed.cu.o", "ops.so"}


@pytest.mark.cuda
@pytest.mark.network
def test_two_architectures_compiled_at_once_are_the_same(roots: tuple[Path, Path], nvcc: str) -> None:
    options = (*GENCODE, "-gencode=arch=compute_90a,code=sm_90a", "--threads=2")
    first, second = (compiled(root, nvcc, "closed.cu", *options) for root in roots)
    assert first == second


@pytest.mark.cuda
@pytest.mark.network
def test_kernels_built_in_two_folders_differ_without_these_options(built: tuple[Path, Path], nvcc: str) -> None:
    """Also within one folder: the second compile has another process id."""
    root = built[1]
    first, second = (compiled(root, nvcc, "closed.cu", *GENCODE, stable=False) for _ in range(2))
    assert first != second
