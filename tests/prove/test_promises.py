"""What the audit says of promises that a wheel's name makes, and of files that nobody loads. Compiles no GPU code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm120_wheels.prove import inputs
from sm120_wheels.prove.audit import audit
from sm120_wheels.prove.verdict import failures, judge
from tests.prove.conftest import Said

Run = Callable[..., Said]

NEWER = "#include <stdlib.h>\nunsigned dice(void) { return arc4random(); }\n"
PTX = b".version 8.8\n.target sm_103a\n.address_size 64\n.visible .entry fused(.param .u64 p)\n{ ret; }\n" + b"\n" * 64


@pytest.fixture
def overpromising(tmp_path: Path, raw_wheel: Any, compile_library: Any) -> Path:
    tag = "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64"
    path: Path = raw_wheel(tag=tag, files={"tiny/newer.so": compile_library(NEWER)}).write(tmp_path)
    return path


def test_a_broken_promise_has_a_line_of_its_own_and_is_no_failure_of_other_peoples_wheels(
    overpromising: Path, sm120: Run
) -> None:
    said = sm120("audit", overpromising)
    assert said.code == 0
    words = " ".join(said.out.split())
    assert "promises of its name: failed" in words
    assert "platform: promised manylinux2014_x86_64, but tiny/newer.so asks libc.so.6 for GLIBC_2.36" in words


def test_with_strict_a_broken_promise_fails_the_audit(overpromising: Path, sm120: Run) -> None:
    said = sm120("audit", overpromising, "--strict", "--json")
    assert said.code == 61
    found = json.loads(said.out)
    assert found["promises"]["state"] == "failed"
    assert [p["kind"] for p in found["promises"]["broken"]] == ["platform"]
    assert found["failures"][0]["what"] == "the wheel promises manylinux2014_x86_64 and does not keep it"


def test_kept_promises_pass_and_for_what_has_no_tags_they_are_not_run(
    tmp_path: Path, raw_wheel: Any, extension: bytes, sm120: Run
) -> None:
    wheel = raw_wheel(tag="cp310-abi3-manylinux_2_17_x86_64", files={"tiny/_core.abi3.so": extension}).write(tmp_path)
    assert json.loads(sm120("audit", wheel, "--json", "--strict").out)["promises"]["state"] == "passed"
    (tmp_path / "core.so").write_bytes(extension)
    loose = json.loads(sm120("audit", tmp_path / "core.so", "--json").out)["promises"]
    assert (loose["state"], loose["why"]) == ("not run", "only a wheel's filename promises anything")


def test_an_extension_beyond_the_limited_api_breaks_the_abi3_tag(
    tmp_path: Path, raw_wheel: Any, compile_library: Any, sm120: Run
) -> None:
    unstable = compile_library('#include <Python.h>\nvoid PyInit_ext(void) { PyCode_NewEmpty("", "", 1); }\n')
    wheel = raw_wheel(tag="cp310-abi3-linux_x86_64", files={"tiny/ext.abi3.so": unstable}).write(tmp_path)
    (promise,) = json.loads(sm120("audit", wheel, "--json").out)["promises"]["broken"]
    assert promise["promise"] == "cp310-abi3"
    assert "outside the limited API" in promise["why"]


def test_libraries_of_two_machines_leave_the_promises_not_run(
    tmp_path: Path, raw_wheel: Any, compile_library: Any
) -> None:
    here = compile_library("int f;\n")
    there = bytearray(here)
    there[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64
    tag = "py3-none-manylinux_2_17_x86_64"
    wheel = raw_wheel(tag=tag, files={"tiny/a.so": here, "tiny/b.so": bytes(there)}).write(tmp_path)
    found = audit(inputs.subject(str(wheel)), [])
    assert found.promises.state == "not run"
    assert "more than one machine" in found.promises.why
    assert failures(found, [], strict=True)[0].what == "what the wheel's name promises was not looked at"


def test_ptx_that_lies_loose_and_is_named_by_nobody_is_data(tmp_path: Path, raw_wheel: Any, sm120: Run) -> None:
    files = {"tiny/csrc/ptx/fused.ptx": PTX, "tiny/__init__.py": b"x = 1\n"}
    wheel = raw_wheel(tag="py3-none-any", files=files).write(tmp_path)
    found = audit(inputs.subject(str(wheel)), [(12, 0)])
    verdict = judge(found, (12, 0))
    assert (verdict.answer, verdict.dead_bytes, len(found.libraries)) == ("no-cuda", 0, 1)
    assert json.loads(sm120("audit", wheel, "--json").out)["targets"]["12.0"]["libraries"][0]["data"] is True


@pytest.mark.parametrize("named", ["by python", "beside a library", "alone"])
def test_ptx_that_a_loader_can_be_expected_to_read_is_judged(
    tmp_path: Path, raw_wheel: Any, compile_library: Any, named: str
) -> None:
    files = {"tiny/fused.ptx": PTX, "tiny/__init__.py": b"x = 1\n"}
    if named == "by python":
        files["tiny/__init__.py"] = b"load('fused.ptx')\n"
    elif named == "beside a library":
        files["tiny/a.so"] = compile_library("int f;\n")
    path = raw_wheel(tag="py3-none-linux_x86_64", files=files).write(tmp_path)
    if named == "alone":
        path = tmp_path / "fused.ptx"
        path.write_bytes(PTX)
    found = audit(inputs.subject(str(path)), [(12, 0)])
    assert judge(found, (12, 0)).answer == "none"
    assert judge(found, (10, 3)).answer == "runs"
