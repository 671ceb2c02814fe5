"""Patches to upstream's sources: found by version range, applied in order with full context, never forced.

Each ends as ``applied`` or ``already in``; a conflict is an error that shows the hunk beside upstream's lines.
Layout: patches/<recipe>/<versions>/NNNN-what-it-does.patch, where <versions> is one version (``0.4.4``) or a range with
both ends in it (``0.4.4--0.4.5``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version
from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from sm120_wheels import files, paths
from sm120_wheels.errors import (
    PatchConflictError,
    PatchInvalidError,
    PatchUnusedError,
    UnknownComponentError,
    near_misses,
)
from sm120_wheels.patch_header import PatchHeader, read_header
from sm120_wheels.process import Finished, run

State = Literal["applied", "already in"]

_SHOWN_LINES = 24


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One patch file."""

    path: Path
    package: str
    low: str
    high: str
    header: PatchHeader
    sha256: str

    @property
    def subject(self) -> str:
        return self.header.subject

    @property
    def source(self) -> str:
        """Name of the recipe's source that it applies to; empty: the main one."""
        return self.header.source

    @property
    def group(self) -> str:
        """Name under which it can be left out of a build; empty: it is in every build."""
        return self.header.group

    @property
    def name(self) -> str:
        """``sgl-kernel/0.4.4--0.4.5/0001-….patch``."""
        return f"{self.package}/{self.path.parent.name}/{self.path.name}"

    def covers(self, version: str) -> bool:
        return Version(self.low) <= Version(version) <= Version(self.high)


def discover(package: str, root: Path | None = None) -> list[Patch]:
    """All patches of a recipe in the order of application. Raises :class:`PatchInvalidError`."""
    folder = (root or paths.patches_root()) / package
    found = [_read(path, package) for path in folder.rglob("*.patch")]
    return sorted(found, key=lambda patch: (patch.path.name, Version(patch.low)))


def select(
    patches: Iterable[Patch], version: str, known_versions: Iterable[str], *, without: Iterable[str] = ()
) -> list[Patch]:
    """The patches for one version, but for the groups in ``without``.

    Raises :class:`PatchUnusedError` where a patch fits no version of the recipe, :class:`UnknownComponentError` for a
    group that no patch is in.
    """
    known, every, left_out = list(known_versions), list(patches), set(without)
    groups = sorted({patch.group for patch in every if patch.group})
    for group in sorted(left_out - set(groups)):
        raise UnknownComponentError(f"no patch is in a group {group!r}", hint=near_misses(group, groups))
    chosen: list[Patch] = []
    grouped: Patch | None = None
    for patch in every:
        if not any(patch.covers(other) for other in known):
            raise PatchUnusedError(
                f"the patch {patch.name} matches no version",
                where=str(patch.path),
                why=f"its folder says {patch.path.parent.name}; the recipe has {', '.join(known)}",
                hint="rename the folder to the versions it is for, or delete the patch",
            )
        if not patch.covers(version):
            continue
        if grouped and not patch.group:
            # else it could have been made on top of one that a build may leave out
            raise PatchInvalidError(
                f"the patch {patch.path.name} cannot be used",
                where=str(patch.path),
                why=f"it is in every build, but comes after {grouped.path.name} of the group {grouped.group}",
                hint="give it a lower number than all patches with a Group",
            )
        grouped = patch if patch.group else None
        if patch.group not in left_out:
            chosen.append(patch)
    return chosen


def apply(patch: Patch, tree: Path) -> State:
    """Apply one patch to a folder, wholly or not at all. Raises :class:`PatchConflictError` with the hunk."""
    forward = _git_apply(patch, tree, "--check")
    if forward.ok:
        _git_apply(patch, tree, check=True)
        return "applied"
    if _git_apply(patch, tree, "--check", "--reverse").ok:
        return "already in"
    raise PatchConflictError(
        f"the patch {patch.name} does not apply",
        where=_failed_places(forward.output) or str(patch.path),
        why=explain_conflict(patch.path.read_text(encoding="utf-8"), tree, forward.output),
        hint=f"upstream changed these lines: mend {patch.path}, or give it a narrower version range",
    )


def _git_apply(patch: Patch, tree: Path, *options: str, check: bool = False) -> Finished:
    # A work folder often lies inside some git checkout; git apply would then drop every path outside its index.
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent), "LC_ALL": "C"}
    # Nor may the user's configuration make it lenient about spaces (apply.ignoreWhitespace) or mend them.
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        env.pop(name, None)
    return run(
        ["git", "apply", "--whitespace=nowarn", "-p1", *options, patch.path.resolve()], cwd=tree, env=env, check=check
    )


def _failed_places(output: str) -> str:
    found = re.findall(r"^error: (?:patch failed: (\S+:\d+)|(\S+): (?:No such file|already exists))", output, re.M)
    return ", ".join(dict.fromkeys(a or b for a, b in found))


def explain_conflict(patch_text: str, tree: Path, output: str) -> str:
    """The first hunk that failed, and what upstream has at that place."""
    match = re.search(r"patch failed: (\S+):(\d+)", output)
    if not match:
        return output.strip()
    name, line = match.group(1), int(match.group(2))
    hunk_text = ""
    length = 8
    for changed in PatchSet(patch_text):
        for hunk in changed:
            if changed.path == name and hunk.source_start == line:
                hunk_text, length = str(hunk), hunk.source_length
    upstream = (tree / name).read_text(encoding="utf-8", errors="replace").splitlines()
    here = [f"{n:5d} {text}" for n, text in enumerate(upstream, 1) if line <= n < line + length]
    return "\n".join(
        [
            "the hunk wants to change:",
            *_shorten(hunk_text.rstrip().splitlines()),
            f"upstream has at {name}:{line}:",
            *_shorten(here or ["(the file ends before this line)"]),
        ]
    )


def _shorten(lines: list[str]) -> list[str]:
    if len(lines) <= _SHOWN_LINES:
        return lines
    return [*lines[:_SHOWN_LINES], f"… {len(lines) - _SHOWN_LINES} more lines"]


def _read(path: Path, package: str) -> Patch:
    text = path.read_text(encoding="utf-8", errors="replace")
    head, separator, _ = text.partition("\ndiff --git ")
    problem, header = "", None
    if path.parent.parent.name != package:
        problem = "it lies in no folder of versions, such as 0.4.4 or 0.4.4--0.4.5"
    elif "\N{REPLACEMENT CHARACTER}" in text:
        problem = "it is not UTF-8"
    elif not re.fullmatch(r"\d{4}-[a-z0-9-]+\.patch", path.name):
        problem = "its name is not NNNN-what-it-does.patch"
    elif not separator:
        problem = "it holds no diff (diff --git …)"
    else:
        try:
            header = read_header(head)
            PatchSet(text)
        except ValueError as exc:
            problem = str(exc)
        except UnidiffParseError as exc:
            problem = f"its diff is damaged: {exc}"
    low, _, high = path.parent.name.partition("--")
    try:
        if not problem and Version(high or low) < Version(low):
            problem = f"the range {path.parent.name} ends before it begins"
    except InvalidVersion:
        problem = f"its folder {path.parent.name!r} is neither a version nor a range such as 0.4.4--0.4.5"
    if problem or header is None:
        raise PatchInvalidError(
            f"the patch {path.name} cannot be used",
            where=str(path),
            why=problem,
            hint="see docs/how-to/patch-upstream.md",
        )
    return Patch(
        path=path,
        package=package,
        low=low,
        high=high or low,
        header=header,
        sha256=files.sha256_file(path),
    )
