"""The doctor's judgement, check by check, from facts; and the real machine's facts once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sm120_wheels.compile.budget import GIB
from sm120_wheels.gpus import Gpu
from sm120_wheels.toolchain import doctor
from sm120_wheels.toolchain.doctor import Check, examine
from sm120_wheels.toolchain.hostcc import CompilerLimits, HostCompiler
from sm120_wheels.toolchain.interpreters import Interpreter
from sm120_wheels.toolchain.probe import Disk, Facts, Toolkit, probe_machine

PYTHON = Interpreter(
    executable=Path("/usr/bin/python3.12"), version="3.12.4", has_headers=True, platform="linux-x86_64"
)
GCC = HostCompiler(path=Path("/usr/bin/g++"), kind="gcc", version="12.2.0", chosen_by="PATH")
GOOD = Facts(
    machine="x86_64",
    cores=8,
    memory_total=64 * GIB,
    memory_budget=60 * GIB,
    memory_limited=False,
    largest_units={"sgl-kernel": 19 * GIB},
    cache=Disk(folder=Path("/c"), free=100 * 10**9, writable=True),
    build=Disk(folder=Path("/b"), free=100 * 10**9, writable=True),
    glibc="2.36",
    compiler=GCC,
    compiler_problem="",
    limits=CompilerLimits(gcc=15, clang=20),
    pythons=(PYTHON,),
    toolkits=(),
    index_releases=("13.0", "13.2"),
    numa=Path("/usr/include"),
    git="2.39.5",
    gpus=(Gpu(name="NVIDIA GeForce RTX 5090", capability=(12, 0), driver="580.95.05"),),
    gpu_problem="",
    root=True,
    package_manager="apt-get",
)


def the(name: str, *, cuda: str = "13.0", **changed: Any) -> Check:
    found = {check.name: check for check in examine(replace(GOOD, **changed), cuda=cuda)}
    return found[name]


def test_a_good_machine_fails_nothing() -> None:
    checks = examine(GOOD, cuda="13.0")
    assert doctor.failed(checks) == []
    assert {check.state for check in checks} == {"passed", "not needed"}


def test_only_failures_carry_a_mend_and_each_failure_does() -> None:
    bad = replace(
        GOOD,
        machine="riscv64",
        memory_budget=GIB,
        cache=Disk(folder=Path("/c"), free=0, writable=True),
        build=Disk(folder=Path("/b"), free=10**12, writable=False),
        glibc="2.17",
        compiler=None,
        compiler_problem="there is no C++ compiler on this machine",
        pythons=(),
        numa=None,
        package_manager="",
        git="",
        gpus=(replace(GOOD.gpus[0], driver="470.1"),),
    )
    checks = examine(bad, cuda="12.9")
    assert len(doctor.failed(checks)) == 12
    assert all(bool(check.mend) == (check.state == "failed") for check in checks)


@pytest.mark.parametrize(
    ("manager", "root", "command"),
    [
        ("apt-get", False, "sudo apt-get install -y g++"),
        ("apt-get", True, "apt-get install -y g++"),
        ("dnf", False, "sudo dnf install -y gcc-c++"),
        ("apk", True, "apk add g++"),
        ("", True, "install g++ (Debian, Ubuntu) or gcc-c++ (Fedora, RHEL)"),
    ],
)
def test_the_mend_is_this_machines_command(manager: str, root: bool, command: str) -> None:
    check = the("C++ compiler", compiler=None, compiler_problem="none", package_manager=manager, root=root)
    assert (check.state, check.mend) == ("failed", command)


def test_a_compiler_that_nvcc_refuses_fails_with_the_mend() -> None:
    check = the("C++ compiler", compiler=replace(GCC, version="16.1.0"))
    assert check.state == "failed"
    assert "up to 15" in check.detail
    assert "g++-15" in check.mend


def test_a_compiler_that_could_not_be_compared_is_not_run_rather_than_passed() -> None:
    assert the("C++ compiler", limits=None).state == "not run"


def test_memory_that_holds_no_translation_unit_fails_and_a_limit_is_named() -> None:
    check = the("memory", memory_budget=2 * GIB, memory_limited=True)
    assert check.state == "failed"
    assert "cgroup" in check.detail


def test_memory_is_judged_for_each_measured_recipe() -> None:
    assert the("memory", memory_budget=8 * GIB).state == "passed"
    check = the("memory for sgl-kernel", memory_budget=8 * GIB)
    assert check.state == "failed"
    assert "19.0 GiB" in check.detail
    assert the("memory for sgl-kernel").state == "passed"


def test_a_small_disk_names_the_variable_that_moves_it() -> None:
    check = the("disk for builds", build=Disk(folder=Path("/b"), free=10**9, writable=True))
    assert check.state == "failed"
    assert "SM120_BUILD_DIR" in check.mend


def test_cuda_from_the_index_needs_no_toolkit() -> None:
    check = the("CUDA 13.0")
    assert check.state == "passed"
    assert "no toolkit needed" in check.detail


def test_cuda_12_x_needs_the_systems() -> None:
    assert the("CUDA 12.9", cuda="12.9").state == "failed"
    assert "cuda-toolkit-12-9" in the("CUDA 12.9", cuda="12.9").mend
    here = (Toolkit(root=Path("/usr/local/cuda-12.9"), version="12.9.86", source="CUDA_HOME"),)
    assert the("CUDA 12.9", cuda="12.9", toolkits=here).state == "passed"


def test_a_python_without_headers_fails_with_the_package() -> None:
    check = the("Python", pythons=(replace(PYTHON, has_headers=False),), root=False)
    assert check.state == "failed"
    assert check.mend == "sudo apt-get install -y python3-dev"
    assert "3.12.4 (no headers)" in check.detail


def test_libnuma_is_not_needed_where_a_build_can_get_it() -> None:
    assert the("libnuma", numa=None).state == "not needed"
    assert the("libnuma", numa=None, package_manager="zypper", root=False).state == "failed"


def test_no_gpu_is_not_a_failure_and_not_a_pass() -> None:
    check = the("GPU and driver", gpus=(), gpu_problem="no nvidia-smi")
    assert check.state == "not needed"
    assert "no nvidia-smi" in check.detail


def test_a_driver_that_is_too_old_for_this_cuda_fails() -> None:
    old = (replace(GOOD.gpus[0], driver="575.57.08"),)
    assert the("GPU and driver", gpus=old).state == "failed"
    assert the("GPU and driver", cuda="12.9", gpus=old).state == "passed"


def test_a_gpu_whose_driver_nobody_tells_is_not_a_pass() -> None:
    assert the("GPU and driver", gpus=(replace(GOOD.gpus[0], driver=""),)).state == "not run"


def test_the_real_machine_is_probed(tmp_path: Path) -> None:
    facts = probe_machine(cuda="13.0", cache_root=tmp_path / "absent" / "cache", build_root=tmp_path)
    assert facts.cores >= 1
    assert 0 < facts.memory_budget <= facts.memory_total
    assert facts.cache.writable
    assert facts.cache.free > 0
    assert any(python.has_headers for python in facts.pythons)
    assert not (tmp_path / "absent").exists()
