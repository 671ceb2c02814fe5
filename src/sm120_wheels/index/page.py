"""Renders the pages that people read: the front page, and one page for each project.

They work without JavaScript (a table, and a link that opens a wheel's commands); with it they filter as one types
and copy at a click. Everything that came out of a wheel is escaped by the template engine, and a content security
policy made of the page's own digests keeps anything else from running.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from sm120_wheels.files import human_bytes
from sm120_wheels.index.model import ALL, Evidence, Front, Project, Settings, Wheel, sort_key
from sm120_wheels.index.names import cuda_of
from sm120_wheels.index.render import file_url

#: Rows on the front page; every wheel is on its project's page.
FRONT_ROWS = 200
#: Stands in commands where no address is known: no JavaScript, and no --base-url when it was published.
UNKNOWN_BASE = "https://THIS-INDEX/"


@dataclass(frozen=True, kw_only=True)
class Badge:
    """A verdict in words, with the class that colours it: ``passed``, ``failed``, ``part`` or ``not-run``."""

    text: str
    kind: str
    title: str = ""
    href: str = ""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command around the index's address, which the page's script puts in."""

    name: str
    before: str
    path: str
    after: str = ""


def front_page(front: Front, settings: Settings) -> bytes:
    """The page at the index root."""
    wheels = sorted(front.recent, key=sort_key)
    return _render(
        "front.html",
        settings,
        up="",
        title=settings.title,
        wheels=[_row(w, up="") for w in wheels],
        packages=sorted(front.packages.items()),
        labels=sorted({label for p in front.packages.values() for label in p.labels} - {ALL}),
        shown=len(wheels),
        total=front.total,
    )


def project_page(project: Project, settings: Settings) -> bytes:
    """The page of all wheels of one project."""
    return _render(
        "project.html",
        settings,
        up="../../",
        title=project.project,
        wheels=[_row(w, up="../../") for w in project.wheels],
        summary=project.wheels[0].summary if project.wheels else "",
    )


def commands(wheel: Wheel) -> list[Command]:
    """How to install exactly this wheel: with pip, with uv, and as a requirement locked to its hash."""
    label = wheel.indexes[0] if wheel.indexes else ALL
    # What the wheel needs (torch …) comes from the default index; the exact local version is nowhere but here.
    option = "--extra-index-url" if wheel.requires_dist else "--index-url"
    return [
        Command(name="pip", before=f'pip install "{wheel.requirement}" {option} ', path=f"{label}/"),
        Command(
            name="uv",
            before=f'uv pip install "{wheel.requirement}" {"--index" if wheel.requires_dist else "--default-index"} ',
            path=f"{label}/",
        ),
        Command(
            name="requirements.txt",
            before=f"{option} ",
            path=f"{label}/",
            after=f"\n{wheel.requirement} --hash=sha256:{wheel.sha256}",
        ),
    ]


def audit_badge(wheel: Wheel, *, up: str) -> Badge:
    """The audit's verdict for the GPUs of this project."""
    audit = wheel.latest("audit")
    if audit is None:
        return Badge(text="not run", kind="not-run", title="no audit was published with this wheel")
    href = file_url(wheel, audit, up=up)
    if audit.verdicts and set(audit.verdicts.values()) == {"no-cuda"}:
        return Badge(text="no GPU code", kind="passed", title="holds no GPU code", href=href)
    told = "; ".join(f"{k}: {v}" for k, v in audit.verdicts.items())
    runs = [k for k, v in audit.verdicts.items() if v == "runs"]
    part = [k for k, v in audit.verdicts.items() if v == "part"]
    unread = [k for k, v in audit.verdicts.items() if v == "unread"]
    if unread and not (runs or part) and audit.state != "failed":
        return Badge(text=f"not known on {', '.join(unread)}", kind="not-run", title=told, href=href)
    if audit.state == "failed" or not (runs or part):
        return Badge(text="failed", kind="failed", title=audit.detail or told, href=href)
    if "audit" in wheel.exceptions or not runs:
        text = f"in part on {', '.join(part)}" if part else f"only on {', '.join(runs)}"
        return Badge(text=text, kind="part", title=told, href=href)
    return Badge(text=f"runs on {', '.join(runs)}", kind="passed", title=told, href=href)


def smoke_badges(wheel: Wheel, *, up: str) -> list[Badge]:
    """One badge for each machine it was tried on; one that says so where it was tried on none."""
    badges = []
    for smoke in wheel.smokes():
        where = " · ".join(t for t in (smoke.gpu, f"driver {smoke.driver}" if smoke.driver else "") if t)
        state = smoke.state or "not run"
        text = f"{state}{f' on {where}' if where else ''}"
        badges.append(
            Badge(text=text, kind=state.replace(" ", "-"), title=smoke.detail, href=file_url(wheel, smoke, up=up))
        )
    return badges or [
        Badge(text="not run", kind="not-run", title="never launched on a GPU, as far as this index knows")
    ]


def _row(wheel: Wheel, *, up: str) -> dict[str, Any]:
    python, _, platform = wheel.tags
    audit, smokes = audit_badge(wheel, up=up), smoke_badges(wheel, up=up)
    cuda = ", ".join(cuda_of(label) for label in wheel.indexes) or "any"
    archs = ", ".join(wheel.archs) or "–"
    told = [wheel.filename, wheel.project, wheel.version, f"cuda {cuda}", *wheel.indexes, f"torch {wheel.torch}"]
    told += [python, platform, archs, wheel.summary, audit.text, *(b.text for b in smokes)]
    told += ["yanked"] if wheel.yanked is not None else []
    told += [f"without {w}" for w in wheel.without]
    return {
        "wheel": wheel,
        "id": f"w-{wheel.sha256[:12]}",
        "search": " ".join(told).lower(),
        "public": wheel.version.split("+")[0],
        "local": wheel.version.partition("+")[1] + wheel.version.partition("+")[2],
        "cuda": cuda,
        "archs": archs,
        "python": _python(wheel),
        "platform": platform.replace(".", " or "),
        "size": human_bytes(wheel.size),
        "audit": audit,
        "smokes": smokes,
        "href": file_url(wheel, up=up),
        "commands": commands(wheel),
        "evidence": [(_EVIDENCE_NAMES[e.kind], file_url(wheel, e, up=up)) for e in wheel.evidence],
        "metadata": file_url(wheel, up=up) + ".metadata",
    }


_EVIDENCE_NAMES = {
    "audit": "architecture audit",
    "equivalence": "machine-code comparison",
    "smoke": "GPU smoke test",
    "sbom": "bill of materials",
    "build": "build record",
    "provenance": "provenance",
}


def _python(wheel: Wheel) -> str:
    """``3.10+`` for abi3, ``3.12`` for one CPython, ``any 3`` for py3."""
    python, abi, _ = wheel.tags
    versions = [f"{t[2]}.{t[3:]}" for t in python.split(".") if t.startswith("cp") and len(t) > 3]
    if not versions:
        return "any 3" if "py3" in python.split(".") else python
    return ", ".join(f"{v}+" if abi == "abi3" else v for v in versions)


def _render(template: str, settings: Settings, **values: Any) -> bytes:
    style, script = _asset("page.css"), _asset("page.js")
    text = (
        _environment()
        .get_template(template)
        .render(
            settings=settings,
            base=settings.base_url or UNKNOWN_BASE,
            style=style,
            script=script,
            style_digest=_digest(style),
            script_digest=_digest(script),
            **values,
        )
    )
    return text.encode()


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("sm120_wheels.index", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@cache
def _asset(name: str) -> str:
    return resources.files("sm120_wheels.index").joinpath("templates").joinpath(name).read_text(encoding="utf-8")


@cache
def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def newest(wheels: Sequence[Wheel], count: int = FRONT_ROWS) -> tuple[Wheel, ...]:
    """The wheels of the front page: the last published ones; ties go by filename."""
    return tuple(sorted(wheels, key=lambda w: (w.uploaded, w.filename), reverse=True)[:count])


def evidence_summary(evidence: Evidence) -> str:
    """One line about a piece of evidence, for the terminal."""
    told = evidence.state or ", ".join(f"{k} {v}" for k, v in evidence.verdicts.items()) or "published"
    return f"{_EVIDENCE_NAMES[evidence.kind]}: {told}" + (f" on {evidence.gpu}" if evidence.gpu else "")
