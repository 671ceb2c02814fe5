"""``sm120 lock``: write the hash-locked requirement files again from the .in files beside them."""

from __future__ import annotations

import json

import click

from sm120_wheels import paths
from sm120_wheels.cli.options import json_option
from sm120_wheels.console import out
from sm120_wheels.toolchain import relock


@click.command("lock")
@click.argument("names", nargs=-1, metavar="[LOCK]…")
@click.option("--upgrade", is_flag=True, help="Take the newest versions that the .in files allow.")
@json_option
def command(names: tuple[str, ...], upgrade: bool, as_json: bool) -> None:
    """Write all locks in recipes/locks, or the named ones, from their .in files. Needs the package index."""
    changed: dict[str, bool] = {}
    for name in names or relock.lock_names():
        changed[name] = relock.write_lock(name, cache_root=paths.cache_root(), upgrade=upgrade)
        if not as_json:
            out.print(f"{name}: {'written' if changed[name] else 'unchanged'}")
    if as_json:
        out.print_json(json.dumps(changed))
