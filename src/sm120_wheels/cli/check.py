"""``sm120 check``: validate recipes, their patches and locks, without network."""

from __future__ import annotations

import json

import click

from sm120_wheels import patch, paths, recipe
from sm120_wheels.arch import Arch
from sm120_wheels.cli.options import json_option
from sm120_wheels.console import out
from sm120_wheels.errors import PatchUnusedError, near_misses
from sm120_wheels.plan import BuildRequest, make_plan


@click.command("check")
@click.argument("names", nargs=-1, metavar="[RECIPE]…")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of recipe.toml and do nothing else.")
@json_option
def command(names: tuple[str, ...], schema: bool, as_json: bool) -> None:
    """Validate all recipes, or the named ones: the model, every pairing and target, the patches, the locks."""
    if schema:
        out.print_json(json.dumps(recipe.json_schema()))
        return
    checked: dict[str, list[str]] = {}
    _refuse_stray_patches()
    for name in names or recipe.names():
        package = recipe.load(name)
        patch.select(patch.discover(package.name), package.default_version, package.versions)
        checked[name] = [
            make_plan(
                BuildRequest(
                    recipe=name,
                    version=number,
                    cuda=pairing.cuda,
                    torch=pairing.torch,
                    archs=(arch,),
                    python=pairing.python[0],
                )
            ).identifier
            for number, pins in package.versions.items()
            for pairing in pins.pairings
            for arch in package.architectures.supported
            if _compiles(arch, pairing.cuda)
        ]
    if as_json:
        out.print_json(json.dumps(checked))
        return
    for name, identifiers in checked.items():
        out.print(f"{name}: valid, {len(identifiers)} builds planned ({paths.recipes_root() / name / 'recipe.toml'})")


def _refuse_stray_patches() -> None:
    """Patches of a recipe that does not exist would never be looked at."""
    known = recipe.names()
    for folder in sorted(path for path in paths.patches_root().glob("*") if path.is_dir()):
        if folder.name not in known:
            raise PatchUnusedError(
                f"there are patches, but no recipe {folder.name!r}",
                where=str(folder),
                hint=near_misses(folder.name, known),
            )


def _compiles(arch: str, cuda: str) -> bool:
    return tuple(int(part) for part in cuda.split(".")) >= Arch.parse(arch).min_cuda
