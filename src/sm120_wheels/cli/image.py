"""``sm120 image NAME``: build one of the images in docker/ with podman or docker, if everything in it is pinned."""

from __future__ import annotations

import shlex

import click

from sm120_wheels import images, process
from sm120_wheels.console import note, out
from sm120_wheels.errors import SettingError


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise SettingError(f"--build-arg {value!r} has no value", hint="write NAME=VALUE")
    return dict(value.split("=", 1) for value in values)


@click.command("image")
@click.argument("name")
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
@click.option("--build-arg", "given", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="For the Dockerfile.")
@click.option("--target", metavar="STAGE", help="Stage to stop at: cuda12 of the image manylinux.")
@click.option("--tag", metavar="TAG", help="Default: localhost/sm120-NAME.")
@click.option("--engine", metavar="PROGRAM", help="Default: podman, else docker.")
@click.option("--dry-run", is_flag=True, help="Check, print the command, and build nothing.")
def command(
    name: str,
    more: tuple[str, ...],
    given: dict[str, str],
    target: str | None,
    tag: str | None,
    engine: str | None,
    dry_run: bool,
) -> None:
    """Build the image NAME (debian, manylinux, index). MORE, after --, goes to the engine as it is.

    A base without a digest, or a build argument that has no value, is refused.
    """
    argv = images.command(
        name, tag=tag or f"localhost/sm120-{name}", given=given, target=target, engine=engine, more=more
    )
    if dry_run:
        out.print(shlex.join(argv), markup=False)
        return
    process.run(argv, on_line=note)
