"""Tries a recipe's patches on the pinned sources, version by version. Changes nothing.

Only the files that a patch names are copied aside; a series is applied in its order, as a build would.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unidiff.patch import PatchSet

from sm120_wheels import patch
from sm120_wheels.errors import OfflineError, PatchConflictError, Sm120Error
from sm120_wheels.fetch import fetch_source
from sm120_wheels.patch import Patch
from sm120_wheels.recipe import PackageVersion
from sm120_wheels.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What came of one patch in one version."""

    state: Literal["applies", "already in", "conflicts", "not run"]
    why: str = ""
    """The place of a conflict, or why it was not run."""


def try_series(
    series: Iterable[Patch],
    pins: PackageVersion,
    *,
    recipe_folder: Path,
    cache_root: Path,
    settings: Settings = Settings(offline=True),  # noqa: B008 - frozen
) -> list[Tried]:
    """The state of each patch of one version's series.

    One that does not apply is left out before the next is tried. A source that cannot be had (by default: that is not
    in the cache) makes its patches "not run".
    """
    tried: list[Tried] = []
    trees: dict[str, Path | str] = {}
    with tempfile.TemporaryDirectory(prefix="sm120-patches-") as scratch:
        for one in series:
            name = one.source or pins.main
            if name not in trees:
                trees[name] = _tree(name, pins, recipe_folder, cache_root, settings)
            tree = trees[name]
            if isinstance(tree, str):
                tried.append(Tried(state="not run", why=tree))
                continue
            copy = Path(scratch) / name
            _copy_named(one, tree, copy)
            try:
                state = patch.apply(one, copy)
            except PatchConflictError as exc:
                tried.append(Tried(state="conflicts", why=exc.where))
            else:
                tried.append(Tried(state="applies" if state == "applied" else "already in"))
    return tried


def _tree(name: str, pins: PackageVersion, recipe_folder: Path, cache_root: Path, settings: Settings) -> Path | str:
    """The source's folder, or why there is none."""
    if name not in pins.sources:
        return f"this version has no source {name}"
    try:
        return fetch_source(
            name,
            pins.sources[name],
            recipe_folder=recipe_folder,
            cache_root=cache_root,
            settings=settings,
        ).folder
    except OfflineError:
        return f"the source {name} is not in the cache (a build fetches it)"
    except Sm120Error as exc:
        return f"the source {name} cannot be fetched: {exc.what}"


def _copy_named(one: Patch, tree: Path, copy: Path) -> None:
    """Copy what a patch names and an earlier one has not brought already."""
    copy.mkdir(exist_ok=True)
    for changed in PatchSet(one.path.read_text(encoding="utf-8")):
        for prefixed in (changed.source_file, changed.target_file):
            name = prefixed.partition("/")[2]
            if prefixed == "/dev/null" or not (tree / name).is_file() or (copy / name).exists():
                continue
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree / name, copy / name)
