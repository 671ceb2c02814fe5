"""``sm120 matrix``: everything that the recipes can build, for people and for CI."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120_wheels import recipe
from sm120_wheels.cli.options import build_options, json_option, profile_option
from sm120_wheels.console import note, out
from sm120_wheels.errors import EmptySelectionError, SettingError
from sm120_wheels.files import human_seconds
from sm120_wheels.index.gates import Objection, check_allowed, refusal
from sm120_wheels.matrix.coverage import Coverage, coverage
from sm120_wheels.matrix.explain import explain
from sm120_wheels.matrix.here import Here, look, obstacles
from sm120_wheels.matrix.jobs import WHOLE_PROFILE, Job, Matrix, make_matrix
from sm120_wheels.matrix.lookup import not_there
from sm120_wheels.matrix.run import Ran, run_jobs
from sm120_wheels.matrix.select import select, unused
from sm120_wheels.report import columns

if TYPE_CHECKING:
    from sm120_wheels.build import BuildOptions


@click.command("matrix")
@click.option("--only", multiple=True, metavar="GLOB", help="Builds to take: 'sglang_kernel-0.4.*-cu13{0,2}-*'.")
@click.option("--skip", multiple=True, metavar="GLOB", help="Builds to leave: '*-sm90a-*'. Both repeatable.")
@click.option("--here", "only_here", is_flag=True, help="Only what this machine can build.")
@profile_option("flashinfer: modules of its builds; other than full (default) the wheels are partial.")
@click.option("--why-not", metavar="ID", help="Say why an identifier is not in the matrix, or is not built here.")
@click.option("--published", metavar="URL|FOLDER", help="What an index has of these builds.")
@click.option("--run", "run_them", is_flag=True, help="Build them here, one after another.")
@click.option(
    "--publish-to",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="With --run: publish what was built, together, if nothing failed.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="GATE",
    help="With --publish-to: overrule a gate of `sm120 index publish`, such as partial. Repeatable.",
)
@click.option("--github-output", metavar="NAME", help="Also write NAME=JSON, in one line, to the file $GITHUB_OUTPUT.")
@build_options
@json_option
def command(
    options: BuildOptions,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    only_here: bool,
    profile: str | None,
    why_not: str | None,
    published: str | None,
    run_them: bool,
    publish_to: Path | None,
    allow: tuple[str, ...],
    github_output: str | None,
    as_json: bool,
) -> None:
    """List the matrix: recipe × version × CUDA × torch × Python × architecture × platform, from the recipes.

    Patterns are shell patterns for whole identifiers, with braces; several in one option are separated by spaces.
    With --json: a flat list, one object a build, with the arguments of sm120 and of nox that make it.
    """
    _refuse_odd_options(why_not=why_not, published=published, run_them=run_them, publish_to=publish_to, allow=allow)
    allowed = check_allowed(allow)
    matrix = make_matrix(profile=profile or WHOLE_PROFILE)
    if why_not is not None:
        _why_not(why_not, matrix)
        return
    jobs: Sequence[Job] = select(matrix.jobs, only=only, skip=skip)
    for pattern in (*unused(matrix.jobs, only), *unused(matrix.jobs, skip)):
        note(f"note: the pattern {pattern} matches no build")
    here = look() if run_them or only_here or not (as_json or github_output or published) else None
    if only_here and here is not None:
        jobs = _buildable(jobs, here)
    if github_output:
        _write_github(github_output, jobs)
    if published is not None:
        _show_coverage(published, jobs, as_json)
    elif run_them:
        assert here is not None
        if publish_to is not None:
            _refuse_unpublishable(jobs, here, allowed)
        _run(jobs, here, options, publish_to, allowed, as_json)
    elif as_json:
        out.print_json(json.dumps([job.to_json() for job in jobs]))
    elif here is not None:
        _list(jobs, here)


def _why_not(identifier: str, matrix: Matrix) -> None:
    """Say that a build is in the matrix, and what keeps this machine from making it; else raise the reason."""
    explained = explain(identifier, matrix, [recipe.load(name) for name in recipe.names()])
    job = matrix.find(explained.identifier)
    if job is None:
        raise not_there(explained)
    found = obstacles(job, look())
    here = f"this machine cannot build it: {'; '.join(found)}" if found else "this machine can build it"
    out.print(f"{job.identifier} is in the matrix; {here}", markup=False)


def _refuse_odd_options(
    *, why_not: str | None, published: str | None, run_them: bool, publish_to: Path | None, allow: tuple[str, ...]
) -> None:
    asked = [
        name
        for name, given in (("--why-not", why_not), ("--published", published), ("--run", run_them or None))
        if given is not None
    ]
    if len(asked) > 1:
        raise click.UsageError(f"{' and '.join(asked)} cannot be asked for together.")
    if publish_to is not None and not run_them:
        raise click.UsageError("--publish-to goes with --run; wheels that are there: sm120 index publish.")
    if allow and publish_to is None:
        raise click.UsageError("--allow goes with --publish-to.")


def _refuse_unpublishable(jobs: Sequence[Job], here: Here, allow: frozenset[str]) -> None:
    """Before hours of building: what is known now to be refused when it is done."""
    why = "its wheels would leave something out"
    partial = [job.identifier for job in jobs if job.partial and not obstacles(job, here)]
    if partial and "partial" not in allow:
        raise refusal([Objection(gate="partial", filename=identifier, why=why) for identifier in partial])


def _buildable(jobs: Sequence[Job], here: Here) -> Sequence[Job]:
    able = [job for job in jobs if not obstacles(job, here)]
    if not able:
        raise EmptySelectionError(
            f"none of the {len(jobs)} chosen builds can be made on this machine",
            why="\n".join(sorted({why for job in jobs for why in obstacles(job, here)})),
            hint="leave out --here to see them; `sm120 doctor` tells what is missing",
        )
    return able


def _list(jobs: Sequence[Job], here: Here) -> None:
    rows = [("identifier", "built here")]
    for job in jobs:
        found = obstacles(job, here)
        left = f"only the modules of {job.profile}" if job.profile else "what cannot be built is left out"
        partial = f" (partial: {left})" if job.partial else ""
        rows.append((job.identifier, ("no: " + "; ".join(found) if found else "yes") + partial))
    for line in columns(rows):
        out.print(line, markup=False)
    able = sum(row[1].startswith("yes") for row in rows[1:])
    note(f"{len(jobs)} builds, {able} of them here")


def _show_coverage(index: str, jobs: Sequence[Job], as_json: bool) -> None:
    from sm120_wheels.index.which import catalogue

    found = coverage(jobs, catalogue(index))
    if as_json:
        out.print_json(json.dumps(_coverage_json(found)))
        return
    rows = [("identifier", "state", "smoke", "wheels")]
    for one in found.expected:
        overruled = f" (overruled: {', '.join(one.exceptions)})" if one.exceptions else ""
        smoke = one.smoke if one.state != "missing" else ""
        rows.append((one.job.identifier, one.state, smoke, " ".join(one.wheels) + overruled))
    for line in columns(rows):
        out.print(line, markup=False)
    for filename in found.others:
        note(f"note: published, and none of these builds: {filename}")
    note(f"{len(found.expected) - len(found.missing)} of {len(found.expected)} builds are published")


def _coverage_json(found: Coverage) -> dict[str, object]:
    return {
        "expected": [
            {
                "identifier": one.job.identifier,
                "state": one.state,
                "smoke": one.smoke,
                "wheels": list(one.wheels),
                "exceptions": list(one.exceptions),
            }
            for one in found.expected
        ],
        "missing": list(found.missing),
        "others": list(found.others),
    }


def _run(
    jobs: Sequence[Job],
    here: Here,
    options: BuildOptions,
    publish_to: Path | None,
    allow: frozenset[str],
    as_json: bool,
) -> None:
    from sm120_wheels.build import build

    results = run_jobs(jobs, here, lambda request: build(request, options), note)
    failed = [one for one in results if one.error is not None]
    published: list[dict[str, str]] = []
    if publish_to is not None and not failed:
        published = _publish(publish_to, results, allow)
    if as_json:
        out.print_json(json.dumps({"jobs": [one.to_json() for one in results], "published": published}))
    else:
        for line in columns([("identifier", "state", "time", "result"), *map(_row, results)]):
            out.print(line, markup=False)
        for row in published:
            out.print(f"{row['action']:<10} {row['index']}/ {row['filename']}", markup=False)
    if failed:
        note(f"{len(failed)} of {len(results)} builds failed; the first:")
        if publish_to is not None:
            note("nothing was published")
        error = failed[0].error
        assert error is not None
        raise error


def _row(one: Ran) -> tuple[str, str, str, str]:
    result = " ".join(wheel.name for wheel in one.wheels) + (f" ({one.why})" if one.wheels and one.why else "")
    return (
        one.job.identifier,
        one.state,
        human_seconds(one.seconds) if one.wheels else "",
        result if one.wheels else one.why,
    )


def _publish(root: Path, results: Sequence[Ran], allow: frozenset[str]) -> list[dict[str, str]]:
    from sm120_wheels.index.publish import Options, publish

    done = publish(root, [wheel for one in results for wheel in one.wheels], options=Options(allow=allow))
    return [
        {"action": line.action, "index": " ".join(line.wheel.indexes), "filename": line.wheel.filename}
        for line in done.lines
    ]


def _write_github(name: str, jobs: Sequence[Job]) -> None:
    target = os.environ.get("GITHUB_OUTPUT")
    if not target:
        raise SettingError(
            "there is no file to write the job list to",
            where="--github-output",
            why="GITHUB_OUTPUT is not set",
            hint="it is set in a GitHub workflow; elsewhere use --json",
        )
    with Path(target).open("a", encoding="utf-8") as stream:
        stream.write(f"{name}={json.dumps([job.to_json() for job in jobs], separators=(',', ':'))}\n")
