"""The same with the real nvcc: what only one of its passes sees is part of the key."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sm120_wheels.compile.cache.ccache import find
from sm120_wheels.toolchain.cuda import CudaToolkit
from tests.compile.building import Runtime
from tests.compile.cache.building import Tree

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.network,
    pytest.mark.skipif(isinstance(find(), str), reason=f"not run: {find()}"),
]

KERNEL = """#include <cassert>
#ifdef __CUDA_ARCH__
#include "device.h"
#else
#include "host.h"
#endif
__global__ void k(int *p) {
#ifdef __CUDA_ARCH__
  assert(p); *p = DEVICE_VALUE;
#endif
}
#ifndef __CUDA_ARCH__
int host() { return HOST_VALUE; }
#endif
"""
FILES = {"k__cu": KERNEL, "device__h": "#define DEVICE_VALUE 1\n", "host__h": "#define HOST_VALUE 1\n"}
TARGET = ("-gencode=arch=compute_120a,code=sm_120a",)


def test_hits_with_a_toolkit_at_another_path_and_misses_for_what_one_pass_sees(
    runtime: Runtime, tmp_path: Path, pypi_cuda: CudaToolkit
) -> None:
    moved = tmp_path / "opt" / "toolkit"
    moved.parent.mkdir()
    try:  # the same files under another path: nvcc finds its parts from where it lies
        shutil.copytree(pypi_cuda.root, moved, copy_function=os.link, symlinks=True)
    except OSError:
        pytest.skip("not run: the cache and the temporary folder are on two file systems")

    first = Tree(top=tmp_path / "one", cuda=pypi_cuda.root).write(**FILES).build("k.cu", options=TARGET)
    assert first.cache.misses == 1
    again = Tree(top=tmp_path / "two, far", cuda=moved).write(**FILES).build("k.cu", options=TARGET)
    assert (again.cache.hits, again.cache.misses) == (1, 0)
    assert again.objects == first.objects

    for name in ("host__h", "device__h"):
        changed = FILES | {name: FILES[name].replace("1", "2")}
        tree = Tree(top=tmp_path / name, cuda=pypi_cuda.root).write(**changed)
        built = tree.build("k.cu", options=TARGET)
        assert built.cache.hits == 0, f"{name} is read by one pass only"
        assert built.objects != first.objects
