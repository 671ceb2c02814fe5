"""The CUDA toolkit: assembled from the index it compiles and links as the real one; the system's is checked."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from sm120_wheels.errors import CudaVersionError, ToolMissingError, UnknownCudaError
from sm120_wheels.toolchain.cuda import (
    CudaToolkit,
    cuda_locks,
    ensure_cuda,
    index_releases,
    missing_pieces,
    system_toolkits,
)
from sm120_wheels.toolchain.locks import LockRequest, lock_path
from sm120_wheels.toolchain.pyenv import ensure_environment

real = [pytest.mark.cuda, pytest.mark.network]

KERNEL = """
#include <cuda.h>
#include <nvml.h>
#include <cuda/std/array>
__global__ void scale(float *x) { x[threadIdx.x] *= 2.0f; }
extern "C" int go() { scale<<<1, 32>>>(nullptr); nvmlInit(); return cuInit(0); }
"""

CMAKE = """
cmake_minimum_required(VERSION 3.26)
project(proof LANGUAGES CXX CUDA)
find_package(CUDAToolkit 13.0 EXACT REQUIRED)
message(STATUS "toolkit version ${CUDAToolkit_VERSION}")
add_library(proof SHARED proof.cu)
target_link_libraries(proof PRIVATE CUDA::cudart CUDA::cuda_driver CUDA::nvml CUDA::nvtx3)
"""


def fake_toolkit(root: Path, version: str) -> Path:
    """A folder whose nvcc only says its version."""
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "nvcc.profile").touch()
    nvcc = root / "bin" / "nvcc"
    release = ".".join(version.split(".")[:2])
    nvcc.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {release}, V{version}"\n')
    nvcc.chmod(0o755)
    return root


def ensure_system(version: str, tmp_path: Path, cuda_home: Path | None = None) -> CudaToolkit:
    return ensure_cuda(
        version, cache_root=tmp_path, offline=True, source="system", cuda_home=cuda_home, need=("compiler",)
    )


class TestFromTheIndex:
    pytestmark = real

    def test_nvcc_is_exactly_the_locked_one(self, pypi_cuda: CudaToolkit) -> None:
        assert pypi_cuda.version == "13.0.88"
        assert pypi_cuda.packages["nvidia-cuda-nvcc"] == "13.0.88"

    def test_every_link_is_relative_and_leads_somewhere(self, pypi_cuda: CudaToolkit) -> None:
        links = [path for path in pypi_cuda.root.rglob("*") if path.is_symlink()]
        assert {"lib64", "libcudart.so"} <= {link.name for link in links}
        assert all(link.exists() and not Path(os.readlink(link)).is_absolute() for link in links)

    def test_version_json_is_what_cmake_reads(self, pypi_cuda: CudaToolkit) -> None:
        versions = json.loads((pypi_cuda.root / "version.json").read_text(encoding="utf-8"))
        assert versions["cuda"]["version"] == "13.0.2"
        assert versions["cuda_nvcc"]["version"] == "13.0.88"

    def test_nothing_names_the_place_where_it_was_assembled(self, pypi_cuda: CudaToolkit) -> None:
        texts = [*pypi_cuda.root.rglob("*.cmake"), pypi_cuda.root / "bin" / "nvcc.profile"]
        assert len(texts) > 5
        assert not [p for p in texts if str(pypi_cuda.root.parent) in p.read_text(encoding="utf-8")]

    def test_the_driver_stub_is_the_drivers_soname_and_has_its_functions(self, pypi_cuda: CudaToolkit) -> None:
        stub = pypi_cuda.root / "lib64" / "stubs" / "libcuda.so"
        dynamic = subprocess.run(["readelf", "-d", stub], capture_output=True, text=True, check=True).stdout
        assert "Library soname: [libcuda.so.1]" in dynamic
        symbols = subprocess.run(["nm", "-D", stub], capture_output=True, text=True, check=True).stdout
        assert {"cuInit", "cuTensorMapEncodeTiled", "cuMemAlloc_v2"} <= set(re.findall(r" T (\w+)", symbols))

    @pytest.mark.parametrize("lock", ["build-cmake3", "build-cmake4"])
    def test_cmake_finds_it_and_builds_only_sm_120a(
        self, lock: str, pypi_cuda: CudaToolkit, shared_cache: Path, tmp_path: Path
    ) -> None:
        tools = ensure_environment("3.10", [LockRequest(path=lock_path(lock))], cache_root=shared_cache, offline=False)
        (tmp_path / "CMakeLists.txt").write_text(CMAKE, encoding="utf-8")
        (tmp_path / "proof.cu").write_text(KERNEL, encoding="utf-8")
        compiler = str(pypi_cuda.host_compiler.path)
        env = {
            "PATH": f"{tools.bin}:/usr/bin:/bin",
            "CUDACXX": str(pypi_cuda.nvcc),
            "CUDAHOSTCXX": compiler,
            "CXX": compiler,
        }
        configure: list[str | Path] = [tools.bin / "cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "b"]
        configured = subprocess.run(
            [*configure, "-DCMAKE_CUDA_ARCHITECTURES=120a"], env=env, capture_output=True, text=True, check=False
        )
        assert configured.returncode == 0, configured.stdout + configured.stderr
        assert "toolkit version 13.0.88" in configured.stdout
        built = subprocess.run(["ninja", "-C", tmp_path / "b"], env=env, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stdout
        library = tmp_path / "b" / "libproof.so"
        needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
        assert "[libcuda.so.1]" in needed
        assert "[libnvidia-ml.so.1]" in needed
        cuobjdump = pypi_cuda.root / "bin" / "cuobjdump"
        listed = subprocess.run([cuobjdump, "-lelf", library], capture_output=True, text=True, check=True).stdout
        assert re.findall(r"sm_\w+", listed) == ["sm_120a"]

    def test_asking_again_offline_gives_the_same_folder(self, pypi_cuda: CudaToolkit, shared_cache: Path) -> None:
        again = ensure_cuda("13.0", cache_root=shared_cache, offline=True, source="pypi", need=("tools", "compiler"))
        assert (again.root, again.key) == (pypi_cuda.root, pypi_cuda.key)


def test_the_locks_of_a_need() -> None:
    def names(*need: str) -> list[str]:
        return [request.path.stem for request in cuda_locks("13.0", need)]  # type: ignore[arg-type]

    assert names("compiler") == ["cuda-13.0"]
    assert names("compiler", "libs") == ["cuda-13.0", "cuda-13.0-libs"]
    assert names("libs", "tools") == ["cuda-13.0", "cuda-13.0-libs", "cuda-binary-tools"]


def test_the_index_supplies_the_releases_that_have_locks() -> None:
    assert index_releases() == ["13.0", "13.2"]


def test_an_unknown_version_offers_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownCudaError, match=r"unknown CUDA version '13\.1'") as caught:
        ensure_cuda("13.1", cache_root=tmp_path, offline=True)
    assert "13.0" in caught.value.hint
    assert caught.value.exit_code == 13


@pytest.mark.parametrize("version", ["12.8", "12.9"])
def test_the_index_cannot_supply_12_x_and_the_error_says_what_it_lacks(version: str, tmp_path: Path) -> None:
    with pytest.raises(ToolMissingError, match=f"no CUDA {version} toolkit") as caught:
        ensure_cuda(version, cache_root=tmp_path, offline=False, source="pypi")
    assert "cudafe++" in caught.value.why
    assert f"cuda-toolkit-{version.replace('.', '-')}" in caught.value.hint
    assert caught.value.exit_code == 40


def test_an_nvcc_of_another_version_is_refused(tmp_path: Path) -> None:
    home = fake_toolkit(tmp_path / "cuda", "12.4.131")
    with pytest.raises(CudaVersionError, match=r"this nvcc is CUDA 12.4, the build is for CUDA 13.0") as caught:
        ensure_system("13.0", tmp_path, cuda_home=home)
    assert caught.value.exit_code == 42
    assert "12.4.131" in caught.value.why


def test_cuda_home_comes_before_the_others(tmp_path: Path) -> None:
    first = fake_toolkit(tmp_path / "first", "12.8.93")
    second = fake_toolkit(tmp_path / "second", "12.8.93")
    environ = {"CUDA_HOME": str(first), "PATH": str(second / "bin")}
    roots = [root for root, _ in system_toolkits(environ)]
    assert roots[0] == first
    assert roots[-1] == second


def test_a_script_called_nvcc_is_not_a_toolkit(tmp_path: Path) -> None:
    root = fake_toolkit(tmp_path / "cuda", "13.0.88")
    (root / "bin" / "nvcc.profile").unlink()
    assert root not in [found for found, _ in system_toolkits({"PATH": str(root / "bin")})]


def test_cuda_home_of_the_shell_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "cuda", "12.9.86")))
    with pytest.raises(CudaVersionError):
        ensure_system("12.8", tmp_path)


def test_a_system_toolkit_that_is_not_whole_names_what_is_missing(tmp_path: Path) -> None:
    home = fake_toolkit(tmp_path / "cuda", "12.8.93")
    assert "include/cublas_v2.h" in missing_pieces(home, ("libs",))
    with pytest.raises(ToolMissingError, match="is not whole") as caught:
        ensure_system("12.8", tmp_path, cuda_home=home)
    assert "nvvm/bin/cicc" in caught.value.why


def test_a_folder_without_nvcc_is_no_toolkit(tmp_path: Path) -> None:
    with pytest.raises(ToolMissingError, match="no CUDA toolkit in"):
        ensure_system("13.0", tmp_path, cuda_home=tmp_path)
