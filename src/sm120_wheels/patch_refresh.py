"""Moves a recipe's patch series from one version to another, by three-way merge between the two pinned trees.

For each source that is patched, a throw-away git repository holds the old tree with the series on top of it, one commit
a patch; each commit is then carried over to the new tree (``git cherry-pick``: what a patch changed is merged with what
upstream changed since, renamed files included). Nothing is written unless all patches could be moved, and then one
folder appears by one rename.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.version import Version

from sm120_wheels import files, patch
from sm120_wheels.errors import PatchConflictError, PatchInvalidError, UnknownVersionError
from sm120_wheels.patch import Patch
from sm120_wheels.process import Finished, run
from sm120_wheels.recipe import PackageVersion, Recipe

_SHOWN_LINES = 30
#: Above all .gitattributes of upstream's: no line ending and no filter may change a byte.
_ATTRIBUTES = "* -text -filter -ident -working-tree-encoding\n"


@dataclass(frozen=True, kw_only=True)
class Moved:
    """One patch of the old series in the new version."""

    name: str
    """Its name in the old series."""
    state: Literal["covers it already", "unchanged", "refreshed", "merged upstream"]
    """"unchanged": the same diff but for line numbers; "merged upstream": nothing of it was left to do."""
    text: str = ""
    """The new file's text; empty where none is needed."""


def nearest(package: Recipe, to: str, patches: Sequence[Patch]) -> str:
    """The version whose series is moved when none is named: the nearest older one with patches, else the nearest newer.

    Raises :class:`UnknownVersionError` where no other version has any.
    """
    having = [n for n in package.versions if n != to and any(one.covers(n) for one in patches)]
    older = [n for n in having if Version(n) < Version(to)]
    if not having:
        raise UnknownVersionError(
            f"no other version of {package.name} has patches", hint="write the first ones by hand"
        )
    return max(older, key=Version) if older else min(having, key=Version)


def refresh(
    package: Recipe,
    *,
    old: str,
    new: str,
    patches: Sequence[Patch],
    patches_root: Path,
    tree_of: Callable[[str, PackageVersion], Path],
) -> tuple[list[Moved], Path | None]:
    """Move the series; gives what came of each patch, and the folder that was written (None where none is needed).

    ``tree_of`` gives the folder of a source of a version by its name. Raises :class:`PatchConflictError` naming patch,
    files and hunks, and :class:`PatchInvalidError` where the new version has a folder of its own already; nothing is
    written then. Raises :class:`UnknownVersionError` where both versions are the same.
    """
    if old == new:
        raise UnknownVersionError(f"a series cannot be moved from {old} to itself", hint="name another with --from")
    folder = patches_root / package.name / new
    if any(folder.glob("*.patch")):
        raise PatchInvalidError(
            f"{package.name} {new} has patches of its own already",
            where=str(folder),
            hint="delete that folder to have the series made anew",
        )
    series = patch.select(patches, old, package.versions)
    pins, new_pins = package.versions[old], package.versions[new]
    moved: dict[str, Moved] = {}
    with tempfile.TemporaryDirectory(prefix="sm120-refresh-") as scratch:
        for source in dict.fromkeys(one.source or pins.main for one in series):
            of_source = [one for one in series if (one.source or pins.main) == source]
            if source not in new_pins.sources:
                raise PatchConflictError(
                    f"{package.name} {new} has no source {source!r}",
                    where=", ".join(one.name for one in of_source),
                    hint="drop these patches from the new version by narrowing their range, or name the new source",
                )
            repository = _Repository(Path(scratch) / source)
            base = repository.import_tree(tree_of(source, pins))
            tip = repository.import_tree(tree_of(source, new_pins), parent=base)
            for one in _carried(repository, of_source, base=base, tip=tip, new=new):
                moved[one.name] = one
    result = [moved[one.name] for one in series]
    texts = {Path(one.name).name: one.text for one in result if one.text}
    if not texts:
        return result, None
    with files.atomic_path(folder) as temporary:
        temporary.mkdir()
        for name, text in texts.items():
            (temporary / name).write_text(text, encoding="utf-8")
    return result, folder


def _carried(repository: _Repository, series: Sequence[Patch], *, base: str, tip: str, new: str) -> list[Moved]:
    """Carry a source's patches over, each on top of the one before."""
    commits = []
    repository.checkout(base)
    for one in series:
        patch.apply(one, repository.folder)
        commits.append(repository.commit(one.name))
    repository.checkout(tip)
    result = []
    for one, commit in zip(series, commits, strict=True):
        before = repository.head()
        picked = repository.git("cherry-pick", "--keep-redundant-commits", commit, check=False)
        if not picked.ok:
            raise _conflict(repository, one, new, picked.output)
        diff = repository.diff(before)
        text = one.path.read_text(encoding="utf-8")
        head, _, old_diff = text.partition("\ndiff --git ")
        if not diff:
            result.append(Moved(name=one.name, state="merged upstream"))
        elif one.covers(new):
            result.append(Moved(name=one.name, state="covers it already"))
        else:
            same = _without_numbers(f"diff --git {old_diff}") == _without_numbers(diff)
            result.append(
                Moved(name=one.name, state="unchanged" if same else "refreshed", text=f"{head}\n{diff.rstrip()}\n")
            )
    return result


def _without_numbers(diff: str) -> str:
    """A diff without what moves when lines above it do: object ids, line numbers and the function's name."""
    kept = [line for line in diff.splitlines() if not line.startswith("index ")]
    return "\n".join(re.sub(r"^@@ .*? @@.*", "@@", line) for line in kept).rstrip()


def _conflict(repository: _Repository, one: Patch, new: str, output: str) -> PatchConflictError:
    names = repository.git("diff", "--name-only", "--diff-filter=U").output.split("\n")
    names = [name for name in names if name]
    hunks = repository.git("diff", "--diff-filter=U").output.rstrip().splitlines()
    places = [
        f"{name}:{number}"
        for name in names
        for number, line in enumerate(_lines(repository.folder / name), 1)
        if line.startswith("<<<<<<< ")
    ]
    shown = hunks[:_SHOWN_LINES] + ([f"… {len(hunks) - _SHOWN_LINES} more lines"] if len(hunks) > _SHOWN_LINES else [])
    return PatchConflictError(
        f"the patch {one.name} cannot be moved to {new}",
        where=", ".join(places or names) or one.name,
        why="\n".join(shown) or output.strip(),
        hint=f"nothing was written. Make this patch by hand in patches/{one.package}/{new}/, or narrow the ranges of "
        "those that the new version does not need",
    )


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []


class _Repository:
    """A throw-away repository, deaf to the user's configuration and to upstream's attributes and hooks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main", "--template=")
        info = folder / ".git" / "info"
        info.mkdir(exist_ok=True)
        (info / "attributes").write_text(_ATTRIBUTES, encoding="utf-8")

    def git(self, *arguments: str | Path, check: bool = True, work_tree: Path | None = None) -> Finished:
        env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        env |= {
            "GIT_DIR": str(self.folder / ".git"),
            "GIT_WORK_TREE": str(work_tree or self.folder),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "LC_ALL": "C",
            **{f"GIT_{who}_{what}": "sm120" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        settings = ("core.autocrlf=false", "gc.auto=0", "commit.gpgsign=false", "core.quotePath=false")
        options = [part for setting in settings for part in ("-c", setting)]
        return run(["git", *options, *arguments], cwd=work_tree or self.folder, env=env, check=check)

    def import_tree(self, tree: Path, *, parent: str | None = None) -> str:
        """A commit that holds a folder's files; they are read where they lie."""
        self.git("read-tree", "--empty")
        self.git("add", "--all", "--force", ".", work_tree=tree)
        written = self.git("write-tree").output.strip()
        parents = ("-p", parent) if parent else ()
        return self.git("commit-tree", written, *parents, "-m", "upstream").output.strip()

    def checkout(self, commit: str) -> None:
        self.git("checkout", "--quiet", "--force", "--detach", commit)
        self.git("clean", "-qffdx")

    def commit(self, message: str) -> str:
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.head()

    def head(self) -> str:
        return self.git("rev-parse", "HEAD").output.strip()

    def diff(self, since: str) -> str:
        """The diff in the form that our patches have."""
        return self.git(
            "diff", "--no-color", "--no-ext-diff", "--no-renames", "--abbrev=10", "--src-prefix=a/", "--dst-prefix=b/",
            since, "HEAD",
        ).output  # fmt: skip
