"""Checks of the checkout that wheels are made from: lint, types, recipes, generated pages, tests, patches, locks.

Each returns rows and raises nothing a user could cause: what stops a check makes it ``not run``, with the reason.
"""

from __future__ import annotations

import importlib.util
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from sm120_wheels import docs, patch, paths, process, recipe
from sm120_wheels.errors import PatchInvalidError, PatchUnusedError, Sm120Error
from sm120_wheels.index.model import State
from sm120_wheels.patch_states import try_series
from sm120_wheels.release.check import Check
from sm120_wheels.settings import Settings
from sm120_wheels.toolchain import relock
from sm120_wheels.toolchain.locks import lock_path


def _failure(exc: Sm120Error) -> str:
    """What a command said, shortened to the lines that matter."""
    lines = [line for line in (exc.why or exc.what).splitlines() if line.strip()]
    return "; ".join(" ".join(line.split()) for line in lines[-3:])


def _command(name: str, root: Path, module: str, *arguments: str) -> Check:
    if importlib.util.find_spec(module) is None:
        return Check(name=name, subject="", state="not run", detail=f"{module} is not installed here")
    try:
        process.run([sys.executable, "-m", module, *arguments], cwd=root)
    except Sm120Error as exc:
        return Check(
            name=name,
            subject="",
            state="failed",
            detail=f"{module} {arguments[0] if arguments else ''}: {_failure(exc)}",
        )
    return Check(name=name, subject="", state="passed")


def lint(root: Path) -> list[Check]:
    """ruff and mypy, as `nox -s lint` runs them."""
    if not (root / "pyproject.toml").is_file():
        why = f"{root} is no checkout of the project"
        return [Check(name=name, subject="", state="not run", detail=why) for name in ("lint", "types")]
    checks = [_command("lint", root, "ruff", "check", "."), _command("lint", root, "ruff", "format", "--check", ".")]
    worst = next((check for check in checks if check.state != "passed"), checks[0])
    return [worst, _command("types", root, "mypy")]


def recipes() -> list[Check]:
    """The same as `sm120 check`."""
    try:
        process.run([sys.executable, "-m", "sm120_wheels", "check"])
    except Sm120Error as exc:
        return [Check(name="recipes", subject="", state="failed", detail=_failure(exc))]
    return [Check(name="recipes", subject="", state="passed", detail=f"{len(recipe.names())} recipes")]


def generated_pages() -> list[Check]:
    """Whether docs/reference and the JSON Schema are what the models say now."""
    if not (paths.data_root() / "docs").is_dir():
        return [Check(name="docs", subject="", state="not run", detail="there is no folder docs beside the recipes")]
    stale = [path.name for path in docs.stale()]
    detail = f"stale: {', '.join(stale)}; run nox -s docs"
    return [Check(name="docs", subject="", state="failed" if stale else "passed", detail=detail if stale else "")]


def tests(report: Path | None, *, changed: datetime | None) -> list[Check]:
    """The result of a test run, from its JUnit report.

    ``changed``: when the checkout last changed; an older report says nothing about it.
    """
    if report is None:
        why = "no report was given: nox -s tests -- --junitxml=FILE, then --tests-report FILE"
        return [Check(name="tests", subject="", state="not run", detail=why)]
    try:
        root = ET.parse(report).getroot()  # noqa: S314 - our own pytest wrote it
        suites = [root] if root.tag == "testsuite" else root.findall("testsuite")
        totals = {
            key: sum(int(suite.get(key, "0")) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
        }
        ran = [datetime.fromisoformat(stamp) for suite in suites if (stamp := suite.get("timestamp"))]
    except (OSError, ET.ParseError, ValueError) as exc:
        return [Check(name="tests", subject="", state="not run", detail=f"{report} is no JUnit report: {exc}")]
    bad = totals["failures"] + totals["errors"]
    told = f"{totals['tests'] - bad - totals['skipped']} passed, {bad} failed, {totals['skipped']} not run"
    if bad:
        return [Check(name="tests", subject="", state="failed", detail=told)]
    if totals["tests"] == totals["skipped"]:
        return [Check(name="tests", subject="", state="not run", detail=f"{report}: {told}")]
    started = min((_aware(stamp) for stamp in ran), default=None)
    if changed is not None and (started is None or started < changed):
        when = started.isoformat(timespec="seconds") if started else "an unknown time"
        why = f"the report is of {when}, the checkout changed at {changed.isoformat(timespec='seconds')}"
        return [Check(name="tests", subject="", state="not run", detail=why)]
    return [Check(name="tests", subject="", state="passed", detail=told)]


def _aware(stamp: datetime) -> datetime:
    return stamp if stamp.tzinfo else stamp.astimezone()


def last_change(root: Path) -> datetime | None:
    """When the checkout last changed: its commit's time, or now if files differ from it; None where git cannot say."""
    try:
        if process.run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=root).output.strip():
            return datetime.now(timezone.utc)
        return datetime.fromisoformat(process.run(["git", "log", "-1", "--format=%cI"], cwd=root).output.strip())
    except (Sm120Error, ValueError):
        return None


def patches(settings: Settings) -> list[Check]:
    """Whether every patch applies to the sources that its versions pin. Fetches what the cache does not hold."""
    found = []
    for name in recipe.names():
        package = recipe.load(name)
        for number in package.versions:
            found += _patches_of(package, number, settings)
    return found


def _patches_of(package: recipe.Recipe, number: str, settings: Settings) -> list[Check]:
    subject = f"{package.name} {number}"
    try:
        chosen = patch.select(patch.discover(package.name), number, package.versions)
    except (PatchInvalidError, PatchUnusedError) as exc:
        return [Check(name="patches", subject=subject, state="failed", detail=exc.what)]
    if not chosen:
        return []
    tried = try_series(
        chosen,
        package.versions[number],
        recipe_folder=paths.recipes_root() / package.name,
        cache_root=paths.cache_root(),
        settings=settings,
    )
    verdicts: tuple[tuple[str, State], ...] = (("conflicts", "failed"), ("not run", "not run"))
    for found, state in verdicts:
        for one, result in zip(chosen, tried, strict=True):
            if result.state == found:
                return [Check(name="patches", subject=subject, state=state, detail=f"{one.name}: {result.why}")]
    return [Check(name="patches", subject=subject, state="passed", detail=f"{len(chosen)} patches")]


def locks(*, offline: bool, names: Sequence[str] | None = None) -> list[Check]:
    """Whether each lock is what its ``.in`` file gives, its pins kept."""
    found = []
    for name in names if names is not None else relock.lock_names():
        if offline:
            found.append(Check(name="locks", subject=name, state="not run", detail="needs the package index"))
            continue
        current = lock_path(name).read_text(encoding="utf-8") if lock_path(name).is_file() else ""
        try:
            text = relock.resolve_lock(relock.lock_source(name), current, cache_root=paths.cache_root(), upgrade=False)
        except Sm120Error as exc:
            found.append(Check(name="locks", subject=name, state="not run", detail=exc.what))
            continue
        fresh = text == current
        detail = "" if fresh else f"differs from what its .in file gives; run sm120 lock {name}"
        found.append(Check(name="locks", subject=name, state="passed" if fresh else "failed", detail=detail))
    return found
