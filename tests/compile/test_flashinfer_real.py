"""The real flashinfer: the minimal profile through the whole pipeline with nvcc, then found by upstream's own runtime.

Downloads what no cache holds (torch, CUDA, the sdist: 3 GB) and compiles eleven translation units, four minutes of CPU.
Left out are the two modules of the profile that take the longest: topk (28 minutes of CPU) and sampling (three).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm120_wheels import paths
from sm120_wheels.arch import Arch
from sm120_wheels.build import BuildOptions, BuildResult, build
from sm120_wheels.plan import BuildRequest
from sm120_wheels.toolchain.locks import LockRequest, lock_path
from sm120_wheels.toolchain.pyenv import ensure_environment
from sm120_wheels.wheel.archive import open_wheel
from tests.compile.flashinfer_runtime import check_runtime

pytestmark = [pytest.mark.long, pytest.mark.cuda, pytest.mark.network, pytest.mark.timeout(1800)]

MODULE = "silu_and_mul"
ASKED = ("norm", "activation", "page", "rope", "cascade")
MODULES = ["cascade", "gelu_and_mul", "gelu_tanh_and_mul", "norm", "page", "rope", MODULE]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    root = tmp_path_factory.mktemp("flashinfer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SM120_BUILD_DIR", str(root / "build"))
        patch.setenv("SM120_DIST_DIR", str(root / "dist"))
        return build(BuildRequest(recipe="flashinfer", modules=ASKED), BuildOptions())


@pytest.fixture(scope="module")
def installed(built: BuildResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheels, and torch and what else flashinfer requires from the build environment."""
    locks = [LockRequest(path=lock_path(name)) for name in built.plan.locks if not name.startswith("cuda")]
    base = ensure_environment(built.plan.python, locks, cache_root=paths.cache_root(), offline=True)
    folder = tmp_path_factory.mktemp("installed") / "env"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "-p", str(base.python), str(folder)], check=True)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    (site / "base.pth").write_text(f"{base.site_packages}\n")
    wheels = [wheel["path"] for wheel in built.wheels]
    subprocess.run(
        [*uv, "pip", "install", "-q", "--no-deps", "--no-index", "--python", str(folder / "bin" / "python"), *wheels],
        check=True,
    )
    return folder / "bin" / "python"


def test_the_wheels_bear_one_label_and_the_libraries_no_path(built: BuildResult) -> None:
    assert {wheel["filename"].split("-")[1] for wheel in built.wheels} == {built.plan.wheel_version}
    compiled = built.stages["compile"]["output"]
    assert compiled["modules"] == MODULES
    assert compiled["translation_units"] == 11
    assert compiled["paths_inside"] == []


def test_an_installer_can_tell_by_torch_which_pairs_wheels_it_takes(built: BuildResult) -> None:
    requires = {}
    for wheel in built.wheels:
        with open_wheel(Path(wheel["path"])) as opened:
            requires[wheel["filename"].split("-")[0]] = set(opened.metadata.get_all("Requires-Dist") or ())
    label = built.plan.wheel_version
    assert "torch~=2.11.0" in requires["flashinfer_python"]
    assert requires["flashinfer_jit_cache"] == {f"flashinfer-jit-cache-sm120f=={label}"}  # flashinfer wants no other
    assert requires["flashinfer_jit_cache_sm120f"] == {
        "torch~=2.11.0",
        f"flashinfer-jit-cache=={label}",
        f"flashinfer-python=={label.partition('+')[0]}",
    }


def test_the_provider_holds_machine_code_for_the_target_alone(built: BuildResult) -> None:
    provider = next(Path(w["path"]) for w in built.wheels if "sm120f" in w["filename"].split("-")[0])
    with open_wheel(provider) as wheel:
        libraries = [name for name in wheel.members if name.endswith(".so")]
        assert sorted(libraries) == [f"flashinfer_jit_cache_sm120f/jit_cache/{name}/{name}.so" for name in MODULES]
        assert all(b".nv_fatbin" in wheel.read(library) for library in libraries)


def test_flashinfers_runtime_finds_and_loads_each_module_without_nvcc_and_without_jit(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    check = check_runtime(python=installed, arch=Arch.parse("12.0f"), log=tmp_path / "log")
    assert [(m.name, m.found, m.loaded) for m in check.modules] == [(name, "passed", "passed") for name in MODULES]
    assert check.state == "passed"


def test_flashinfers_runtime_takes_the_family_provider_on_12_1_and_not_on_9_0(installed: Path, tmp_path: Path) -> None:
    spark = check_runtime(python=installed, arch=Arch.parse("12.1a"), modules=[MODULE], log=tmp_path / "log")
    hopper = check_runtime(python=installed, arch=Arch.parse("9.0a"), modules=[MODULE], log=tmp_path / "log")
    assert [spark.modules[0].found, hopper.modules[0].found] == ["passed", "failed"]
