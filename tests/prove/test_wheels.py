"""The kinds of wheels that people install, each made small by nvcc: what the audit says of them for three GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.prove.conftest import Said, Samples
from tests.wheel.conftest import RawWheel

pytestmark = [pytest.mark.cuda, pytest.mark.network]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A wheel: which sample is which of its files, and what is to be said of it for 9.0, 12.0 and 12.1."""

    name: str
    files: Mapping[str, str]
    answers: tuple[str, str, str]
    version: str = "0.1"
    filename: str | None = None


SGL_KERNEL = {
    "sgl_kernel/sm90/common_ops.abi3.so": "libhopper.so",
    "sgl_kernel/sm100/common_ops.abi3.so": "libtraps.so",
    "sgl_kernel/flash_ops.abi3.so": "libhopper.so",
}
KINDS = {
    # two builds of one library, of which the loader takes one; another library that has nothing for SM120
    "official sglang-kernel": Kind(name="sglang_kernel", files=SGL_KERNEL, answers=("runs", "part", "none")),
    # the same under its old name, renamed after the build: tags inside that are not those outside
    "sgl-kernel": Kind(
        name="sgl_kernel",
        files=SGL_KERNEL,
        answers=("runs", "part", "none"),
        filename="sgl_kernel-0.1-cp310-abi3-manylinux2014_x86_64.whl",
    ),
    # kernels for other GPUs that it chooses between when it runs: on the list of known traps
    "torch": Kind(name="torch", files={"torch/lib/libtorch_cuda.so": "libtorch_cuda.so"}, answers=("runs",) * 3),
    # a module in each folder, for one family
    "flashinfer provider": Kind(
        name="flashinfer_jit_cache_sm120f",
        files={f"flashinfer_jit_cache/jit_cache/{m}/{m}.so": "libfamily.so" for m in ("norm", "sampling")},
        answers=("none", "runs", "runs"),
        version="0.1+cu130.torch211.sm120f",
    ),
    "selftest": Kind(
        name="sm120_selftest",
        files={"sm120_selftest/_C.abi3.so": "libonly.so"},
        answers=("none", "runs", "none"),
        version="0.1+cu130.torch211.sm120a",
    ),
    "without CUDA": Kind(name="plain", files={}, answers=("no-cuda",) * 3),
    "PTX only": Kind(name="ptx", files={"ptx/lib.so": "libptx.so"}, answers=("runs",) * 3),
    "several architectures": Kind(name="multi", files={"m/lib.so": "libmulti.so"}, answers=("runs", "runs", "none")),
}


def written(kind: Kind, samples: Samples, folder: Path) -> Path:
    files = {"pure/__init__.py": b"", **{member: samples[sample].read_bytes() for member, sample in kind.files.items()}}
    return RawWheel(name=kind.name, version=kind.version, files=files, filename=kind.filename).write(folder)


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_wheel_has_its_verdicts(
    samples: Samples, sm120: Callable[..., Said], tmp_path: Path, name: str
) -> None:
    kind = KINDS[name]
    targets = ("9.0", "12.0", "12.1")
    said = sm120("audit", written(kind, samples, tmp_path), "--json", *(f"--target={t}" for t in targets))
    found = json.loads(said.out)
    assert found["verdicts"] == dict(zip(targets, kind.answers, strict=True))
    assert found["failures"] == []
    if name == "torch":
        traps = found["targets"]["12.0"]["libraries"][0]["traps"]
        assert [bool(trap["allowed"]) for trap in traps] == [True], "it runs by the list, not for want of a trap"
    if name == "sgl-kernel":
        assert "the filename says cp310-abi3-manylinux2014_x86_64" in found["tag_problem"]


def test_the_eight_kinds_are_there() -> None:
    assert len(KINDS) == 8
