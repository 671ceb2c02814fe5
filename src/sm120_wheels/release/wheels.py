"""Checks of the wheels that are to go out, and of the index that they go to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sm120_wheels.errors import Sm120Error
from sm120_wheels.index.layout import Layout
from sm120_wheels.index.verify import verify
from sm120_wheels.release.check import Check
from sm120_wheels.release.standing import promises, standing


def of_wheels(wheels: Sequence[Path]) -> list[Check]:
    """Complete, audit, promises, equivalence and smoke of each; an audit that is not there is made and kept."""
    return [check for wheel in wheels for check in _of(wheel)]


def _of(wheel: Path) -> list[Check]:
    try:
        known = standing(wheel, audit_now=True)
        kept = promises(wheel)
    except Sm120Error as exc:
        detail = f"{exc.what}{': ' + ' '.join(exc.why.split()) if exc.why else ''}"
        return [Check(name="audit", subject=wheel.name, state="failed", detail=detail)]
    told = (
        ("complete", known.complete),
        ("audit", known.audit),
        ("promises", kept),
        ("equivalence", known.equivalence),
        ("smoke", known.smoke),
    )
    return [Check(name=name, subject=wheel.name, state=one.state, detail=one.detail) for name, one in told]


def of_index(root: Path) -> list[Check]:
    """Whether everything that is published is as it was published. Not run where nothing is: it may be a typo."""
    if not Layout(root).state.is_dir():
        why = "it holds no index yet" if root.is_dir() else "there is no such folder (--index)"
        return [Check(name="index", subject=str(root), state="not run", detail=why)]
    try:
        result = verify(root)
    except Sm120Error as exc:
        return [Check(name="index", subject=str(root), state="failed", detail=exc.what)]
    if result.damage:
        first = result.damage[0]
        return [Check(name="index", subject=str(root), state="failed", detail=f"{first.path}: {first.what}")]
    return [Check(name="index", subject=str(root), state="passed", detail=f"{result.wheels} wheels")]
