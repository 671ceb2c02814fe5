"""Asks the architecture audit about a wheel for which no audit was given: the seam to ``prove``."""

from __future__ import annotations

import json
from pathlib import Path

from sm120_wheels.index.gates import OURS
from sm120_wheels.prove import inputs
from sm120_wheels.prove.allow import read_allow_list
from sm120_wheels.prove.audit import audit
from sm120_wheels.prove.render import to_json
from sm120_wheels.prove.verdict import failures, judge


def live_audit(wheel: Path, sha256: str, *, traps: Path | None = None) -> bytes | None:
    """The audit of a wheel for the GPUs of this project, as the JSON document that is published, bound to its sha256.

    ``traps`` is a list of known traps and absences, as ``sm120 audit --allow-traps`` takes it. Raises what the audit
    raises: a wheel that it cannot read is not published.
    """
    allow = read_allow_list(traps) if traps else None
    found = audit(inputs.subject(str(wheel)), OURS)
    verdicts = [judge(found, target, allow) for target in OURS]
    document = to_json(found, verdicts, failures(found, verdicts, allow=allow))
    # The path is that of the staged copy, which nobody will ever see.
    document |= {"path": wheel.name, "wheel_sha256": sha256}
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
