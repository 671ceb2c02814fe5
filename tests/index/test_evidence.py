from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest

from sm120_wheels.errors import PublishRefusedError
from sm120_wheels.index.evidence import beside
from tests.index import makewheel
from tests.index.makewheel import make_wheel


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_evidence_of_another_file_is_refused_naming_both_hashes(dist: Path) -> None:
    wheel = make_wheel(dist)
    makewheel.beside(wheel, "smoke", state="passed", wheel_sha256="0" * 64)
    with pytest.raises(PublishRefusedError, match="is not about this wheel") as refused:
        beside(wheel, sha(wheel))
    assert sha(wheel) in refused.value.why
    assert "0" * 64 in refused.value.why


def test_evidence_without_a_hash_is_refused(dist: Path) -> None:
    wheel = make_wheel(dist, audit={})
    wheel.with_name(wheel.name + ".audit.json").write_text(json.dumps({"verdicts": {"12.0": "runs"}}))
    with pytest.raises(PublishRefusedError, match="is not about this wheel"):
        beside(wheel, sha(wheel))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"passed"'])
def test_unreadable_evidence_is_refused_not_skipped(dist: Path, text: str) -> None:
    wheel = make_wheel(dist)
    wheel.with_name(wheel.name + ".smoke.json").write_text(text)
    with pytest.raises(PublishRefusedError, match="cannot be read"):
        beside(wheel, sha(wheel))


def test_smoke_record_that_says_nothing_is_refused(dist: Path) -> None:
    wheel = make_wheel(dist)
    makewheel.beside(wheel, "smoke", gpu="RTX 5090")
    with pytest.raises(PublishRefusedError, match="cannot be read") as refused:
        beside(wheel, sha(wheel))
    assert "passed, failed or not run" in refused.value.why


def test_smoke_record_tells_state_gpu_and_driver(dist: Path) -> None:
    wheel = make_wheel(dist, audit={})
    makewheel.beside(wheel, "smoke", state="failed", gpu={"name": "RTX 5090", "driver": "580.65"}, reason="all zeros")
    (document,) = beside(wheel, sha(wheel))
    record = document.evidence
    assert (record.state, record.gpu, record.driver, record.detail) == ("failed", "RTX 5090", "580.65", "all zeros")
    assert record.filename == f"smoke.{record.sha256[:12]}.json"


def provenance(digest: str) -> str:
    statement = base64.b64encode(json.dumps({"subject": [{"digest": {"sha256": digest}}]}).encode()).decode()
    attestation = {"version": 1, "verification_material": {}, "envelope": {"statement": statement, "signature": ""}}
    return json.dumps({"version": 1, "attestation_bundles": [{"publisher": {}, "attestations": [attestation]}]})


def test_provenance_is_bound_by_its_statements_subject(dist: Path) -> None:
    wheel = make_wheel(dist, audit={})
    path = wheel.with_name(wheel.name + ".provenance")
    path.write_text(provenance(sha(wheel)))
    assert [d.evidence.kind for d in beside(wheel, sha(wheel))] == ["provenance"]
    path.write_text(provenance("1" * 64))
    with pytest.raises(PublishRefusedError, match="is not about this wheel"):
        beside(wheel, sha(wheel))
    path.write_text(json.dumps({"version": 1}))
    with pytest.raises(PublishRefusedError, match="cannot be read"):
        beside(wheel, sha(wheel))


@pytest.mark.parametrize(
    "value",
    [
        {"counts": {"passed": 3, "failed": 1, "not_run": 0}},
        {"counts": {"passed": 0, "failed": 0, "not_run": 9}},
        {"backend": "host", "counts": {"passed": 3, "failed": 0, "not_run": 0}},
    ],
)
def test_smoke_record_that_contradicts_itself_is_refused(dist: Path, value: dict[str, object]) -> None:
    wheel = make_wheel(dist)
    makewheel.beside(wheel, "smoke", state="passed", gpu="RTX 5090", **value)
    with pytest.raises(PublishRefusedError, match="cannot be read") as refused:
        beside(wheel, sha(wheel))
    assert "it says passed, and" in refused.value.why
