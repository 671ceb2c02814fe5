"""Small GPU binaries made by the real nvcc, once for the test run, and ways to pack and judge them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm120_wheels import cli
from sm120_wheels.toolchain.cuda import CudaToolkit
from tests.wheel.conftest import RawWheel
from tests.wheel.conftest import compile_library as compile_library
from tests.wheel.conftest import empty_library as empty_library
from tests.wheel.conftest import extension as extension
from tests.wheel.conftest import raw_wheel as raw_wheel

KERNELS = """
__constant__ float table[16];
__global__ void add(float *a, const float *b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) a[i] += b[i] * table[n & 15];
}
static __global__ void hidden(float *a) { a[threadIdx.x] = 1; }
namespace { __global__ void unnamed(float *a) { a[threadIdx.x] = 2; } }
template <int N> __global__ void __launch_bounds__(64) filled(float *a) {
  __shared__ float s[N]; s[threadIdx.x] = a[threadIdx.x]; __syncthreads(); a[threadIdx.x] = s[N - 1 - threadIdx.x];
}
void launch(float *a, float *b) {
  add<<<1, 32>>>(a, b, 3); hidden<<<1, 1>>>(a); unnamed<<<1, 1>>>(a); filled<64><<<1, 64>>>(a);
}
"""

#: Each kernel works on sm_90; on sm_120a the first four are traps, each of another kind. The rest only look so.
TRAPS = """
#include <cassert>
#include <cstdio>
#if __CUDA_ARCH__ >= 1200
#define LIVE 0
#else
#define LIVE 1
#endif
__global__ void guarded(float *a) {
  if (LIVE) { a[0] = 1; }
  else { printf("Attempting to use TMEM allocation PTX without CUTE_ARCH_TCGEN05_TMEM_ENABLED"); __brkpt(); a[1] = 2; }
}
__global__ void reporting(float *a) { if (LIVE) a[0] = 1; else { printf("made for\\nanother GPU"); __trap(); } }
__global__ void aborting(float *a) { if (LIVE) a[0] = 1; else __trap(); }
__global__ void silent(float *a) { if (LIVE) a[0] = 1; }
__device__ __noinline__ float helper(float x) {
  if (!LIVE && x > 3) { printf("Trying to use tma without CUTE_ARCH_TMA_SM90_ENABLED."); __brkpt(); }
  return x * 2;
}
__global__ void through_a_call(float *a) { a[0] = helper(a[1]); }

__global__ void checks_its_input(float *a, int n) { assert(n < 4 && "n is too large"); a[n] = 2; }
__global__ void only_asserts(const float *a) { assert(a[0] != 0); }
__global__ void prints_sometimes(float *a, int n) { if (n == 77) printf("seen %d\\n", n); a[n] = 2; }
__global__ void nothing_anywhere(float *a) {}
namespace cub { template <typename T> __global__ void EmptyKernel() {} }
template __global__ void cub::EmptyKernel<void>();
"""

#: As PyTorch does it: a variant for other GPUs is compiled for all, and which one is launched is decided at run time.
TORCH = """
#include <cstdio>
template <int N> __global__ void vectorized_elementwise_kernel(float *a) {
  if (N < 8) a[threadIdx.x] = N;
#if __CUDA_ARCH__ / 100 == 9
  else a[threadIdx.x] = 8;
#else
  else { printf("This kernel supports only sm_90 and sm_10x"); __trap(); }
#endif
}
void launch(float *a, bool wide) {
  if (wide) vectorized_elementwise_kernel<8><<<1, 1>>>(a); else vectorized_elementwise_kernel<4><<<1, 1>>>(a);
}
"""

#: A kernel that prints, alone and behind another one: the address of its string lies elsewhere in the table.
SPEAKING = """
#include <cstdio>
#ifdef MORE
__global__ void louder(float *a) { printf("another %f\\n", a[0]); a[2] = 1; }
#endif
__global__ void speaks(float *a) { printf("a is %f\\n", a[0]); a[1] = 1; }
"""

#: Every target whose note in a cubin is read, in the order that nvcc is given them.
TARGETS = ("80", "90", "90a", "100a", "100f", "103a", "120a", "120f", "121a", "121f")


def gencode(*targets: str) -> list[str]:
    """``90`` makes machine code, ``compute_90`` makes PTX."""
    return [
        f"-gencode=arch=compute_{t.removeprefix('compute_')},code={t if t.startswith('compute_') else 'sm_' + t}"
        for t in targets
    ]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Folder of compiled samples, by file name."""

    folder: Path
    toolkit: CudaToolkit

    def __getitem__(self, name: str) -> Path:
        path = self.folder / name
        assert path.is_file(), name
        return path

    def tool(self, name: str, *arguments: str | Path) -> str:
        """What cuobjdump or nvdisasm says."""
        program = self.toolkit.root / "bin" / name
        return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="session")
def samples(pypi_cuda: CudaToolkit, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """All samples, compiled two at a time."""
    folder = tmp_path_factory.mktemp("samples")
    (folder / "kernels.cu").write_text(KERNELS)
    (folder / "changed.cu").write_text(KERNELS.replace("a[threadIdx.x] = 1;", "a[threadIdx.x] = 5;"))
    (folder / "traps.cu").write_text(TRAPS)
    (folder / "speaking.cu").write_text(SPEAKING)
    (folder / "torch.cu").write_text(TORCH)
    elsewhere = folder / "elsewhere"  # the same file name in another folder: another hash in names
    elsewhere.mkdir()
    (elsewhere / "kernels.cu").write_text(KERNELS)
    shared = ("-shared", "-Xcompiler", "-fPIC", "-cudart", "shared", f"-L{pypi_cuda.root / 'lib64'}")
    commands: list[tuple[str, ...]] = [
        ("-fatbin", *gencode(*TARGETS, "compute_120f"), "-o", "targets.fatbin", "kernels.cu"),
        ("-cubin", "-arch=sm_120", "-o", "plain.cubin", "kernels.cu"),  # nvcc takes either 120 or 120f at a time
        (*shared, *gencode("90", "120a"), "-o", "libmulti.so", "kernels.cu"),
        (*shared, *gencode("90", "120a"), "-o", "libtraps.so", "traps.cu"),
        (*shared, *gencode("120f"), "-o", "libfamily.so", "kernels.cu"),
        (*shared, *gencode("120a"), "-o", "libonly.so", "kernels.cu"),
        (*shared, *gencode("compute_80"), "-o", "libptx.so", "kernels.cu"),
        (*shared, *gencode("90a"), "-o", "libhopper.so", "kernels.cu"),
        (*shared, *gencode("90", "120"), "-o", "libtorch_cuda.so", "torch.cu"),
        ("-c", *gencode("120a"), "-o", "changed.o", "changed.cu"),
        ("-cubin", "-arch=sm_120a", "-o", "speaks.cubin", "speaking.cu"),
        ("-cubin", "-arch=sm_120a", "-DMORE", "-o", "speaks_more.cubin", "speaking.cu"),
        ("-c", *gencode("90", "120a"), "-o", "elsewhere.o", "elsewhere/kernels.cu"),
        ("-c", "-rdc=true", *gencode("120a"), "-o", "linkable.o", "kernels.cu"),
        *(
            ("-fatbin", f"--compress-mode={mode}", *gencode("120a", "compute_90"), "-o", f"{mode}.fatbin", "kernels.cu")
            for mode in ("none", "speed", "size")
        ),
    ]

    def compile_one(arguments: tuple[str, ...]) -> None:
        done = subprocess.run(
            [pypi_cuda.nvcc, "-ccbin", pypi_cuda.host_compiler.path, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}\n{done.stderr}"

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, commands))
    return Samples(folder=folder, toolkit=pypi_cuda)


@dataclass(frozen=True, kw_only=True)
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def sm120(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs the command line in this process: exit code, stdout, stderr."""

    def run(*arguments: str | Path) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([str(a) for a in arguments])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Said(code=ended.value.code, out=said.out, err=said.err)

    return run


@pytest.fixture
def packed(tmp_path: Path) -> Callable[..., Path]:
    """Packs libraries into a wheel: member name to file or bytes."""

    def pack(members: dict[str, Path | bytes], *, name: str = "tiny", version: str = "0.1") -> Path:
        files = {n: d if isinstance(d, bytes) else d.read_bytes() for n, d in members.items()}
        return RawWheel(name=name, version=version, files=files).write(tmp_path)

    return pack
