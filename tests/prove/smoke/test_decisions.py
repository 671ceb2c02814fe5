"""Decisions of the smoke test, with values: GPUs, needs, isolation, the sanitizer's report, states, coverage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sm120_wheels.errors import SettingError, UnsupportedTargetError
from sm120_wheels.gpus import Gpu, parse, visible
from sm120_wheels.prove.smoke import coverage, isolation, packages, surroundings
from sm120_wheels.prove.smoke.consumer import Offered, came_from
from sm120_wheels.prove.smoke.installed import find_installed
from sm120_wheels.prove.smoke.model import CaseResult, CaseSpec, State
from sm120_wheels.prove.smoke.overlay import Unpacked
from sm120_wheels.prove.smoke.report import Report, judge
from sm120_wheels.prove.smoke.run import left_out_of
from sm120_wheels.prove.smoke.sanitizer import Sanitizer, errors_in

SMI = """\
0, GPU-aaaa1111, 9.0, 580.159.04, 143771 MiB, NVIDIA H200
1, GPU-bbbb2222, 12.0, 580.159.04, 97887 MiB, NVIDIA RTX PRO 6000, Blackwell
"""


def spec(node: str = "a::b", *operators: str, **more: Any) -> CaseSpec:
    return CaseSpec(
        node=node,
        suite="demo",
        module="m",
        file="",
        function="f",
        parameters={},
        operators=operators,
        deadline=30,
        **more,
    )


def result(state: State, *operators: str, why: str = "", **more: Any) -> CaseResult:
    return CaseResult(spec=spec("a::b", *operators), state=state, why=why, **more)


def test_nvidia_smi_is_read_with_capability_memory_and_a_comma_in_the_name() -> None:
    first, second = parse(SMI)
    assert (first.capability, first.memory, first.driver) == ((9, 0), 143771 << 20, "580.159.04")
    assert second.name == "NVIDIA RTX PRO 6000, Blackwell"
    assert second.compute == "12.0"


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [("1,0", [1, 0]), ("GPU-bbbb", [1]), ("0,7,1", [0]), ("", []), ("-1", [])],
)
def test_cuda_visible_devices_chooses_as_cuda_does(wanted: str, indices: list[int]) -> None:
    assert [gpu.index for gpu in visible(parse(SMI), wanted)] == indices


def test_needs_that_are_not_met_are_named() -> None:
    assert spec().unmet(capability=(9, 0), gpus=1) == ""
    only = spec(capabilities=((12, 0),), needs_why="FP4")
    assert only.unmet(capability=(9, 0), gpus=1) == "it needs compute capability 12.0, the GPU has 9.0 (FP4)"
    least = spec(least_capability=(10, 0))
    assert least.unmet(capability=(9, 0), gpus=1) == "it needs compute capability 10.0 or more, the GPU has 9.0"
    assert spec(gpus=2).unmet(capability=(9, 0), gpus=1) == "it needs 2 GPUs, this run has 1"


def test_a_worker_has_no_compiler_no_cuda_home_and_fresh_caches(tmp_path: Path) -> None:
    tools = tmp_path / "cuda" / "bin"
    tools.mkdir(parents=True)
    (tools / "nvcc").touch()
    plain = tmp_path / "plain"
    plain.mkdir()
    given = {
        "PATH": f"{tools}:{plain}",
        "CUDA_HOME": "/usr/local/cuda",
        "CUDA_LAUNCH_BLOCKING": "1",
        "PYTHONPATH": "/mine",
        "FLASHINFER_CUDA_ARCH_LIST": "12.0",
        "LD_LIBRARY_PATH": "/driver",
        "HOME": "/home/me",
    }
    found = isolation.worker_environment(given, scratch=tmp_path, visible="GPU-1", network=False)
    assert found["PATH"] == str(plain)
    assert not {"CUDA_HOME", "CUDA_LAUNCH_BLOCKING", "PYTHONPATH", "FLASHINFER_CUDA_ARCH_LIST"} & set(found)
    assert found["LD_LIBRARY_PATH"] == "/driver", "a container's driver may lie there"
    assert found["FLASHINFER_DISABLE_JIT"] == "1"
    assert found["NCCL_SOCKET_IFNAME"] == "lo"
    for name in ("HOME", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "XDG_CACHE_HOME"):
        assert Path(found[name]).is_relative_to(tmp_path), name


MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at kernel(float *)+0x90
=========     Address 0x7f is out of bounds
=========
========= ERROR SUMMARY: 1 error
"""


def test_what_the_sanitizer_reports_costs_the_case_that_ran(tmp_path: Path) -> None:
    log = tmp_path / "sanitizer-1.log"
    sanitizer = Sanitizer(program=Path("/x"), tool="memcheck", folder=tmp_path)
    assert sanitizer.judge(result("passed")).state == "passed"
    log.write_text(MEMCHECK)
    judged = sanitizer.judge(result("passed"))
    assert judged.state == "failed"
    assert judged.why == "compute-sanitizer memcheck: Invalid __global__ write of size 4 bytes (and 2 more lines)"
    assert sanitizer.judge(result("passed")).state == "passed", "it was said already"
    (tmp_path / "sanitizer-2.log").write_text(MEMCHECK)
    assert sanitizer.judge(result("passed")).state == "failed", "another worker has another log"


def test_a_clean_report_has_no_errors() -> None:
    assert errors_in("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == []
    assert errors_in("========= Warning: Unable to find the debugger's library\n") == []
    assert errors_in("========= Warning: Race reported between Read\n") == ["Warning: Race reported between Read"]


def report(backend: str = "cuda", selection: str = "", why_not: str = "") -> Report:
    return Report(
        backend=backend,
        when="",
        seconds=1.0,
        gpus=[],
        environment={},
        isolation={},
        results=[],
        subjects=[],
        selection=selection,
        why_not=why_not,
    )


def test_only_a_whole_run_on_a_gpu_with_a_case_that_passed_is_passed() -> None:
    passed, failed, not_run = result("passed"), result("failed", why="zeros"), result("not run", why="needs 12.0")
    assert judge(report(), [passed, not_run]) == ("passed", "")
    assert judge(report(), [passed, failed]) == ("failed", "a::b: zeros")
    assert judge(report(), [not_run]) == ("not run", "needs 12.0")
    assert judge(report(), []) == ("not run", "there is no case for it")
    assert judge(report(), [result("passed", empty=True)]) == ("not run", "only empty inputs were given")
    assert judge(report(), [result("passed", empty=True), not_run]) == ("not run", "needs 12.0")
    assert judge(report(backend="host"), [passed])[0] == "not run"
    assert judge(report(selection="-k x"), [passed])[0] == "not run"
    assert judge(report(why_not="no GPU"), [passed]) == ("not run", "no GPU")


def test_an_operator_is_passed_by_its_own_cases_only() -> None:
    results = [
        result("passed", "d::a", operators=("d::a", "d::b")),
        result("failed", "d::c", why="NaN"),
        result("passed", "d::c"),
        result("not run", "d::e", why="needs 12.0"),
    ]
    found = {o.name: o for o in coverage.operators(["d::a", "d::b", "d::c", "d::e", "d::f"], results)}
    assert found["d::a"].state == "passed"
    assert (found["d::b"].state, found["d::b"].why, found["d::b"].reached) == ("not run", "no case", True)
    assert (found["d::c"].state, found["d::c"].why) == ("failed", "a::b: NaN")
    assert (found["d::e"].state, found["d::e"].why) == ("not run", "needs 12.0")
    assert found["d::f"].why == "no case"
    assert coverage.unregistered(["d::a"], results) == ["d::c", "d::e"]


def test_a_case_with_nothing_to_do_covers_no_operator_and_still_fails_one() -> None:
    empty = result("passed", "d::a", operators=("d::a",), empty=True)
    (alone,) = coverage.operators(["d::a"], [empty])
    assert (alone.state, alone.why, alone.cases) == ("not run", "only empty inputs were given to it", 1)
    (waiting,) = coverage.operators(["d::a"], [empty, result("not run", "d::a", why="needs 12.0")])
    assert (waiting.state, waiting.why) == ("not run", "needs 12.0")
    assert coverage.operators(["d::a"], [empty, result("passed", "d::a")])[0].state == "passed"
    broken = result("failed", "d::a", why="invalid configuration argument", empty=True)
    assert coverage.operators(["d::a"], [result("passed", "d::a"), broken])[0].state == "failed"


def test_a_library_that_a_partial_wheel_was_built_without_is_not_run_and_a_missing_function_is() -> None:
    there = ["flashinfer.norm::rmsnorm", "flashinfer.page::append"]
    assert (
        coverage.left_out(["flashinfer.topk::top_k"], there) == "flashinfer.topk is not in this wheel, which is partial"
    )
    assert coverage.left_out(["flashinfer.norm::rmsnorm_quant"], there) == ""
    assert coverage.left_out(["sgl_kernel::rmsnorm"], there) == ""


@pytest.mark.parametrize(("version", "absent"), [("0.7.4+cu130.partial.sm90a", True), ("0.7.4+cu130.sm90a", False)])
def test_a_provider_that_is_installed_may_be_partial_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, absent: bool
) -> None:
    root = tmp_path / "site-packages"
    library = root / "flashinfer_jit_cache" / "jit_cache" / "norm" / "norm.so"
    library.parent.mkdir(parents=True)
    source = "void __tvm_ffi_rmsnorm(void) {}"
    subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", library], input=source, text=True, check=True)
    info = root / f"flashinfer_jit_cache_sm90a-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flashinfer-jit-cache-sm90a\nVersion: {version}\n")
    (info / "RECORD").write_text("flashinfer_jit_cache/jit_cache/norm/norm.so,,\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={root} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    found = find_installed("flashinfer-jit-cache-sm90a", python, [])
    assert found.subject is not None
    assert coverage.module_functions(found.subject) == ["flashinfer.norm::rmsnorm"]
    why = left_out_of([found])(spec("a::b", "flashinfer.topk::radix_topk"))
    assert why == ("flashinfer.topk is not in this wheel, which is partial" if absent else "")
    assert left_out_of([found])(spec("a::b", "flashinfer.norm::layernorm")) == ""


def test_packages_are_known_by_all_their_names() -> None:
    kernel = packages.package_of("sgl_kernel")
    assert kernel is not None
    assert kernel is packages.package_of("sglang-kernel")
    provider = packages.package_of("flashinfer-jit-cache-sm120f")
    assert provider is not None
    assert provider.functions
    assert packages.package_of("numpy") is None


def test_an_installed_version_is_traced_to_the_file_it_came_from() -> None:
    offered = [
        Offered(filename="demo-1.0+cu130.sm120a-cp310-abi3-manylinux_2_34_x86_64.whl", sha256="a"),
        Offered(filename="demo-1.0+cu130.sm120f-cp310-abi3-manylinux_2_34_x86_64.whl", sha256="b"),
        Offered(filename="demo-1.0+cu130.sm120f-cp310-abi3-manylinux_2_34_aarch64.whl", sha256="c"),
    ]
    found = came_from(offered, "1.0+cu130.sm120f", ["cp310-abi3-manylinux_2_34_x86_64"])
    assert found is not None
    assert found.sha256 == "b"
    assert came_from(offered, "2.0", ["cp310-abi3-manylinux_2_34_x86_64"]) is None


def test_a_gpu_is_named_by_uuid_where_it_has_one() -> None:
    gpu = Gpu(index=3, uuid="", name="x", capability=(9, 0), memory=1, driver="")
    assert gpu.visible == "3"


def test_what_is_installed_is_found_by_what_one_imports_of_it_too() -> None:
    python = Path(sys.executable)
    assert find_installed("_pytest", python, []).distribution == "pytest"
    with pytest.raises(SettingError, match="nothing-like-it is not installed"):
        find_installed("nothing-like-it", python, [])


def wheel_requiring(*requires: str) -> Unpacked:
    return Unpacked(
        wheel=Path("demo-1.0-py3-none-any.whl"),
        sha256="0" * 64,
        distribution="demo",
        version="1.0",
        root=Path("/nowhere"),
        requires=requires,
        recipe="",
        locks=(),
    )


def test_a_torch_that_no_lock_holds_is_refused_naming_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTargetError, match=r"no locked torch fits demo-1\.0") as refused:
        surroundings.locked([wheel_requiring("torch==1.2.*")], python="3.12", cache_root=tmp_path, offline=True)
    assert "they require torch==1.2.*; locked are 2.9.1, 2.11.0" in refused.value.why
    assert "--environment" in refused.value.hint


def test_what_a_wheel_requires_and_is_not_there_is_noted() -> None:
    around = surroundings.Surroundings(
        python=Path("/x"), version="3.12.1", origin="given", packages={"torch": "2.11.0", "numpy": "1.0"}
    )
    wheel = wheel_requiring(
        "torch==2.11.*", "numpy>=2", "absent>1", "only-on-2; python_version < '3'", "e; extra == 'x'"
    )
    assert surroundings.unmet(around, [wheel]) == [
        "demo requires numpy>=2: 1.0 is there",
        "demo requires absent>1: it is not there",
    ]


def test_an_environment_with_another_torch_is_refused(tmp_path: Path) -> None:
    site = tmp_path / "lib"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").touch()
    info = site / "torch-2.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0+cu130\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(UnsupportedTargetError, match=r"has torch 2\.9\.0\+cu130, and demo-1.0.* requires torch==2\.11"):
        surroundings.given(python, [wheel_requiring("torch==2.11.*")])
    assert surroundings.given(python, [wheel_requiring("torch==2.9.*")]).torch == "2.9.0+cu130"
