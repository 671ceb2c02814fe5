"""Asks the architecture audit about a wheel for which no audit was given: the seam to ``prove``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from sm120_wheels import paths, recipe
from sm120_wheels.index.gates import OURS, named_targets
from sm120_wheels.index.names import read_labels
from sm120_wheels.prove import inputs
from sm120_wheels.prove.allow import known_traps, merged, read_allow_list
from sm120_wheels.prove.audit import audit
from sm120_wheels.prove.render import to_json
from sm120_wheels.prove.verdict import failures, judge
from sm120_wheels.wheel.archive import open_wheel
from sm120_wheels.wheel.finish import read_build_record


def live_audit(wheel: Path, sha256: str, *, traps: Path | None = None) -> bytes:
    """The audit of a wheel for the GPUs that it names and those of this project, as the JSON document that is
    published, bound to its sha256.

    ``traps`` is a list of known traps and absences, as ``sm120 audit --allow-traps`` takes it; the list of the recipe
    that a wheel of ours was built from counts too. Raises what the audit raises: a wheel that it cannot read is not
    published.
    """
    record = _build_record(wheel)
    files = [file for file in (traps, _recipe_list(record)) if file is not None]
    allow = merged(*(read_allow_list(file) for file in files)) if files else None
    named = named_targets(read_labels(str(parse_wheel_filename(wheel.name)[1])).archs)
    targets = sorted({*named, *OURS})
    found = audit(inputs.subject(str(wheel)), targets)
    known = merged(known_traps(found.name), *([allow] if allow else []))
    verdicts = [judge(found, target, known) for target in targets]
    # a wheel of ours keeps what its name promises; of others' it is shown
    document = to_json(found, verdicts, failures(found, verdicts, allow=allow, strict=bool(record)))
    # The path is that of the staged copy, which nobody will ever see.
    document |= {"path": wheel.name, "wheel_sha256": sha256}
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _build_record(wheel: Path) -> dict[str, Any]:
    """Empty for anybody else's wheel."""
    with open_wheel(wheel) as opened:
        return dict(read_build_record(opened) or {})


def _recipe_list(record: dict[str, Any]) -> Path | None:
    """The list of known traps beside the recipe that a wheel's build record names; None for anybody else's wheel."""
    plan = record.get("plan")
    name = plan.get("recipe") if isinstance(plan, dict) else None
    # The name comes out of a wheel, so it must be one of our recipes before it becomes part of a path.
    if name not in recipe.names():
        return None
    file = paths.recipes_root() / str(name) / "traps-allowed.toml"
    return file if file.is_file() else None
