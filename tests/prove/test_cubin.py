from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from sm120_wheels.errors import WheelInvalidError
from sm120_wheels.prove import fatbin
from sm120_wheels.prove.cubin import Cubin
from tests.prove.conftest import TARGETS, Samples


@pytest.fixture(scope="module")
def cubins(samples: Samples) -> dict[str, Cubin]:
    data = samples["targets.fatbin"].read_bytes()
    found = fatbin.entries(data, 0, len(data), where="targets.fatbin")
    cubins = {e.arch.sm: Cubin(e.payload(data, ""), e.arch.sm) for e in found if e.kind == "sass"}
    return {**cubins, "sm_120": Cubin(samples["plain.cubin"].read_bytes(), "sm_120")}


@pytest.mark.cuda
@pytest.mark.network
@pytest.mark.parametrize("target", [*TARGETS, "120"])
def test_the_target_is_read_from_the_cubin_alone(cubins: dict[str, Cubin], target: str) -> None:
    assert cubins[f"sm_{target}"].arch.sm == f"sm_{target}"


@pytest.fixture(scope="module", params=["12.8.93", "12.9.86"])
def older_ptxas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The assembler of CUDA 12: the compiler around it is not on the package index."""
    folder = tmp_path_factory.mktemp("cuda12")
    command: list[str | Path] = ["uv", "pip", "install", "-q", "--no-deps", "--target", folder]
    subprocess.run([*command, f"nvidia-cuda-nvcc-cu12=={request.param}"], check=True)
    (program,) = folder.rglob("ptxas")
    return program


@pytest.mark.network
def test_the_target_of_cubins_from_cuda_12_is_read_too(older_ptxas: Path, tmp_path: Path) -> None:
    # a published wheel is of these: taken for plain sm_120, its code would seem to run on 12.1
    for target in ("90", "90a", "100", "100a", "120", "120a"):
        text = f".version 8.7\n.target sm_{target}\n.address_size 64\n.visible .entry k(.param .u64 p) {{ ret; }}\n"
        (tmp_path / "k.ptx").write_text(text)
        subprocess.run([older_ptxas, "-arch", f"sm_{target}", "k.ptx", "-o", "k.cubin"], cwd=tmp_path, check=True)
        cubin = Cubin((tmp_path / "k.cubin").read_bytes(), "k.cubin")
        assert cubin.arch.sm == f"sm_{target}"


@pytest.mark.cuda
@pytest.mark.network
def test_the_header_flags_alone_do_not_tell_the_variants_apart(cubins: dict[str, Cubin]) -> None:
    # the reason why the section .nv.compat and the compiler's note are read
    flags = {cubins[sm].elf.flags for sm in ("sm_120", "sm_120a", "sm_120f")}
    assert len(flags) == 1


@pytest.mark.cuda
@pytest.mark.network
@pytest.mark.parametrize("target", ["80", "90a", "120a"])
def test_resources_are_those_that_cuobjdump_reports(cubins: dict[str, Cubin], samples: Samples, target: str) -> None:
    cubin = cubins[f"sm_{target}"]
    file = samples.folder / f"read-{target}.cubin"
    file.write_bytes(bytes(cubin.elf.view))
    said = samples.tool("cuobjdump", "-res-usage", file)
    theirs = {
        name: (int(reg), int(shared))
        for name, reg, shared in re.findall(r"Function (\S+):\s+REG:(\d+) .*?SHARED:(\d+)", said)
    }
    ours = {}
    for kernel in cubin.kernels:
        needs = cubin.needs(kernel)
        ours[kernel.name] = (needs["registers"], needs.get("shared_bytes", 0))
    assert ours == theirs
    assert len(ours) == 4


@pytest.mark.cuda
@pytest.mark.network
def test_launch_bounds_and_parameters_are_read(cubins: dict[str, Cubin]) -> None:
    cubin = cubins["sm_120a"]
    kernel = next(k for k in cubin.kernels if "filled" in k.name)
    needs = cubin.needs(kernel)
    assert needs["max_threads"] == 64
    assert needs["param_bytes"] == 8


@pytest.mark.cuda
@pytest.mark.network
def test_the_compiler_is_named(cubins: dict[str, Cubin], samples: Samples) -> None:
    assert {c.compiler for c in cubins.values()} == {samples.toolkit.version}


def test_a_host_library_is_no_cubin() -> None:
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00" + bytes(44)
    with pytest.raises(WheelInvalidError, match="not GPU machine code") as failure:
        Cubin(header, "libc.so.6")
    assert "machine 62 instead of 190" in str(failure.value)


@pytest.mark.cuda
@pytest.mark.network
def test_any_cut_of_a_cubin_is_an_error_and_never_a_traceback(cubins: dict[str, Cubin]) -> None:
    whole = bytes(cubins["sm_120a"].elf.view)
    for size in range(0, len(whole), max(1, len(whole) // 60)):
        try:
            cubin = Cubin(whole[:size], "cut.cubin")
            for kernel in cubin.kernels:
                cubin.needs(kernel)
        except WheelInvalidError as failure:
            assert "cut.cubin" in str(failure)
        else:
            pytest.fail(f"a cubin cut to {size} of {len(whole)} bytes was read without complaint")
