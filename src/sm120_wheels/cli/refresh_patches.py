"""``sm120 refresh-patches RECIPE --version NEW``: move a patch series to another version."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from sm120_wheels import patch, patch_refresh, paths, recipe, settings
from sm120_wheels.cli.options import fetch_options, json_option
from sm120_wheels.console import out
from sm120_wheels.fetch import fetch_source
from sm120_wheels.recipe import PackageVersion


@click.command("refresh-patches")
@click.argument("name", metavar="RECIPE")
@click.option("--version", "new", required=True, metavar="X.Y.Z", help="Version of the recipe that gets the patches.")
@click.option("--from", "old", metavar="X.Y.Z", help="Version whose patches are moved. Default: the nearest older one.")
@fetch_options
@json_option
def command(name: str, new: str, old: str | None, mirror: str | None, offline: bool | None, as_json: bool) -> None:
    """Move RECIPE's patches to a new version of it by three-way merge, and write them into patches/RECIPE/NEW/.

    What upstream has taken over is dropped. Where a patch conflicts, its files and hunks are shown and nothing is
    written.
    """
    chosen = settings.resolve(mirror=mirror, offline=offline)
    package = recipe.load(name)
    number, _ = package.version(new)
    found = patch.discover(package.name)
    source, _ = package.version(old) if old else (patch_refresh.nearest(package, number, found), None)

    def tree_of(name: str, pins: PackageVersion) -> Path:
        return fetch_source(
            name,
            pins.sources[name],
            recipe_folder=paths.recipes_root() / package.name,
            cache_root=paths.cache_root(),
            settings=chosen,
        ).folder

    moved, folder = patch_refresh.refresh(
        package, old=source, new=number, patches=found, patches_root=paths.patches_root(), tree_of=tree_of
    )
    if as_json:
        rows = [{key: value for key, value in asdict(one).items() if key != "text"} for one in moved]
        out.print_json(json.dumps({"from": source, "folder": str(folder or ""), "patches": rows}))
        return
    for one in moved:
        out.print(f"{one.name}: {one.state}", markup=False)
    out.print(f"written: {folder}" if folder else f"nothing to write: {number} needs no patch of its own", markup=False)
