"""``sm120 build RECIPE``: run the pipeline and say what came of it."""

from __future__ import annotations

import json

import click

from sm120_wheels import report
from sm120_wheels.build import BuildOptions, build
from sm120_wheels.cli.options import build_options, json_option, target_options
from sm120_wheels.console import out
from sm120_wheels.plan import BuildRequest


@click.command("build")
@target_options
@build_options
@json_option
def command(request: BuildRequest, options: BuildOptions, as_json: bool) -> None:
    """Build RECIPE into a wheel in dist/.

    Stages that an earlier run of the same build has finished are not repeated; Ctrl-C at any time and run again.
    """
    result = build(request, options)
    if as_json:
        out.print_json(json.dumps(result.to_json()))
    else:
        report.print_build(result)
