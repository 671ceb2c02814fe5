"""Plans and results as text for a terminal. Says only what the records say."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm120_wheels.compile.cache.stats import CacheReport
from sm120_wheels.console import out
from sm120_wheels.files import human_bytes, human_seconds
from sm120_wheels.plan import Plan

if TYPE_CHECKING:  # the pipeline loads every stage; showing a plan needs none of them
    from sm120_wheels.build import BuildResult


def print_plan(plan: Plan) -> None:
    """The whole plan, for people."""
    out.print(plan.identifier, markup=False, style="bold")
    rows: list[tuple[str, str]] = [
        ("wheel", f"{plan.distribution} {plan.wheel_version} ({plan.python_tag})"),
        ("target", ", ".join(arch.sm for arch in plan.targets)),
        ("CUDA", plan.cuda),
        ("torch", f"{plan.torch} (wheel requires {plan.requires_torch})"),
        ("Python", plan.python),
        ("backend", plan.backend),
    ]
    if plan.modules:
        rows.append(("modules", ", ".join(plan.modules)))
    elif plan.profile:
        rows.append(("modules", f"profile {plan.profile}"))
    rows += [(f"source {s.name}", f"{s.url} @ {s.pin}") for s in plan.sources]
    rows += [(f"patch {p.name.rsplit('/', 1)[-1][:4]}", f"{p.name}: {p.subject}") for p in plan.patches]
    rows += [(f"patches {group}", "left out by --without-patches") for group in plan.without_patches]
    rows.append(("headers", f"lean ones before {plan.lean_headers}'s" if plan.lean_headers else "the libraries' own"))
    rows += [
        (
            f"component {c.name}",
            "built" if c.built else f"left out: {c.why}" + (" (partial wheel)" if c.partial else ""),
        )
        for c in plan.components
    ]
    rows += [(f"lock {name}", sha) for name, sha in plan.locks.items()]
    rows += [(f"-D{name}", value) for name, value in plan.defines.items()]
    rows.append(("content key", plan.key))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        out.print(f"{name:<{width}}  {value}", markup=False)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of aligned text; the last column is as wide as it likes."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]) - 1)] if rows else []
    return [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row[:-1], widths, strict=True)), row[-1]]).rstrip()
        for row in rows
    ]


def print_build(result: BuildResult) -> None:
    """The last lines of a build: where the wheels lie, what is in them, how to install them."""
    plan = result.plan
    if result.up_to_date:
        out.print(f"up to date: {plan.identifier} was built before, nothing to do")
    else:
        out.print(_times(result.stages), markup=False)
        cache = result.stages.get("compile", {}).get("output", {}).get("scheduler", {}).get("cache")
        if cache and cache["tool"] != "none":
            for line in CacheReport.from_json(cache).lines():
                out.print(line, markup=False)
    for wheel in result.wheels:
        out.print(_shown(Path(wheel["path"])), markup=False, style="bold")
        out.print(f"  {human_bytes(wheel['size'])}, sha256 {wheel['sha256']}", markup=False)
    finished = result.stages.get("finish", {}).get("output", {})
    code = finished.get("machine_code", [arch.sm for arch in plan.targets])  # older records have none
    out.print(f"  architectures: {', '.join(code) or 'no GPU code'}", markup=False)
    out.print(f"  for torch {plan.torch}, CUDA {plan.cuda}, {_pythons(plan)}", markup=False)
    left_out = [component for component in plan.components if component.partial]
    if left_out:
        names = "; ".join(f"{component.name} ({component.why})" for component in left_out)
        out.print(f"  partial: without {names}", markup=False)
    paths = shlex.join(str(_shown(Path(wheel["path"]))) for wheel in result.wheels)
    out.print(f"  install: pip install {paths}", markup=False)


def _pythons(plan: Plan) -> str:
    interpreter, abi = plan.python_tag.split("-")
    version = f"3.{interpreter[3:]}"
    return (
        f"Python {version} and later" if abi == "abi3" else f"Python {version}" if interpreter != "py3" else "Python 3"
    )


def _times(stages: dict[str, dict[str, Any]]) -> str:
    parts = [f"{name} {human_seconds(record['seconds'])}" for name, record in stages.items()]
    text = f"built in {human_seconds(sum(record['seconds'] for record in stages.values()))}: {', '.join(parts)}"
    compiled = stages.get("compile", {}).get("output", {})
    if compiled:
        peak = compiled["scheduler"]["peak_used"]
        text += f"; compiling took {human_seconds(compiled['cpu_seconds'])} of CPU"
        if peak:  # none was measured where the compiler cache had every file
            text += f" and at most {human_bytes(peak)}"
        if alone := compiled["scheduler"]["without_broker"]:
            text += f"; {alone} files were compiled one at a time, because no compile broker could be started"
    return textwrap.fill(text, 110)


def _shown(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
