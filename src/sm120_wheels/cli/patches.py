"""``sm120 patches``: which patches there are, for which versions, and what they are for."""

from __future__ import annotations

import json

import click

from sm120_wheels import patch, recipe
from sm120_wheels.cli.options import json_option
from sm120_wheels.console import out


@click.command("patches")
@click.argument("names", nargs=-1, metavar="[RECIPE]…")
@json_option
def command(names: tuple[str, ...], as_json: bool) -> None:
    """List the patches of all recipes, or of the named ones, with the versions that each is for."""
    rows = []
    for name in names or recipe.names():
        package = recipe.load(name)
        for one in patch.discover(package.name):
            patch.select([one], package.default_version, package.versions)
            rows.append(
                {
                    "name": one.name,
                    "subject": one.subject,
                    "versions": [number for number in package.versions if one.covers(number)],
                    "source": one.source,
                    "upstream_status": one.headers["Upstream-Status"],
                    "date": one.headers["Date"],
                    "sha256": one.sha256,
                }
            )
    if as_json:
        out.print_json(json.dumps(rows))
        return
    for row in rows:
        versions = ", ".join(row["versions"])
        out.print(
            f"{row['name']}\n    {row['subject']}  [for {versions}; upstream: {row['upstream_status']}]", markup=False
        )
