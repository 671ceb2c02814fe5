"""Reads the evidence that lies beside a wheel, and refuses what speaks of another file.

By convention ``<wheel filename>.audit.json``, ``.equivalence.json`` and ``.smoke.json``, each with the wheel's
sha256 in ``wheel_sha256``; ``.provenance`` is a PEP 740 provenance object. What the evidence is worth is decided in
``gates.py``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm120_wheels.errors import PublishRefusedError
from sm120_wheels.index.model import Evidence, EvidenceKind, State

_BESIDE: dict[EvidenceKind, str] = {
    "audit": ".audit.json",
    "equivalence": ".equivalence.json",
    "smoke": ".smoke.json",
    "provenance": ".provenance",
}
_LARGEST = 64 << 20
_STATES: dict[str, State] = {
    "passed": "passed",
    "pass": "passed",
    "ok": "passed",
    "failed": "failed",
    "fail": "failed",
    "not run": "not run",
    "not-run": "not run",
    "not_run": "not run",
}


@dataclass(frozen=True, kw_only=True)
class Document:
    """One file of evidence: what it says, and its bytes as they are published."""

    evidence: Evidence
    content: bytes


def beside(wheel: Path, sha256: str) -> list[Document]:
    """All evidence that lies beside a wheel. Raises :class:`PublishRefusedError` where it is not this wheel's."""
    found = []
    for kind, ending in _BESIDE.items():
        path = wheel.with_name(wheel.name + ending)
        if path.is_file():
            if path.stat().st_size > _LARGEST:
                raise _refused(path, f"it has {path.stat().st_size} bytes; the limit is {_LARGEST}")
            found.append(read(kind, path.read_bytes(), sha256=sha256, where=path))
    return found


def read(kind: EvidenceKind, content: bytes, *, sha256: str, where: Path) -> Document:
    """Read one file of evidence about the wheel with this sha256."""
    try:
        value = json.loads(content)
    except ValueError as exc:
        raise _refused(where, f"it is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise _refused(where, "it is not a JSON object")
    subjects = _attested(value, where) if kind == "provenance" else {str(value.get("wheel_sha256"))}
    if subjects != {sha256}:
        raise PublishRefusedError(
            f"{where.name} is not about this wheel",
            where=str(where),
            why=f"the wheel is sha256 {sha256}\nthe evidence speaks of {', '.join(sorted(subjects)) or 'none'}",
            hint="make the evidence again for this file; evidence of another build proves nothing about it",
        )
    state = None if kind == "provenance" else _state(kind, value, where)
    if kind == "smoke" and state == "passed":
        _check_passed(value, where)
    gpu, driver = _machine(value) if kind == "smoke" else ("", "")
    return document(
        kind,
        content,
        state=state,
        verdicts=_verdicts(value, where) if kind == "audit" else {},
        gpu=gpu,
        driver=driver,
        detail=_detail(value),
    )


def document(
    kind: EvidenceKind,
    content: bytes,
    *,
    state: State | None = None,
    verdicts: dict[str, str] | None = None,
    gpu: str = "",
    driver: str = "",
    detail: str = "",
) -> Document:
    """Evidence made of bytes that are known to be about the wheel, as its own SBOM."""
    evidence = Evidence(
        kind=kind,
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        state=state,
        verdicts=verdicts or {},
        gpu=gpu,
        driver=driver,
        detail=detail,
    )
    return Document(evidence=evidence, content=content)


def _state(kind: EvidenceKind, value: dict[str, Any], where: Path) -> State | None:
    if kind == "audit":
        # Its verdicts are judged against the wheel's targets; other findings of it are failures.
        return "failed" if value.get("failures") else None
    for key in ("state", "outcome", "verdict", "result", "status"):
        if str(value.get(key)).lower() in _STATES:
            return _STATES[str(value[key]).lower()]
    if isinstance(value.get("passed"), bool):
        return "passed" if value["passed"] else "failed"
    raise _refused(where, "it does not say passed, failed or not run")


def _check_passed(value: dict[str, Any], where: Path) -> None:
    """A smoke record that says passed, and whose own counts or backend say otherwise, is not believed."""
    counts = value.get("counts")
    if isinstance(counts, dict) and (counts.get("failed") or not counts.get("passed")):
        raise _refused(
            where, f"it says passed, and counts {counts.get('passed')} passed and {counts.get('failed')} failed"
        )
    if value.get("backend", "cuda") != "cuda":
        raise _refused(where, f"it says passed, and ran on the backend {value['backend']}, which is no GPU")


def _verdicts(value: dict[str, Any], where: Path) -> dict[str, str]:
    verdicts = value.get("verdicts")
    if not isinstance(verdicts, dict) or not verdicts:
        raise _refused(where, "it has no verdicts")
    return {str(k): str(v) for k, v in sorted(verdicts.items())}


def _machine(value: dict[str, Any]) -> tuple[str, str]:
    """The GPU's name and the driver, from ``gpu`` (a name, or an object) and ``driver``."""
    gpu = value.get("gpu") or value.get("device") or ""
    driver = value.get("driver") or ""
    if isinstance(gpu, dict):
        driver = driver or gpu.get("driver") or gpu.get("driver_version") or ""
        gpu = gpu.get("name") or ""
    return str(gpu)[:100], str(driver)[:40]


def _detail(value: dict[str, Any]) -> str:
    failures = value.get("failures")
    if isinstance(failures, list) and failures and isinstance(failures[0], dict):
        return " ".join(str(failures[0].get("what", "")).split())[:300]
    for key in ("reason", "why", "detail", "summary"):
        if isinstance(value.get(key), str):
            return " ".join(value[key].split())[:300]
    return ""


def _attested(value: dict[str, Any], where: Path) -> set[str]:
    """The sha256 of every subject of a PEP 740 provenance object."""
    try:
        statements = [
            json.loads(base64.b64decode(attestation["envelope"]["statement"]))
            for bundle in value["attestation_bundles"]
            for attestation in bundle["attestations"]
        ]
        return {str(subject["digest"]["sha256"]) for statement in statements for subject in statement["subject"]}
    except (KeyError, TypeError, ValueError, binascii.Error) as exc:
        raise _refused(where, f"it is not a PEP 740 provenance object: {exc!r}") from exc


def _refused(where: Path, why: str) -> PublishRefusedError:
    return PublishRefusedError(
        f"the evidence {where.name} cannot be read",
        where=str(where),
        why=why,
        hint="make it again, or take it away: it is not published unread",
    )
