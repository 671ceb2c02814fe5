"""From an sdist to three wheels, on a miniature of flashinfer's sdist: real c++, ninja, setuptools and uv."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sm120_wheels.arch import Arch
from sm120_wheels.compile.flashinfer import FlashinferBuildRequest, FlashinferBuildResult, build
from sm120_wheels.errors import CommandError, CompileError, UnknownComponentError
from sm120_wheels.wheel.archive import open_wheel
from sm120_wheels.wheel.reproducible import reproducible_build
from tests.compile.flashinfer_runtime import check_runtime
from tests.compile.mini_flashinfer import COMMIT, VERSION, write_sdist

pytestmark = pytest.mark.network  # setuptools and ninja for the build environment

LABELLED = f"{VERSION}+cu130.torch211.sm120f"
PACKAGE = "flashinfer_jit_cache_sm120f"


@pytest.fixture(scope="module")
def build_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build environment: here only setuptools and ninja, in place of torch and the rest."""
    return environment(tmp_path_factory.mktemp("buildenv"), "setuptools", "ninja") / "bin" / "python"


def environment(root: Path, *packages: str) -> Path:
    """A virtual environment with these packages."""
    uv = [sys.executable, "-m", "uv"]
    folder = root / "env"
    subprocess.run([*uv, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
    subprocess.run([*uv, "pip", "install", "-q", "--python", str(folder / "bin" / "python"), *packages], check=True)
    return folder


def request(root: Path, python: Path, *modules: str) -> FlashinferBuildRequest:
    source = write_sdist(root)
    stable = reproducible_build(source_root=source, build_root=root / "work", source_date_epoch=1_700_000_000)
    return FlashinferBuildRequest(
        source_dir=source,
        launcher=stable.launcher,
        environment=stable.environment,
        ldflags=stable.ldflags,
        python=python,
        cuda_root=root / "cuda",
        arch=Arch.parse("12.0f"),
        modules=modules or ("norm", "silu_and_mul"),
        version=LABELLED,
        work_dir=root / "work",
        out_dir=root / "out",
        log=root / "log",
        jobs=2,
    )


@pytest.fixture(scope="module")
def result(build_python: Path, tmp_path_factory: pytest.TempPathFactory) -> FlashinferBuildResult:
    return build(request(tmp_path_factory.mktemp("built"), build_python))


def member(wheel: Path, name: str) -> bytes:
    with open_wheel(wheel) as opened:
        return opened.read(name)


def test_three_wheels_come_out_with_their_names_and_tags(result: FlashinferBuildResult) -> None:
    machine = os.uname().machine
    assert [path.name for path in result.wheels] == [
        f"flashinfer_python-{VERSION}-py3-none-any.whl",
        f"flashinfer_jit_cache_sm120f-{LABELLED}-py3-none-linux_{machine}.whl",
        f"flashinfer_jit_cache-{LABELLED}-py3-none-any.whl",
    ]


def test_every_wheel_is_well_formed_to_the_last_hash(result: FlashinferBuildResult) -> None:
    for path in result.wheels:
        with open_wheel(path) as wheel:
            wheel.verify()


def test_modules_sources_and_what_is_left_out_are_counted(result: FlashinferBuildResult) -> None:
    assert [module.name for module in result.modules] == ["norm", "silu_and_mul"]
    assert result.translation_units == 3
    assert {item.name: item.count for item in result.left_out} == {"moe_utils": None, "*": 2}


def test_the_manifest_names_exactly_the_libraries_in_the_wheel(result: FlashinferBuildResult) -> None:
    provider = result.wheels[1]
    manifest = json.loads(member(provider, f"{PACKAGE}/manifest.json"))
    assert manifest == {
        "schema_version": 1,
        "provider_id": "sm120f",
        "distribution": "flashinfer-jit-cache-sm120f",
        "version": LABELLED,
        "cuda_architectures": ["sm120f"],
        "modules": ["norm", "silu_and_mul"],
    }
    with open_wheel(provider) as wheel:
        libraries = [name for name in wheel.members if name.endswith(".so")]
    assert libraries == [f"{PACKAGE}/jit_cache/{m}/{m}.so" for m in manifest["modules"]]


def test_metadata_is_complete_and_the_requirements_hold_together(result: FlashinferBuildResult) -> None:
    _, provider, shim = result.wheels
    with open_wheel(provider) as wheel:
        assert wheel.metadata["Name"] == "flashinfer-jit-cache-sm120f"
        assert wheel.metadata["Version"] == LABELLED
        assert wheel.metadata["Requires-Python"] == ">=3.10"
        assert wheel.metadata.get_all("Requires-Dist") == [
            f"flashinfer-python=={VERSION}",
            f"flashinfer-jit-cache=={LABELLED}",
        ]
        assert "sm120f" in wheel.metadata["Summary"]
    with open_wheel(shim) as wheel:
        assert wheel.metadata.get_all("Requires-Dist") == [f"flashinfer-jit-cache-sm120f=={LABELLED}"]
        assert not [name for name in wheel.members if name.endswith(".so")]


def test_upstreams_licences_travel_with_both_kernel_wheels(result: FlashinferBuildResult) -> None:
    for path in result.wheels[1:]:
        with open_wheel(path) as wheel:
            files = wheel.metadata.get_all("License-File")
            assert files == ["LICENSE", "NOTICE.third-party.txt", "licenses.LICENSE.part.txt"]
            texts = [wheel.read(f"{wheel.dist_info}/licenses/{name}").decode() for name in files]
        assert texts[0] == "The licence of the miniature.\n"
        assert "Copyright of the template library" in texts[1]


def test_no_path_of_this_machine_is_in_the_libraries(result: FlashinferBuildResult) -> None:
    assert result.paths_inside == ()
    library = member(result.wheels[1], f"{PACKAGE}/jit_cache/norm/norm.so")
    assert b"src/csrc/norm.cpp" in library
    generated = member(result.wheels[1], f"{PACKAGE}/jit_cache/silu_and_mul/silu_and_mul.so")
    assert b"build/generated/silu_and_mul.cpp" in generated


def test_a_path_of_this_machine_in_a_library_is_found(build_python: Path, tmp_path: Path) -> None:
    asked = request(tmp_path, build_python, "norm")
    leaky = f'extern "C" const char* where() {{ return "{asked.source_dir}/x"; }}\n'
    (asked.source_dir / "csrc" / "norm.cpp").write_text(leaky)
    assert build(asked).paths_inside == (("norm", str(asked.source_dir)),)


def test_two_builds_in_different_folders_give_the_same_kernel_wheels(
    result: FlashinferBuildResult, build_python: Path, tmp_path: Path
) -> None:
    again = build(request(tmp_path, build_python))
    for first, second in zip(result.wheels[1:], again.wheels[1:], strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_a_second_run_compiles_nothing(build_python: Path, tmp_path: Path) -> None:
    asked = request(tmp_path, build_python)
    first = build(asked)
    objects = {path: path.stat().st_mtime_ns for path in asked.work_dir.rglob("*.o")}
    assert objects
    stamp = first.wheels[0].stat().st_mtime_ns
    stages: list[str] = []
    assert build(replace(asked, on_stage=stages.append)) == first
    assert [stage.partition(" ")[0] for stage in stages] == ["listing", "", "packing", "packing"]
    assert {path: path.stat().st_mtime_ns for path in asked.work_dir.rglob("*.o")} == objects
    assert first.wheels[0].stat().st_mtime_ns == stamp


def test_a_compile_error_ends_the_build_and_the_next_run_goes_on_from_there(build_python: Path, tmp_path: Path) -> None:
    asked = request(tmp_path, build_python)
    broken = asked.source_dir / "csrc" / "binding.cpp"
    sound = broken.read_text()
    broken.write_text("int f( {\n")
    with pytest.raises(CompileError) as caught:
        build(asked)
    assert "norm/binding.o does not compile" in caught.value.what
    assert "binding.cpp" in caught.value.where
    assert not list(tmp_path.glob("out/*.whl"))
    broken.write_text(sound)
    assert len(build(asked).wheels) == 3


def test_modules_for_another_target_get_a_provider_of_their_own(build_python: Path, tmp_path: Path) -> None:
    result = build(request(tmp_path, build_python, "norm", "trtllm_fmha_v2"))
    assert result.other_targets == ("trtllm_fmha_v2",)
    _, first, second, shim = result.wheels
    assert json.loads(member(first, f"{PACKAGE}/manifest.json"))["modules"] == ["norm"]
    other = json.loads(member(second, "flashinfer_jit_cache_sm120a/manifest.json"))
    assert (other["cuda_architectures"], other["modules"]) == (["sm120a"], ["trtllm_fmha_v2"])
    with open_wheel(shim) as wheel:
        assert wheel.metadata.get_all("Requires-Dist") == [
            f"flashinfer-jit-cache-sm120f=={LABELLED}",
            f"flashinfer-jit-cache-sm120a=={LABELLED}",
        ]


def test_an_unknown_module_is_refused_before_anything_is_compiled(build_python: Path, tmp_path: Path) -> None:
    asked = request(tmp_path, build_python, "nrom")
    with pytest.raises(UnknownComponentError) as caught:
        build(asked)
    assert "did you mean norm" in str(caught.value)
    assert not list((asked.work_dir / "modules").rglob("*.o"))


# Installed: what flashinfer's runtime does with the shim, done here without flashinfer.

_ASK = """
import json, logging, ctypes
logging.basicConfig(level=logging.WARNING)
import flashinfer_jit_cache as shim
found = [
    [p.provider_id, p.distribution, p.version, sorted(p.cuda_architectures),
     {m: ctypes.CDLL(str(p.jit_cache_dir / m / (m + ".so"))).norm_bound() for m in sorted(p.modules) if m == "norm"}]
    for p in shim.get_jit_cache_providers()
]
print(json.dumps([shim.__version__, shim.__git_version__, found]))
"""


@pytest.fixture
def installed(result: FlashinferBuildResult, tmp_path: Path) -> Path:
    """An environment for which the shim alone was asked: what it requires brings the provider and the miniature."""
    folders = {str(path.parent) for path in result.wheels}
    links = [option for folder in folders for option in ("--find-links", folder)]
    return environment(tmp_path, "--no-index", *links, "flashinfer-jit-cache")


def ask(env: Path) -> tuple[list[object], str]:
    done = subprocess.run([env / "bin" / "python", "-c", _ASK], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert isinstance(answer, list)
    return answer, done.stderr


def test_installing_the_shim_brings_the_provider_and_its_libraries_load(installed: Path) -> None:
    answer, complaints = ask(installed)
    provider = ["sm120f", "flashinfer-jit-cache-sm120f", LABELLED, ["sm120f"], {"norm": 4}]
    assert answer == [LABELLED, COMMIT, [provider]]
    assert complaints == ""


def test_a_broken_provider_is_warned_about_and_the_others_stay(installed: Path) -> None:
    site = next((installed / "lib").glob("python*")) / "site-packages"
    dist_info = site / "other_provider-1.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-provider\nVersion: 1\n")
    (dist_info / "entry_points.txt").write_text("[flashinfer.jit_cache.providers]\nsm90a = no_such_module:f\n")
    answer, complaints = ask(installed)
    assert len(answer[2]) == 1  # type: ignore[arg-type]
    assert "flashinfer kernel provider sm90a cannot be used" in complaints
    assert "no_such_module" in complaints


def library(installed: Path, module: str) -> Path:
    return next(installed.rglob(f"jit_cache/{module}/{module}.so"))


def test_every_module_is_found_and_loaded_by_the_installed_runtime(installed: Path, tmp_path: Path) -> None:
    check = check_runtime(python=installed / "bin" / "python", arch=Arch.parse("12.0f"), log=tmp_path / "log")
    assert check.state == "passed"
    assert check.flashinfer == VERSION
    assert check.providers == (("sm120f", LABELLED),)
    assert [(m.name, m.found, m.loaded) for m in check.modules] == [
        ("norm", "passed", "passed"),
        ("silu_and_mul", "passed", "passed"),
    ]
    assert check.modules[0].path == str(library(installed, "norm"))


def test_a_module_that_is_not_found_fails_and_its_loading_is_not_run(installed: Path, tmp_path: Path) -> None:
    python = installed / "bin" / "python"
    check = check_runtime(python=python, arch=Arch.parse("12.0f"), modules=["norm", "rope"], log=tmp_path / "log")
    assert check.state == "failed"
    assert [(m.name, m.found, m.loaded) for m in check.modules][1] == ("rope", "failed", "not run")


def test_a_provider_for_another_target_is_not_found(installed: Path, tmp_path: Path) -> None:
    check = check_runtime(python=installed / "bin" / "python", arch=Arch.parse("9.0a"), log=tmp_path / "log")
    assert check.state == "failed"
    assert {m.found for m in check.modules} == {"failed"}


def test_a_damaged_library_is_found_but_fails_to_load(installed: Path, tmp_path: Path) -> None:
    damaged = library(installed, "norm")
    damaged.unlink()  # not written in place: an installer may have linked it to its cache
    damaged.write_bytes(b"not an ELF file")
    check = check_runtime(python=installed / "bin" / "python", arch=Arch.parse("12.0f"), log=tmp_path / "log")
    assert check.state == "failed"
    assert (check.modules[0].found, check.modules[0].loaded) == ("passed", "failed")
    assert "norm.so" in check.modules[0].why


def test_without_a_provider_nothing_is_run_and_that_is_not_passed(installed: Path, tmp_path: Path) -> None:
    python = installed / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "uninstall", "-q", "--python", str(python), "flashinfer-jit-cache"],
        check=True,
    )
    assert check_runtime(python=python, arch=Arch.parse("12.0f"), log=tmp_path / "log").state == "not run"


def test_an_environment_without_flashinfer_is_one_message(build_python: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        check_runtime(python=build_python, arch=Arch.parse("12.0f"), log=tmp_path / "log")
    assert caught.value.exit_code == 53
    assert "No module named 'flashinfer'" in caught.value.why
