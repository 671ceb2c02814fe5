"""``sm120 prepare RECIPE``: sources, patches and tools for another build frontend, such as cibuildwheel."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from sm120_wheels.build import BuildOptions
from sm120_wheels.cli.options import build_options, json_option, target_options
from sm120_wheels.console import out
from sm120_wheels.plan import BuildRequest


@click.command("prepare")
@target_options
@click.option(
    "--into", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR", help="Folder to fill."
)
@build_options
@json_option
def command(request: BuildRequest, into: Path, options: BuildOptions, as_json: bool) -> None:
    """Fill DIR with what a build of RECIPE needs before its compile.

    DIR/project is the patched package, DIR/cache.cmake a script for `cmake -C` that names CUDA, torch and every source
    that CMake would fetch, DIR/cuda the toolkit. For frontends that compile themselves; `sm120 build` needs none of it.
    """
    from sm120_wheels.prepare import prepare

    done = prepare(request, into, options)
    if as_json:
        told = {
            "identifier": done.plan.identifier,
            "key": done.plan.key,
            "project": str(done.project),
            "cache": str(done.cache),
            "cuda": str(done.cuda),
            "python": str(done.python),
            "tools": [str(lock) for lock in done.tools],
        }
        out.print_json(json.dumps(told))
        return
    out.print(f"{done.plan.identifier} is prepared in {into}", markup=False)
    settings = ["export", f"SKBUILD_CMAKE_ARGS=-C{done.cache}", f"CUDACXX={done.cuda}/bin/nvcc"]
    build = [str(done.python), "-m", "build", "--wheel", "--no-isolation", str(done.project)]
    install = ["pip", "install", "--require-hashes", *(word for lock in done.tools for word in ("-r", str(lock)))]
    out.print(f"  {shlex.join(settings)}\n  {shlex.join(build)}", markup=False)
    out.print(f"or in an environment of your own: {shlex.join(install)}", markup=False)
