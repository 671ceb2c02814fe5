"""``sm120 profile``: makes of what a build measured the profile that ships with a recipe."""

from __future__ import annotations

import json
import os.path
from pathlib import Path

import click

from sm120_wheels.compile.profile import Footprint, Profile, Store, Unit, read_profile, short_source, store_path
from sm120_wheels.compile.profile import write_profile as write
from sm120_wheels.compile.task import Tail
from sm120_wheels.console import note
from sm120_wheels.errors import SettingError

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("profile")
@click.argument("summary", type=_FILE)
@click.option("--output", "-o", type=_FILE, required=True, help="recipes/NAME/profiles/VERSION-ARCH.csv")
@click.option("--comment", required=True, metavar="TEXT", help="How it was measured: its first line.")
@click.option("--like", type=_FILE, help="An older profile: sources are named as there; includes are taken over.")
@click.option("--package", metavar="NAME-X.Y.Z", help="Includes as builds on this machine have counted them.")
def command(summary: Path, output: Path, comment: str, like: Path | None, package: str | None) -> None:
    """Write a compile profile from SUMMARY, scheduler/compile-summary.json in a build's work folder.

    The next build of that version then knows what each file takes before it has compiled any. Files that did not
    compile are left out and counted.
    """
    try:
        units = json.loads(summary.read_text(encoding="utf-8"))["units"]
        measured = {u["source"]: u for u in sorted(units, key=lambda u: u["peak_rss"]) if u["exit_code"] == 0}
        tails = {source: Tail(**u["tail"]) for source, u in measured.items() if u.get("tail")}
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise SettingError(
            "that is no compile summary", where=str(summary), why=f"{type(exc).__name__}: {exc}"
        ) from exc
    if not measured:
        raise SettingError("no file of that build was compiled", where=str(summary), hint="cache hits are not measured")
    if package and not store_path(package).is_file():
        raise SettingError(f"no build of {package} was measured here", where=str(store_path(package)))
    old = read_profile(like) if like else Profile(units={})
    entries = Store(store_path(package)).entries.values() if package else ()
    counted: dict[str, Footprint] = {e.source: e.footprint for e in entries if e.footprint is not None}
    found = {source: old.find(source) for source in measured}
    trees = [s.removesuffix(f"/{k.source}") for s, k in found.items() if k and s.endswith(f"/{k.source}")]
    root = trees[0] if trees else os.path.commonpath([Path(source).parent for source in measured])
    made = []
    for source, unit in measured.items():
        known = found[source]
        made.append(
            Unit(
                source=known.source if known else os.path.relpath(source, root),
                peak=unit["peak_rss"],
                seconds=unit["seconds"],
                cpu_seconds=unit["cpu_seconds"],
                tail=tails.get(source),
                footprint=counted.get(short_source(source)) or (known.footprint if known else None),
            )
        )
    write(output, made, comment=comment)
    left = len({u["source"] for u in units} - measured.keys())
    note(f"{len(made)} files in {output}" + (f"; {left} that did not compile are not in it" if left else ""))
