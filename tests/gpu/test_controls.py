"""No negative control is ever passed: on a GPU with the real wheel, and elsewhere the comparison with what is expected.

On a machine with a GPU: ``SM120_CONTROLS_WHEEL`` names the wheel that ``sm120 build controls`` made for it,
``SM120_CONTROLS_OTHER_WHEEL`` one for another GPU, ``SM120_SMOKE_PYTHON`` an interpreter with torch.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import sm120_wheels.prove.smoke
from tests.gpu import controls

_REFUSED_EXIT = 72
_FAILED_EXIT = 70
_SUITES = Path(sm120_wheels.prove.smoke.__file__).parent / "payload/sm120_smoke/suites/controls"
_SUITE, _RANKS = _SUITES / "test_controls.py", _SUITES / "test_ranks.py"


def _case(name: str, *, state: str = "failed", why: str = "", stage: str = "", **more: Any) -> dict[str, Any]:
    stages = [{"name": stage, "state": "failed"}] if stage else []
    return {"name": f"suites/controls/test_controls.py::{name}", "state": state, "why": why, "stages": stages, **more}


def _differs(case: Mapping[str, Any]) -> str:
    return controls.problem(case, controls.expectations().get(controls.control_of(case["name"])))


def test_a_control_that_passes_is_a_problem() -> None:
    assert "must be failed, and is passed" in _differs(_case("test_control[returns_zeros]", state="passed"))


def test_a_control_that_is_not_run_is_a_problem() -> None:
    assert "must be failed, and is not run" in _differs(_case("test_control[traps]", state="not run"))


def test_a_control_that_fails_for_another_reason_is_a_problem() -> None:
    wrong = _case("test_control[traps]", why="AcceleratorError: CUDA error: no kernel image", stage="eager")
    assert "for another reason" in _differs(wrong)
    assert not _differs({**wrong, "why": "AcceleratorError: CUDA error: unspecified launch failure"})


def test_a_control_that_fails_at_another_stage_is_a_problem() -> None:
    wrong = _case("test_control[keeps_a_host_value]", why="7 elements differ by more than allowed", stage="eager")
    assert _differs(wrong) == "failed at eager, and must at graph"


def test_a_good_case_that_fails_is_a_problem() -> None:
    assert "must pass, and is failed" in _differs(_case("test_control[good-after-traps]", why="CUDA error"))
    assert not _differs(_case("test_control[good-after-traps]", state="passed"))


def test_a_hang_without_stacks_is_a_problem() -> None:
    hang = _case("test_waits_on_the_host", why="hang: no end after 5 s at eager: run")
    assert _differs(hang) == "the record of the hang lacks stage, step, stacks"
    told = {"stage": "eager", "step": "run", "stacks": "nothing of use"}
    assert "its stacks have no" in _differs({**hang, "hang": told})
    told["stacks"] = 'File "x.py", line 1 in _launch'
    assert "its last kernel is no" in _differs({**hang, "hang": told})
    unknown = "not known: CUPTI is not loaded"
    assert _differs({**hang, "hang": {**told, "last_kernel": unknown}}).endswith(unknown)
    assert not _differs({**hang, "hang": {**told, "last_kernel": "add (at eager: compute the reference)"}})


def test_a_record_without_cases_or_with_a_control_missing_is_a_problem() -> None:
    assert controls.problems({"cases": []}, {}, whole=False) == ["the record holds no case"]
    one = {"cases": [_case("test_control[returns_zeros]", why="the result is all zeros", stage="eager")]}
    missing = controls.problems(one, controls.expectations(), whole=True)
    assert "traps: it is not in the record" in missing
    assert not any(text.startswith("returns_zeros") for text in missing)


def test_with_one_gpu_the_controls_for_two_are_not_run_and_the_others_must_fail() -> None:
    short = _case("test_one_rank_never_arrives", state="not run", why="it needs 2 GPUs, this run has 1")
    passed = _case("test_control[traps]", state="passed")
    record = {"cases": [short, passed]}
    found = controls.problems(record, controls.for_one_gpu(controls.expectations(), record), whole=False)
    assert found == ["traps: must be failed, and is passed: "]
    assert _differs(short) == "must be failed, and is not run: it needs 2 GPUs, this run has 1"


def test_every_flaw_of_the_suite_is_expected_to_fail_and_nothing_else_is() -> None:
    text = _SUITE.read_text(encoding="utf-8")
    lists = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
    }
    expected = controls.expectations()
    failing = {name for name, each in expected.items() if each.state == "failed"}
    alone = {name for name in failing if f"def test_{name}(" in text + _RANKS.read_text(encoding="utf-8")}
    assert failing == {*lists["FLAWS"], *alone}
    assert alone >= {"never_returns", "waits_on_the_host", "one_rank_never_arrives", "hangs_by_p2p"}
    assert set(controls.expectations(sanitizer=True)) - set(expected) == set(lists["HIDDEN"])


def _gpus() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return done.stdout.count("GPU ") if done.returncode == 0 else 0


def named(variable: str) -> str:
    if not _gpus():
        pytest.skip("not run: no GPU")
    if variable not in os.environ:
        pytest.skip(f"not run: {variable} is not set")
    return os.environ[variable]


def smoke(tmp_path: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    record = tmp_path / "record.json"
    environment = ["--environment", os.environ["SM120_SMOKE_PYTHON"]] if "SM120_SMOKE_PYTHON" in os.environ else []
    command = [sys.executable, "-m", "sm120_wheels", "smoke", *arguments, "--record", str(record), *environment]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    return done.returncode, done.stdout + done.stderr, found


def test_each_control_fails_for_its_own_reason_and_the_good_cases_pass(tmp_path: Path) -> None:
    wheel, gpus = named("SM120_CONTROLS_WHEEL"), min(_gpus(), 2)
    code, output, record = smoke(tmp_path, wheel, "--gpus", str(gpus))
    assert code == _FAILED_EXIT, output
    expected = controls.expectations()
    if gpus == 1:
        expected = controls.for_one_gpu(expected, record)
    assert controls.problems(record, expected, whole=True) == []


def test_a_write_past_an_allocation_is_seen_under_the_sanitizer(tmp_path: Path) -> None:
    wheel = named("SM120_CONTROLS_WHEEL")
    _, output, record = smoke(tmp_path, wheel, "--sanitizer", "memcheck", "-k", "hidden")
    if not record:
        pytest.skip(f"not run: {output[-300:]}")
    assert controls.problems(record, controls.expectations(sanitizer=True), whole=False) == []


def test_a_wheel_for_another_gpu_is_refused(tmp_path: Path) -> None:
    wheel = named("SM120_CONTROLS_OTHER_WHEEL")
    code, output, record = smoke(tmp_path, wheel)
    assert code == _REFUSED_EXIT, output
    assert "needs sm_" in output
    assert record["state"] == "not run"
    assert record["cases"] == []
