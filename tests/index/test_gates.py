from __future__ import annotations

from typing import Any

import pytest

from sm120_wheels.errors import PublishRefusedError, SettingError
from sm120_wheels.index.gates import GATES, audit_problem, check_allowed, check_label, objections, refusal
from sm120_wheels.index.inspect import Inspected
from sm120_wheels.index.model import Evidence, EvidenceKind


def wheel(**changed: Any) -> Inspected:
    values: dict[str, Any] = {
        "project": "tiny",
        "version": "1.0+cu130.sm120a",
        "summary": "",
        "requires_python": None,
        "requires_dist": (),
        "metadata": b"",
        "label": "cu130",
        "torch": None,
        "archs": ("12.0a",),
        "pure": False,
        "without": (),
        "build": None,
        "build_json": None,
        "sboms": (),
    }
    return Inspected(**{**values, **changed})


def evidence(kind: EvidenceKind, **values: Any) -> Evidence:
    return Evidence(kind=kind, sha256="0" * 64, size=1, **values)


def gates_of(inspected: Inspected, *records: Evidence, require_smoke: bool = False) -> list[str]:
    return [o.gate for o in objections("tiny.whl", inspected, records, require_smoke=require_smoke)]


RUNS = evidence("audit", verdicts={"12.0": "runs", "12.1": "none"})


def test_audited_whole_wheel_passes() -> None:
    assert gates_of(wheel(), RUNS) == []


def test_absent_audit_is_never_a_pass() -> None:
    assert gates_of(wheel()) == ["no-audit"]


@pytest.mark.parametrize(
    ("archs", "verdicts", "passes"),
    [
        (("12.0a",), {"12.0": "runs"}, True),
        (("12.0a",), {"12.0": "part"}, False),
        (("12.0a",), {"12.0": "unread"}, False),
        (("12.0a",), {"12.0": "none"}, False),
        (("12.0a",), {"12.0": "no-cuda"}, False),
        (("12.0a",), {}, False),
        (("12.0f",), {"12.0": "runs", "12.1": "runs"}, True),
        (("12.0f",), {"12.0": "runs", "12.1": "part"}, False),
        (("12.1a",), {"12.0": "runs", "12.1": "none"}, False),
        (("12.0a", "12.1a"), {"12.0": "runs", "12.1": "runs"}, True),
        (("9.0a",), {"12.0": "runs"}, False),
    ],
)
def test_audit_must_say_runs_for_every_target(archs: tuple[str, ...], verdicts: dict[str, str], passes: bool) -> None:
    problem = audit_problem(wheel(archs=archs), evidence("audit", verdicts=verdicts))
    assert (problem == "") is passes, problem


def test_wheel_without_gpu_code_passes_only_if_it_claims_none() -> None:
    none = evidence("audit", verdicts={"12.0": "no-cuda", "12.1": "no-cuda"})
    assert gates_of(wheel(label=None, archs=()), none) == []
    assert gates_of(wheel(label="cu130", archs=()), none) == ["audit"]
    assert gates_of(wheel(archs=("12.0f",)), none) == ["audit"]


def test_pure_wheel_of_a_set_may_carry_the_sets_label() -> None:
    none = evidence("audit", verdicts={"12.0": "no-cuda", "12.1": "no-cuda"})
    assert gates_of(wheel(archs=("12.0f",), pure=True), none) == []
    assert gates_of(wheel(archs=("12.0f",), pure=True), RUNS) == ["audit"]


def test_audit_that_says_failed_is_refused_whatever_its_verdicts() -> None:
    assert gates_of(wheel(), evidence("audit", verdicts={"12.0": "runs"}, state="failed")) == ["audit"]


def test_partial_wheel_is_refused_by_name_of_what_is_missing() -> None:
    found = objections("tiny.whl", wheel(without=("flash_ops",)), [RUNS])
    assert [o.gate for o in found] == ["partial"]
    assert "flash_ops" in found[0].why


@pytest.mark.parametrize("state", ["failed", "not run"])
def test_equivalence_that_did_not_pass_is_refused(state: str) -> None:
    assert gates_of(wheel(), RUNS, evidence("equivalence", state=state)) == ["equivalence"]


def test_smoke_that_was_not_run_is_no_pass_where_one_is_required() -> None:
    not_run = evidence("smoke", state="not run", detail="no GPU")
    assert gates_of(wheel(), RUNS, not_run) == []
    assert gates_of(wheel(), RUNS, not_run, require_smoke=True) == ["no-smoke"]
    assert gates_of(wheel(), RUNS, require_smoke=True) == ["no-smoke"]
    assert gates_of(wheel(), RUNS, evidence("smoke", state="passed"), require_smoke=True) == []


def test_failed_smoke_is_refused_even_where_none_is_required() -> None:
    assert gates_of(wheel(), RUNS, evidence("smoke", state="failed", gpu="RTX 5090")) == ["smoke"]


def test_refusal_names_every_objection_and_the_exceptions() -> None:
    found = objections("tiny.whl", wheel(without=("flash_ops",)), [])
    error = refusal(found)
    assert error.exit_code == 80
    assert "flash_ops" in error.why
    assert "--allow no-audit --allow partial" in error.hint


def test_unknown_gate_is_refused_with_near_misses() -> None:
    with pytest.raises(SettingError) as refused:
        check_allowed(["partail"])
    assert "did you mean partial" in refused.value.hint
    assert check_allowed(GATES) == frozenset(GATES)


def test_cuda_versions_that_disagree_are_refused() -> None:
    with pytest.raises(PublishRefusedError, match="disagrees with itself"):
        check_label("tiny.whl", wheel(build={"cuda": "12.8"}), ())
    with pytest.raises(PublishRefusedError, match="is for cu130, not for cu128"):
        check_label("tiny.whl", wheel(), ("cu128",))
    check_label("tiny.whl", wheel(build={"cuda": "13.0"}), ("cu130",))
