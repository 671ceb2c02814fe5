"""``sm120 plan RECIPE``: everything that a build would use, before anything is downloaded."""

from __future__ import annotations

import json

import click

from sm120_wheels import report
from sm120_wheels.cli.options import json_option, target_options
from sm120_wheels.console import out
from sm120_wheels.plan import BuildRequest, make_plan


@click.command("plan")
@click.argument("recipe")
@target_options
@json_option
def command(
    recipe: str,
    version: str | None,
    cuda: str | None,
    torch: str | None,
    archs: tuple[str, ...],
    python: str | None,
    without: tuple[str, ...],
    profile: str | None,
    modules: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what a build of RECIPE would use: pins, patches, toolchain, components, identifier and content key."""
    plan = make_plan(
        BuildRequest(
            recipe=recipe,
            version=version,
            cuda=cuda,
            torch=torch,
            archs=archs,
            python=python,
            without=without,
            profile=profile,
            modules=modules,
        )
    )
    if as_json:
        out.print_json(json.dumps(plan.to_json()))
    else:
        report.print_plan(plan)
