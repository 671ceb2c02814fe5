"""``sm120 patches``: which patches there are, what they are for, and whether they apply to each version."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from sm120_wheels import patch, paths, recipe
from sm120_wheels.cli.options import json_option
from sm120_wheels.console import out
from sm120_wheels.patch_states import try_series


@click.command("patches")
@click.argument("names", nargs=-1, metavar="[RECIPE]…")
@json_option
def command(names: tuple[str, ...], as_json: bool) -> None:
    """List the patches of all recipes, or of the named ones, with their state for each version.

    Each is tried on the sources in the cache: it applies, is already in, or conflicts; where a version's sources are
    not there, it is not run. Nothing is fetched.
    """
    rows = [row for name in names or recipe.names() for row in _rows(name)]
    if as_json:
        out.print_json(json.dumps(rows))
        return
    for row in rows:
        group = f", group {row['group']}" if row["group"] else ""
        out.print(f"{row['name']}\n    {row['subject']}", markup=False)
        out.print(f"    {row['date']}, upstream: {row['upstream_status']}{group}", markup=False)
        out.print(f"    kernels removed: {row['kernels_removed']}", markup=False)
        for number, tried in row["states"].items():
            why = f" ({tried['why']})" if tried["why"] else ""
            out.print(f"    {number}: {tried['state']}{why}", markup=False)


def _rows(name: str) -> list[dict[str, Any]]:
    package = recipe.load(name)
    found = patch.discover(package.name)
    states: dict[str, dict[str, Any]] = {one.name: {} for one in found}
    for number, pins in package.versions.items():
        series = patch.select(found, number, package.versions)
        tried = try_series(
            series, pins, recipe_folder=paths.recipes_root() / package.name, cache_root=paths.cache_root()
        )
        for one, result in zip(series, tried, strict=True):
            states[one.name][number] = asdict(result)
    return [
        {
            "name": one.name,
            "subject": one.subject,
            "versions": [number for number in package.versions if one.covers(number)],
            "states": states[one.name],
            **{key: value for key, value in asdict(one.header).items() if key != "subject"},
            "sha256": one.sha256,
        }
        for one in found
    ]
