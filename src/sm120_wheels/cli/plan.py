"""``sm120 plan RECIPE``: everything that a build would use, before anything is downloaded."""

from __future__ import annotations

import json

import click

from sm120_wheels import report
from sm120_wheels.cli.options import json_option, target_options
from sm120_wheels.console import out
from sm120_wheels.plan import BuildRequest, make_plan


@click.command("plan")
@target_options
@json_option
def command(
    request: BuildRequest,
    as_json: bool,
) -> None:
    """Show what a build of RECIPE would use: pins, patches, toolchain, components, identifier and content key."""
    plan = make_plan(request)
    if as_json:
        out.print_json(json.dumps(plan.to_json()))
    else:
        report.print_plan(plan)
