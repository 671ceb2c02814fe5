"""``sm120 build RECIPE``: run the pipeline and say what came of it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sm120_wheels import report, settings
from sm120_wheels.build import BuildOptions, build
from sm120_wheels.cli.options import Bytes, cache_options, json_option, source_options, target_options
from sm120_wheels.console import out
from sm120_wheels.plan import BuildRequest


@click.command("build")
@target_options
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Most compiles at once. Default: one per core.")
@click.option("--memory", type=Bytes(), metavar="SIZE", help="Memory budget, e.g. 20GiB. Default: what is free.")
@source_options
@cache_options
@click.option("--keep-work", is_flag=True, help="Keep patched sources and objects after a build that ended well.")
@json_option
def command(
    request: BuildRequest,
    jobs: int | None,
    memory: int | None,
    mirror: str | None,
    offline: bool | None,
    cuda_source: str,
    cuda_home: str | None,
    host_compiler: str | None,
    environment: str | None,
    compiler_cache: str | None,
    shared_cache: str | None,
    keep_work: bool,
    as_json: bool,
) -> None:
    """Build RECIPE into a wheel in dist/.

    Stages that an earlier run of the same build has finished are not repeated; Ctrl-C at any time and run again.
    """
    options = BuildOptions(
        jobs=jobs,
        memory=memory,
        settings=settings.resolve(
            mirror=mirror, offline=offline, compiler_cache=compiler_cache, shared_cache=shared_cache
        ),
        cuda_source=cuda_source,  # type: ignore[arg-type]  # click.Choice holds it to the literal's values
        cuda_home=Path(cuda_home).absolute() if cuda_home else None,
        host_compiler=Path(host_compiler) if host_compiler else None,
        environment=Path(environment) if environment else None,
        keep_work=keep_work,
    )
    result = build(request, options)
    if as_json:
        out.print_json(json.dumps(result.to_json()))
    else:
        report.print_build(result)
