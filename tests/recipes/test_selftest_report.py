"""The selftest package's verdicts, table and exit codes; needs neither torch nor a GPU."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sm120_wheels.arch import KNOWN, Arch

PACKAGE = Path(__file__).parents[2] / "recipes" / "selftest" / "source" / "python" / "sm120_selftest"


def _load() -> ModuleType:
    # By path: importing the package would load torch and the compiled library.
    spec = importlib.util.spec_from_file_location("selftest_report", PACKAGE / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


report: Any = _load()
PASSED = report.Outcome(state="passed", worst=0.5)
FAILED = report.Outcome(state="failed", why="all zeros", worst=math.inf)
NOT_HERE = report.Outcome(state="not run", why="not on this target (built for sm_90a; needs sm_120a)")


def case(eager: Any, graph: Any) -> Any:
    return report.CaseReport(name="x", feature="plain", tolerance="exact", eager=eager, graph=graph)


def measured(**changes: Any) -> Any:
    values = {"shape": (2,), "expected_shape": (2,), "not_finite": 0, "all_zero": False, "worst": 0.5}
    return report.Measured(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "state", "why"),
    [
        ({}, "passed", ""),
        ({"worst": 1.5}, "failed", "1.5 times"),
        ({"worst": math.nan}, "failed", "nan times"),
        ({"not_finite": 3}, "failed", "3 elements are NaN or infinite"),
        ({"all_zero": True}, "failed", "all zeros"),
        ({"shape": (3,)}, "failed", "shape [3]"),
    ],
)
def test_zeros_nan_and_wrong_shapes_fail(changes: dict[str, Any], state: str, why: str) -> None:
    outcome = report.judge(measured(**changes))
    assert outcome.state == state
    assert why in outcome.why


@pytest.mark.parametrize(
    ("reports", "code"),
    [
        ([case(PASSED, PASSED), case(NOT_HERE, NOT_HERE)], 0),
        ([case(PASSED, FAILED)], 1),
        ([case(PASSED, PASSED), case(report.Outcome(state="not run", why="context broken"), PASSED)], 1),
        ([case(NOT_HERE, NOT_HERE)], 3),
        ([], 3),
    ],
)
def test_the_exit_code_never_takes_not_run_for_passed(reports: list[Any], code: int) -> None:
    assert report.exit_code(reports) == code


def test_a_missing_gpu_or_target_is_named() -> None:
    assert report.why_nothing_runs(["sm_120a"], None) == "no CUDA GPU"
    h200 = report.Gpu(name="H200", capability=(9, 0))
    assert report.why_nothing_runs(["sm_120a"], h200) == "this wheel has sm_120a, GPU is 9.0"
    assert report.why_nothing_runs(["sm_120a", "sm_90a"], h200) == ""


@pytest.mark.parametrize("target", KNOWN)
def test_targets_cover_the_same_gpus_as_in_the_project(target: str) -> None:
    arch = Arch.parse(target)
    for capability in {Arch.parse(each).capability for each in KNOWN}:
        assert report.runs_on(arch.sm, capability) == arch.runs_on(capability)


def test_the_first_failure_among_shapes_wins_and_no_shape_is_not_a_pass() -> None:
    assert report.worst_of([PASSED, FAILED, NOT_HERE]) is FAILED
    assert report.worst_of([]).state == "not run"


def test_table_and_json_tell_all_three_states() -> None:
    reports = [case(PASSED, FAILED), case(NOT_HERE, NOT_HERE)]
    text = report.table(reports)
    assert "1 passed, 1 failed, 2 not run" in text
    assert text.count("not on this target") == 1
    data = json.loads(json.dumps(report.document(reports, build={}, gpu=None, versions={}), allow_nan=False))
    assert data["exit_code"] == 1
    assert data["cases"][0]["graph"] == {"state": "failed", "why": "all zeros", "worst": None}
