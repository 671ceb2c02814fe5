"""Decides which wheels may be published. Absence of proof is never proof: what was not checked is refused.

Every gate has a name; ``--allow <gate>`` overrules one, and the exception is written on the wheel's record and its
page. Nothing here reads files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm120_wheels.arch import Arch
from sm120_wheels.errors import PublishRefusedError, SettingError, UnknownArchError, near_misses
from sm120_wheels.index.model import Evidence
from sm120_wheels.index.names import label_of

if TYPE_CHECKING:  # the gates' names are part of --help; reading wheels is not
    from sm120_wheels.index.inspect import Inspected

#: The gates that may be overruled, and what each asks for.
GATES: dict[str, str] = {
    "audit": "the audit finds machine code for every target that the wheel names",
    "no-audit": "there is an audit, given or made now",
    "equivalence": "an equivalence record, where there is one, says passed",
    "partial": "the wheel leaves nothing out",
    "smoke": "no smoke record says failed",
    "no-smoke": "with --require-smoke: a smoke record of this file says passed",
}
#: The compute capabilities that this project builds for.
OURS = ((12, 0), (12, 1))


@dataclass(frozen=True, kw_only=True)
class Objection:
    """A gate that a wheel does not pass."""

    gate: str
    filename: str
    why: str


def check_allowed(names: Iterable[str]) -> frozenset[str]:
    """The gates to overrule. Raises :class:`SettingError` for a name that is none."""
    for name in names:
        if name not in GATES:
            raise SettingError(f"--allow: no gate is called {name!r}", hint=near_misses(name, GATES))
    return frozenset(names)


def objections(
    filename: str, wheel: Inspected, evidence: Sequence[Evidence], *, require_smoke: bool = False
) -> list[Objection]:
    """Every gate that the wheel does not pass. ``evidence`` is known to be about this wheel."""
    found: list[Objection] = []

    def object_to(gate: str, why: str) -> None:
        found.append(Objection(gate=gate, filename=filename, why=why))

    if wheel.without:
        object_to("partial", f"it was built without {', '.join(wheel.without)}")
    audits = [e for e in evidence if e.kind == "audit"]
    if not audits:
        object_to("no-audit", "no audit was given and none could be made here")
    elif why := audit_problem(wheel, audits[-1]):
        object_to("audit", why)
    for record in evidence:
        if record.kind == "equivalence" and record.state != "passed":
            object_to("equivalence", f"its equivalence record says {record.state}{_because(record)}")
    smokes = [e for e in evidence if e.kind == "smoke"]
    for record in smokes:
        if record.state == "failed":
            object_to("smoke", f"its smoke record says failed{_on(record)}{_because(record)}")
    if require_smoke and not any(record.state == "passed" for record in smokes):
        told = "; ".join(f"{r.state}{_on(r)}{_because(r)}" for r in smokes) or "there is none"
        object_to("no-smoke", f"a passed smoke record is required: {told}")
    return found


def audit_problem(wheel: Inspected, audit: Evidence) -> str:
    """Why an audit's verdicts do not carry the wheel's targets, or nothing."""
    verdicts = audit.verdicts
    if audit.state == "failed":
        return f"its audit says failed{_because(audit)}"
    if wheel.pure and set(verdicts.values()) == {"no-cuda"}:
        return ""  # its label says which set it belongs to; a wheel for any platform holds no machine code
    targets = named_targets(wheel.archs)
    if not targets:
        if wheel.label is None and set(verdicts.values()) == {"no-cuda"}:
            return ""
        if any(verdicts.get(_text(c)) == "runs" for c in OURS):
            return ""
        return f"it names no target, and the audit finds none of ours that runs ({_told(verdicts)})"
    bad = [c for c in targets if verdicts.get(_text(c)) != "runs"]
    if not bad:
        return ""
    names = ", ".join(f"{_text(c)}: {verdicts.get(_text(c), 'not run')}" for c in bad)
    return f"it is built for {', '.join(wheel.archs)}, but the audit says {names}"


def named_targets(archs: Iterable[str]) -> list[tuple[int, int]]:
    """The compute capabilities that a wheel must run on, from the architectures in its version."""
    return sorted({c for arch in archs for c in _capabilities(arch)})


def check_label(filename: str, wheel: Inspected, wanted: Sequence[str]) -> None:
    """Refuse a wheel whose CUDA versions disagree: local version, build record and ``--cuda``."""
    build_cuda = wheel.build.get("cuda") if wheel.build else None
    if build_cuda and wheel.label and label_of(str(build_cuda)) != wheel.label:
        raise PublishRefusedError(
            f"{filename} disagrees with itself about its CUDA version",
            why=f"the local version says {wheel.label}, its build record CUDA {build_cuda}",
            hint="build it again; a wheel of another CUDA version must not reach this index",
        )
    if wheel.label and wanted and wheel.label not in wanted:
        raise PublishRefusedError(
            f"{filename} is for {wheel.label}, not for {', '.join(wanted)}",
            why="its local version names the CUDA version it was built with",
            hint=f"publish it without --cuda, or with --cuda {wheel.label}",
        )


def refusal(objected: Sequence[Objection]) -> PublishRefusedError:
    """One error for everything that was objected to, with the exceptions that would let it pass."""
    gates = sorted({o.gate for o in objected})
    files = sorted({o.filename for o in objected})
    return PublishRefusedError(
        f"{files[0]} was not published" if len(files) == 1 else f"{len(files)} wheels were not published",
        why="\n".join(
            f"{o.filename}: {o.why} [{o.gate}]" if len(files) > 1 else f"{o.why} [{o.gate}]" for o in objected
        ),
        hint=f"mend it; or, knowing what you do, {' '.join(f'--allow {g}' for g in gates)} "
        "(the exception is shown on the wheel's page)",
    )


def _capabilities(text: str) -> list[tuple[int, int]]:
    try:
        arch = Arch.parse(text)
    except UnknownArchError:
        return []
    return [c for c in OURS if arch.runs_on(c)] if arch.suffix == "f" else [arch.capability]


def _text(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _told(verdicts: dict[str, str]) -> str:
    return ", ".join(f"{k}: {v}" for k, v in verdicts.items())


def _on(record: Evidence) -> str:
    return f" on {record.gpu}" if record.gpu else ""


def _because(record: Evidence) -> str:
    return f" because {record.detail}" if record.detail else ""
