"""``sm120 release-check``: one table of everything that must be green before wheels are published."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from sm120_wheels import paths, settings
from sm120_wheels.cli.options import fetch_options, json_option
from sm120_wheels.console import note, out
from sm120_wheels.report import columns


@click.command("release-check")
@click.argument("places", metavar="WHEEL|DIST…", nargs=-1, type=click.Path(path_type=Path))
@click.option("--tests-report", type=click.Path(path_type=Path), metavar="FILE", help="JUnit report of the test run.")
@click.option(
    "--index",
    "root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("wheels"),
    show_default=True,
    envvar="SM120_INDEX_ROOT",
    help="Folder of the index that they go to.",
)
@click.option(
    "--may-be-missing",
    multiple=True,
    metavar="CHECK",
    help="A check that need not have been run: smoke where no GPU is at hand. Shown as not run all the same.",
)
@click.option("--only", multiple=True, metavar="CHECK", help="Run only these checks (repeatable).")
@fetch_options
@json_option
def command(
    places: tuple[Path, ...],
    tests_report: Path | None,
    root: Path,
    may_be_missing: tuple[str, ...],
    only: tuple[str, ...],
    mirror: str | None,
    offline: bool | None,
    as_json: bool,
) -> None:
    """Check everything that a publish relies on: the checkout, the wheels (or all in dist/), and the index.

    With --offline, what needs more than the cache is not run.
    Exit codes: 0 all passed; 83 a check failed; 84 nothing failed, but something was not run.
    """
    from sm120_wheels.release import checkout
    from sm120_wheels.release.check import Check, known_names, verdict
    from sm120_wheels.release.standing import wheels_in
    from sm120_wheels.release.wheels import of_index, of_wheels

    wanted, spared = known_names(only), known_names(may_be_missing)
    chosen = settings.resolve(mirror=mirror, offline=offline)
    wheels = wheels_in(places or (paths.dist_root(),)) if places or not wanted or wanted & _OF_WHEELS else []
    here = paths.data_root()

    def asked(*names: str) -> bool:
        return not wanted or bool(wanted & set(names))

    checks: list[Check] = []
    checks += checkout.lint(here) if asked("lint", "types") else []
    checks += checkout.recipes() if asked("recipes") else []
    checks += checkout.generated_pages() if asked("docs") else []
    checks += checkout.tests(tests_report, changed=checkout.last_change(here)) if asked("tests") else []
    checks += checkout.patches(chosen) if asked("patches") else []
    checks += checkout.locks(offline=chosen.offline) if asked("locks") else []
    checks += of_wheels(wheels) if asked(*_OF_WHEELS) else []
    checks += of_index(root) if asked("index") else []
    checks = [check for check in checks if asked(check.name)]
    if as_json:
        out.print_json(json.dumps([asdict(check) for check in checks]))
    else:
        for line in columns(
            [("check", "state", "of", "detail"), *((c.name, c.state, c.subject, c.detail) for c in checks)]
        ):
            out.print(line, markup=False)
    counts = {state: sum(check.state == state for check in checks) for state in ("passed", "failed", "not run")}
    note(", ".join(f"{count} {state}" for state, count in counts.items()))
    verdict(checks, may_be_missing=spared)


_OF_WHEELS = frozenset({"complete", "audit", "promises", "equivalence", "smoke"})
