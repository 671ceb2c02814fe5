"""What the records beside a wheel say of it: what its build cost, audit, equivalence, smoke. Judges as gates do."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels import files, measured
from sm120_wheels.errors import WheelInvalidError
from sm120_wheels.index import evidence, gates
from sm120_wheels.index.auditing import live_audit
from sm120_wheels.index.inspect import Inspected, inspect_wheel
from sm120_wheels.index.model import Evidence, State
from sm120_wheels.measured import Measured
from sm120_wheels.wheel.archive import open_wheel
from sm120_wheels.wheel.promises import broken_promises, excluded_of


@dataclass(frozen=True, kw_only=True)
class Told:
    """What is known of one kind of proof."""

    state: State
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One wheel, and what is known of it."""

    path: Path
    sha256: str
    size: int
    """Bytes."""
    identifier: str
    """Of its build; empty for a wheel of others."""
    cost: Measured | None
    complete: Told
    audit: Told
    equivalence: Told
    smoke: Told


def wheels_in(places: Sequence[Path]) -> list[Path]:
    """The wheels named, and those in the folders named. Raises :class:`WheelInvalidError` where there is none."""
    found: dict[Path, None] = {}
    for place in places:
        inside = sorted(place.glob("*.whl")) if place.is_dir() else [place]
        if not inside or not all(path.is_file() for path in inside):
            raise WheelInvalidError(
                f"there is no wheel {'in ' if place.is_dir() else ''}{place}",
                hint="give wheels, or a folder that holds some: dist/",
            )
        found.update(dict.fromkeys(inside))
    return list(found)


def standing(wheel: Path, *, audit_now: bool = False) -> Standing:
    """Read one wheel and its records. With ``audit_now`` a wheel without an audit is audited, and the record stays.

    Raises :class:`WheelInvalidError` for what is no wheel, and ``PublishRefusedError`` for a record of another file.
    """
    sha256 = files.sha256_file(wheel)
    inspected = inspect_wheel(wheel)
    record = wheel.with_name(f"{wheel.name}.audit.json")
    if audit_now and not record.is_file():
        files.write_text(record, live_audit(wheel, sha256).decode())
    known = [document.evidence for document in evidence.beside(wheel, sha256)]
    return Standing(
        path=wheel,
        sha256=sha256,
        size=wheel.stat().st_size,
        identifier=str((inspected.build or {}).get("identifier") or ""),
        cost=measured.read_beside(wheel, sha256),
        complete=_complete(inspected),
        audit=_audit(inspected, known),
        equivalence=_worst(known, "equivalence"),
        smoke=_worst(known, "smoke"),
    )


def _complete(inspected: Inspected) -> Told:
    if inspected.without:
        return Told(state="failed", detail=f"it was built without {', '.join(inspected.without)}")
    return Told(state="passed")


def _audit(inspected: Inspected, known: Iterable[Evidence]) -> Told:
    audits = [one for one in known if one.kind == "audit"]
    if not audits:
        return Told(state="not run", detail="there is no audit")
    why = gates.audit_problem(inspected, audits[-1])
    runs = [capability for capability, verdict in audits[-1].verdicts.items() if verdict == "runs"]
    return (
        Told(state="failed", detail=why)
        if why
        else Told(state="passed", detail=f"runs on {', '.join(runs)}" if runs else "")
    )


def _worst(known: Iterable[Evidence], kind: str) -> Told:
    """Failed if any record says so, passed if one does and none failed, else not run."""
    records = [one for one in known if one.kind == kind]
    for state in ("failed", "passed"):
        for record in records:
            if record.state == state:
                where = f"on {record.gpu}" if record.gpu else ""
                return Told(state=record.state, detail=" ".join(filter(None, [where, record.detail])))
    return Told(state="not run", detail=next((r.detail for r in records if r.detail), f"there is no {kind} record"))


def promises(wheel: Path) -> Told:
    """Whether its libraries keep what its name promises: platform, abi3, CUDA; and need no folder of this machine."""
    with open_wheel(wheel) as opened, tempfile.TemporaryDirectory(prefix="sm120-promises.") as folder:
        broken = broken_promises(opened, Path(folder), excluded=excluded_of(opened))
    if not broken:
        return Told(state="passed", detail=wheel.name.removesuffix(".whl").rsplit("-", 1)[1])
    return Told(state="failed", detail="; ".join(f"{one.promise}: {one.why}" for one in broken))
