"""``sm120 summary``: one table of wheels, for the end of a CI run and for people."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from sm120_wheels.cli.options import json_option
from sm120_wheels.console import out


@click.command("summary")
@click.argument("places", metavar="DIST…", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
def command(places: tuple[Path, ...], as_json: bool) -> None:
    """Tell of each wheel in DIST: time, peak memory, size, sha256, audit, equivalence, smoke.

    Everything comes from the records beside the wheels; what has none is "not run". In a GitHub workflow the table
    also goes to the run's page ($GITHUB_STEP_SUMMARY).
    """
    from sm120_wheels.release import summary
    from sm120_wheels.release.standing import standing, wheels_in

    wheels = [standing(path) for path in wheels_in(places)]
    page = os.environ.get("GITHUB_STEP_SUMMARY")
    if page:
        with Path(page).open("a", encoding="utf-8") as stream:
            stream.write(summary.markdown(wheels))
    if as_json:
        out.print_json(
            json.dumps(
                [
                    {
                        "wheel": one.path.name,
                        "identifier": one.identifier,
                        "sha256": one.sha256,
                        "size": one.size,
                        "seconds": one.cost.seconds if one.cost else None,
                        "peak_memory": one.cost.peak_memory if one.cost else None,
                        **{
                            name: {"state": told.state, "detail": told.detail}
                            for name, told in (
                                ("complete", one.complete),
                                ("audit", one.audit),
                                ("equivalence", one.equivalence),
                                ("smoke", one.smoke),
                            )
                        },
                    }
                    for one in wheels
                ]
            )
        )
    else:
        out.print(summary.plain(wheels), markup=False, end="")
