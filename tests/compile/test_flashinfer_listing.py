"""Asking upstream's code for its modules, on a miniature of its sdist."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm120_wheels.arch import Arch
from sm120_wheels.compile.flashinfer import listing, profiles
from sm120_wheels.compile.flashinfer.listing import Listing
from sm120_wheels.errors import ConfigureError, SettingError
from tests.compile.mini_flashinfer import write_sdist


@dataclass(frozen=True, kw_only=True)
class Place:
    source: Path
    work: Path
    log: Path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(source=write_sdist(tmp_path), work=tmp_path / "work", log=tmp_path / "log")


def ask(place: Place, *modules: str, arch: str = "12.0f") -> Listing:
    python = Path(sys.executable)
    return listing.list_modules(
        source=place.source,
        work=place.work,
        python=python,
        choice=profiles.choose(profiles.load_profiles(), profile=None, modules=modules or ("norm",)),
        env=listing.environment(
            python=python,
            cuda_root=place.work.parent / "cuda",
            arch=Arch.parse(arch),
            work=place.work,
        ),
        log=place.log,
    )


def test_every_module_of_the_target_is_listed_with_its_sources(place: Place) -> None:
    modules = {module.name: module.sources for module in ask(place).modules}
    assert modules["norm"] == ("csrc/norm.cpp", "csrc/binding.cpp")
    assert modules["silu_and_mul"] == ("generated:generated/silu_and_mul.cpp",)
    assert "trtllm_fmha_v2" in modules
    assert "trtllm_fmha_v2" not in {module.name for module in ask(place, arch="9.0a").modules}


def test_a_modules_own_target_flags_are_read(place: Place) -> None:
    targets = {module.name: module.targets for module in ask(place).modules}
    assert targets["trtllm_fmha_v2"] == ("sm_120a",)
    assert targets["norm"] == ()


def test_a_module_that_needs_a_download_is_left_out_with_the_reason_and_nothing_is_fetched(place: Place) -> None:
    listed = ask(place)
    assert [name for name, _ in listed.missing] == ["moe_utils"]
    assert "batched_gemm/checksums.txt" in listed.missing[0][1]
    assert "fetches and compiles it when it is first used" in listed.missing[0][1]


def test_only_the_chosen_modules_get_ninja_files(place: Place) -> None:
    ninja = ask(place, "norm", "silu_and_mul").ninja.read_text()
    assert ninja.count("subninja") == 2
    assert (place.work / "modules" / "norm" / "build.ninja").is_file()
    assert not (place.work / "modules" / "gelu_and_mul").exists()


def test_the_same_question_is_asked_once(place: Place) -> None:
    first = ask(place)
    saved = (place.work / "listing.json").stat().st_mtime_ns
    assert ask(place) == first
    assert (place.work / "listing.json").stat().st_mtime_ns == saved
    ask(place, arch="12.0a")
    assert (place.work / "listing.json").stat().st_mtime_ns != saved


def test_the_helper_of_trtllm_fmha_v2_runs_only_when_that_module_is_wanted(place: Place) -> None:
    ask(place, "norm")
    assert not (place.work / "modules" / "trtllm_fmha_v2" / "generated.cpp").exists()
    ask(place, "trtllm_fmha_v2")
    assert (place.work / "modules" / "trtllm_fmha_v2" / "generated.cpp").read_text().endswith("return 1; }")


def test_a_failed_helper_does_not_pass_unseen(place: Place) -> None:
    (place.work / "modules" / "trtllm_fmha_v2").mkdir(parents=True)
    (place.work / "modules" / "trtllm_fmha_v2" / "fail").touch()
    with pytest.raises(ConfigureError) as caught:
        ask(place, "trtllm_fmha_v2")
    assert caught.value.exit_code == 50
    assert "helper program failed (exit code 1)" in str(caught.value)


def test_a_failure_of_upstreams_code_is_one_message(place: Place) -> None:
    (place.source / "flashinfer" / "aot.py").write_text("raise ImportError('no module named torch')\n")
    with pytest.raises(ConfigureError) as caught:
        ask(place)
    assert "could not list its modules (exit code 1)" in caught.value.what
    assert "no module named torch" in caught.value.why
    assert str(place.log) in caught.value.hint


def test_the_source_folder_is_not_written_to(place: Place) -> None:
    before = {path: path.stat().st_mtime_ns for path in place.source.rglob("*")}
    ask(place, "norm")
    assert {path: path.stat().st_mtime_ns for path in place.source.rglob("*")} == before


def test_a_path_that_upstreams_ninja_files_cannot_hold_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "with blank"
    root.mkdir()
    with pytest.raises(SettingError) as caught:
        ask(Place(source=write_sdist(root), work=root / "work", log=root / "log"))
    assert caught.value.exit_code == 17
    assert "SM120_BUILD_DIR" in caught.value.hint


def test_nothing_of_the_callers_shell_changes_what_is_compiled(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLASHINFER_JIT_DEBUG", "NVCC_APPEND_FLAGS", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "CXX", "PYTHONPATH"):
        monkeypatch.setenv(name, "from-the-shell")
    env = listing.environment(
        python=Path("/env/bin/python"),
        cuda_root=Path("/cuda"),
        arch=Arch.parse("12.0f"),
        work=place.work,
        launcher=("launch", "--for $x"),
    )
    assert "from-the-shell" not in env.values()
    assert env["FLASHINFER_CUDA_ARCH_LIST"] == "12.0f"
    assert env["FLASHINFER_NVCC_LAUNCHER"] == "launch '--for $$x'"
    assert json.dumps(env)  # all of it is text
