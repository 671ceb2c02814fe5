"""The audit and its verdicts on small libraries and wheels, through the command line as people use it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm120_wheels.prove import inputs, traps
from sm120_wheels.prove.audit import audit, host_facts
from sm120_wheels.prove.images import choose
from sm120_wheels.prove.verdict import EXIT_CODES, judge
from tests.prove.conftest import Said, Samples
from tests.wheel.conftest import RawWheel

Run = Callable[..., Said]
Pack = Callable[..., Path]

needs_nvcc = [pytest.mark.cuda, pytest.mark.network]
pytestmark = needs_nvcc


def verdicts(path: Path) -> dict[str, str]:
    targets = [(9, 0), (12, 0), (12, 1)]
    found = audit(inputs.subject(str(path)), targets)
    return {v.target: v.answer for v in (judge(found, t) for t in targets)}


def test_a_library_of_several_architectures_runs_on_these_alone(samples: Samples) -> None:
    assert verdicts(samples["libmulti.so"]) == {"9.0": "runs", "12.0": "runs", "12.1": "none"}


def test_code_for_one_architecture_does_not_run_on_its_neighbour(samples: Samples) -> None:
    assert verdicts(samples["libonly.so"]) == {"9.0": "none", "12.0": "runs", "12.1": "none"}


def test_family_code_runs_on_the_whole_family(samples: Samples) -> None:
    assert verdicts(samples["libfamily.so"]) == {"9.0": "none", "12.0": "runs", "12.1": "runs"}


def test_ptx_alone_runs_by_compiling_and_is_counted_apart(samples: Samples) -> None:
    assert verdicts(samples["libptx.so"]) == {"9.0": "runs", "12.0": "runs", "12.1": "runs"}
    verdict = judge(audit(inputs.subject(str(samples["libptx.so"])), []), (12, 0))
    assert verdict.total("ptx") == 4
    assert verdict.total("native") == verdict.total("family") == 0


def test_a_wheel_without_gpu_code_has_none(packed: Pack, sm120: Run) -> None:
    wheel = packed({"tiny/__init__.py": b"answer = 42\n"})
    assert verdicts(wheel) == {"9.0": "no-cuda", "12.0": "no-cuda", "12.1": "no-cuda"}
    assert sm120("audit", wheel, "--target", "12.0").code == EXIT_CODES["no-cuda"] == 67


def test_json_has_what_programs_rely_on(samples: Samples, packed: Pack, sm120: Run) -> None:
    wheel = packed({"tiny/libmulti.so": samples["libmulti.so"], "tiny/libptx.so": samples["libptx.so"]})
    said = sm120("audit", wheel, "--json", "--target", "12.0", "--target", "9.0")
    assert said.code == 0
    found: dict[str, Any] = json.loads(said.out)
    multi, ptx = found["libraries"]
    assert multi["path"] == "tiny/libmulti.so"
    assert {t: v["kernels"] for t, v in multi["sass"].items()} == {"sm_90": 4, "sm_120a": 4}
    assert multi["ptx"] == {}
    assert ptx["ptx"]["compute_80"]["kernels"] == 4
    assert ptx["sass"].keys() <= {"sm_75", "sm_80"}  # nvcc's own stub at most
    assert found["verdicts"] == {"12.0": "runs", "9.0": "runs"}
    assert multi["cuda_majors"] == [13]
    assert multi["symbol_versions"]["GLIBC"].startswith("2.")
    assert multi["compilers"] == [samples.toolkit.version]


def test_bytes_for_each_architecture_are_the_files_own(samples: Samples) -> None:
    (library,) = audit(inputs.subject(str(samples["libmulti.so"])), []).libraries
    listed = subprocess.run(["readelf", "-SW", samples["libmulti.so"]], capture_output=True, text=True, check=True)
    row = next(line for line in listed.stdout.splitlines() if ".nv_fatbin" in line)
    size = int(row.split(".nv_fatbin")[1].split()[3], 16)
    counted = sum(i.bytes for i in library.images)
    assert 0 <= size - counted <= 64 * len(library.images)


def test_each_verdict_has_its_own_exit_code(samples: Samples, sm120: Run) -> None:
    assert sm120("audit", samples["libonly.so"], "--target", "12.0").code == 0
    assert sm120("audit", samples["libonly.so"], "--target", "12.1").code == 66
    assert sm120("audit", samples["libtraps.so"], "--target", "12.0").code == 65
    assert sm120("audit", samples["libonly.so"], "--target", "12.0", "--target", "12.1").code == 66
    assert sm120("audit", samples["libonly.so"]).code == 0  # no target asked for: nothing to fail


def test_traps_that_could_not_be_looked_for_never_look_like_none(
    samples: Samples, sm120: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traps, "readable_archs", lambda: frozenset({"sm_90"}))  # an nvdisasm of the past
    said = sm120("audit", samples["libtraps.so"], "--target", "12.0")
    assert said.code == EXIT_CODES["unread"] == 64
    assert "not known: traps not looked for" in said.out
    assert "traps not looked for: nvdisasm does not read sm_120a" in said.out
    document = json.loads(sm120("audit", samples["libtraps.so"], "--target", "12.0", "--json").out)
    assert document["verdicts"] == {"12.0": "unread"}
    strict = sm120("audit", samples["libtraps.so"], "--target", "12.0", "--strict")
    assert (strict.code, "traps were not looked for on 12.0" in strict.err) == (61, True)


def test_a_trap_is_named_with_its_message(samples: Samples, sm120: Run) -> None:
    said = sm120("audit", samples["libtraps.so"], "--target", "12.0")
    assert "runs in part" in said.out
    assert "a guard says: Trying to use tma without CUTE_ARCH_TMA_SM90_ENABLED." in said.out
    assert "through_a_call" in said.out
    assert "checks_its_input" not in said.out


def test_an_allowed_trap_does_not_count_and_a_new_one_fails(samples: Samples, sm120: Run, tmp_path: Path) -> None:
    allow = tmp_path / "allowed.toml"
    rule = '[[trap]]\nkernel = "{}"\nwhy = "never launched on this GPU"\n'
    allow.write_text(rule.format("*"))
    said = sm120("audit", samples["libtraps.so"], "--target", "12.0", "--allow-traps", allow)
    assert said.code == 0
    assert "never launched" in sm120("audit", samples["libtraps.so"], "--json", "--allow-traps", allow).out
    allow.write_text("".join(rule.format(n) for n in ("guarded(*", "through_a_call(*", "reporting(*", "aborting(*")))
    said = sm120("audit", samples["libtraps.so"], "--target", "12.0", "--allow-traps", allow)
    assert said.code == 61
    assert "a kernel is a trap on 12.0 and not on the list of known ones" in said.err
    assert "silent" in said.out


def test_a_broken_allow_list_names_the_key(samples: Samples, sm120: Run, tmp_path: Path) -> None:
    allow = tmp_path / "allowed.toml"
    allow.write_text('[[trap]]\nkernel = "*"\n')
    said = sm120("audit", samples["libtraps.so"], "--allow-traps", allow)
    assert said.code == 17
    assert "trap.0.why: Field required" in said.err


def test_an_architecture_that_the_build_dropped_fails(samples: Samples, sm120: Run) -> None:
    said = sm120("audit", samples["libonly.so"], "--expect", "12.0a,9.0a")
    assert said.code == 61
    assert "libonly.so: sm_90a was asked for and is missing" in said.err
    assert "they have sm_120a" in said.out
    assert sm120("audit", samples["libonly.so"], "--expect", "12.0a").code == 0


def test_another_variant_is_not_the_one_that_was_asked_for(samples: Samples, sm120: Run) -> None:
    said = sm120("audit", samples["libfamily.so"], "--expect", "12.0a")
    assert said.code == 61
    assert "sm_120a was asked for" in said.err


def test_a_cuda_major_that_is_not_the_labels_fails(samples: Samples, packed: Pack, sm120: Run) -> None:
    wrong = packed({"tiny/lib.so": samples["libonly.so"]}, version="0.1+cu128")
    said = sm120("audit", wrong)
    assert said.code == 61
    assert "tiny/lib.so needs CUDA 13, the wheel is labelled CUDA 12" in said.err
    assert "libcudart.so.13" in said.out
    right = packed({"tiny/lib.so": samples["libonly.so"]}, version="0.1+cu130.torch2.11")
    assert sm120("audit", right).code == 0
    assert sm120("audit", right, "--cuda", "12").code == 61


def test_the_cuda_of_a_wheel_is_named_and_must_be_the_one_that_compiled_it(
    samples: Samples, packed: Pack, sm120: Run
) -> None:
    version = samples.toolkit.version
    release = version.rpartition(".")[0]
    other = "cu139"
    right = packed({"tiny/lib.so": samples["libonly.so"]}, version=f"0.1+cu{release.replace('.', '')}.torch211")
    assert f"CUDA: {release} by its version, machine code by ptxas {version}" in sm120("audit", right).out
    assert json.loads(sm120("audit", right, "--json").out)["cuda"] == {"release": release, "compilers": [version]}
    wrong = packed({"tiny/lib.so": samples["libonly.so"]}, version=f"0.1+{other}")
    assert sm120("audit", wrong).code == 0  # others' wheels are shown
    told = f"the wheel is labelled CUDA 13.9, and has machine code of ptxas {version}"
    said = sm120("audit", wrong, "--strict")
    assert (said.code, told in said.err) == (61, True), said.err


def test_a_library_that_was_cut_in_half_is_one_clear_error(samples: Samples, packed: Pack, sm120: Run) -> None:
    whole = samples["libmulti.so"].read_bytes()
    said = sm120("audit", packed({"tiny/lib.so": whole[: len(whole) // 2]}))
    assert said.code == 60
    assert "tiny/lib.so" in said.err
    assert "Traceback" not in said.err


def test_a_renamed_wheel_is_read_and_its_tags_are_noted(sm120: Run, tmp_path: Path) -> None:
    # published wheels are like that, and installers take them
    wheel = RawWheel(filename="tiny-0.1-cp310-abi3-manylinux2014_x86_64.whl").write(tmp_path)
    said = sm120("audit", wheel)
    assert said.code == 0
    assert "tags in WHEEL are not the filename's: inside cp310-abi3-linux_x86_64" in said.out


def test_a_wheel_that_is_no_zip_is_one_clear_error(sm120: Run, tmp_path: Path) -> None:
    wheel = tmp_path / "tiny-0.1-py3-none-any.whl"
    wheel.write_bytes(b"PK\x03\x04 and then nothing")
    said = sm120("audit", wheel)
    assert said.code == 60
    assert "damaged zip archive" in said.err


def test_what_cannot_hold_gpu_code_says_what_can(sm120: Run, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    said = sm120("audit", text)
    assert said.code == 60
    assert "a cubin, a fatbin" in said.err.replace(".cubin", "cubin").replace(".fatbin", "fatbin")
    assert sm120("audit", tmp_path / "no-such-thing").code == 60
    assert sm120("audit", text, "--target", "twelve").code == 14


def test_objects_cubins_fatbins_and_folders_are_read_too(samples: Samples, sm120: Run) -> None:
    for name in ("elsewhere.o", "linkable.o", "plain.cubin", "targets.fatbin"):
        assert sm120("audit", samples[name], "--target", "12.0").code == 0, name
    said = sm120("audit", samples.folder, "--json")
    assert {lib["path"] for lib in json.loads(said.out)["libraries"]} > {"libmulti.so", "elsewhere.o", "plain.cubin"}


def test_the_library_that_the_package_would_not_load_is_left_out(samples: Samples, packed: Pack, sm120: Run) -> None:
    wheel = packed(
        {
            "sgl_kernel/sm90/common_ops.abi3.so": samples["libtraps.so"],
            "sgl_kernel/sm100/common_ops.abi3.so": samples["libonly.so"],
        }
    )
    said = sm120("audit", wheel, "--target", "12.0", "--json")
    assert said.code == 0
    sm100, sm90 = json.loads(said.out)["targets"]["12.0"]["libraries"]
    assert sm100["loaded"]
    assert sm90["why_not_loaded"] == "sgl_kernel loads sm100/ on compute capability 12.0"
    # all of it is dead weight, host code too
    assert sum(sm90["dead_bytes"].values()) == samples["libtraps.so"].stat().st_size
    assert sm120("audit", wheel, "--target", "9.0").code == 0


def test_dead_weight_is_what_the_gpu_cannot_run(samples: Samples) -> None:
    found = audit(inputs.subject(str(samples["libmulti.so"])), [])
    (library,) = found.libraries
    verdict = judge(found, (12, 0))
    assert verdict.libraries[0].dead == {"sm_90": sum(i.bytes for i in library.images if i.target == "sm_90")}


def test_the_code_of_exactly_the_capability_is_preferred(samples: Samples) -> None:
    (library,) = audit(inputs.subject(str(samples["targets.fatbin"])), []).libraries

    def chosen(*target: int) -> str | None:
        (index,) = choose(library.images, (target[0], target[1])).values()
        return None if index is None else library.images[index].target

    assert chosen(12, 0) == "sm_120a"
    assert chosen(12, 1) == "sm_121a"
    assert chosen(10, 3) == "sm_103a"
    assert chosen(9, 0) == "sm_90a"
    assert chosen(8, 9) == "sm_80"
    assert chosen(11, 0) is None  # family code of another major, and PTX of a family


def test_torch_and_abi_are_told_from_symbols() -> None:
    facts = host_facts(
        ["libtorch_cuda.so", "libc10.so", "libcufft.so.12", "libcusparse.so.12", "libnvvm.so.4"],
        ["$ORIGIN"],
        {"libc.so.6": frozenset({"GLIBC_2.17", "GLIBC_2.9"}), "libstdc++.so.6": frozenset({"GLIBCXX_3.4.29"})},
        ["_ZN3c104implEv", "_ZNK2at6Tensor3dimEv", "aoti_torch_call", "_ZN3c1015Sy5ErrorNSt7__cxx1112basic_stringIcEE"],
    )
    assert facts.cuda_majors == (13,)  # cuFFT 12 is of CUDA 13; cuSPARSE 12 and NVVM 4 do not tell
    assert facts.versions == {"GLIBC": "2.17", "GLIBCXX": "3.4.29"}
    assert facts.torch_libraries == ("libtorch_cuda.so", "libc10.so")
    assert (facts.torch_symbols, facts.torch_stable_symbols, facts.cxx11_abi) == (3, 1, True)
