"""Bring one commit of a git repository here and check part of it out; shallow, and only the files that are wanted,
where the server allows.

An object's name is the hash of its content, so a commit that git accepted is the pinned one, whoever sent it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sm120_wheels import files
from sm120_wheels.console import note
from sm120_wheels.errors import CommandError, CommitNotFoundError, HostUnreachableError, OfflineError
from sm120_wheels.fetch.download import MIRROR_HINT
from sm120_wheels.process import Finished, run
from sm120_wheels.settings import Settings

#: A disk with less room, in bytes, is taken to be what stopped git.
_FULL = 1 << 20

_NO_COMMIT = re.compile(
    r"not our ref|unadvertised object|no such remote ref|couldn't find remote ref|bad object|unable to find", re.I
)
_UNREACHABLE = re.compile(
    r"could not resolve|failed to connect|connection (refused|timed out|reset)|unable to access|timed? out"
    r"|does not appear to be a git repository|does not exist|no such file|could not read from remote"
    r"|authentication failed|could not read Username|repository .* not found",
    re.I,
)


def checkout(url: str, commit: str, *, paths: Sequence[str], cache_root: Path, settings: Settings) -> tuple[Path, str]:
    """A folder with the files of a commit (only ``paths`` where given), and where it came from.

    Raises :class:`CommitNotFoundError`, :class:`HostUnreachableError` and :class:`OfflineError`.
    """
    part = files.content_key(sorted(paths))[:8] if paths else "all"
    tree = cache_root / "trees" / f"{commit}-{part}"
    if tree.is_dir():
        return tree, "cache"
    repository = cache_root / "git" / f"{re.sub(r'[^A-Za-z0-9._-]+', '+', url.split('://', 1)[1])}.git"
    with files.locked(cache_root / "locks" / f"{repository.name}.lock", what=f"the cached copy of {url}"):
        if tree.is_dir():
            return tree, "cache"
        came_from = "cache"
        if not _has(repository, commit) or _blobs(repository, commit, paths):
            came_from = _fetch(url, commit, paths, repository, settings)
        with files.atomic_path(tree) as temporary:
            temporary.mkdir()
            _export(repository, commit, paths, temporary)
            _date(temporary, int(_git(repository, "show", "--no-patch", "--format=%ct", commit).output.split()[-1]))
    return tree, came_from


def _git(
    repository: Path,
    *arguments: str | Path,
    check: bool = True,
    env: dict[str, str] | None = None,
    stdin: bytes | None = None,
    network: bool = False,
) -> Finished:
    """git on a bare repository, never prompting.

    Only with ``network`` does it read the user's configuration (proxies, certificates), and may it contact a server:
    left to itself a partial clone would fetch whatever it is asked about, and a filter in ~/.gitconfig would change
    the files.
    """
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith("GIT_SSL")},
        "GIT_DIR": str(repository),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "LC_ALL": "C",
        **({} if network else {"GIT_ALLOW_PROTOCOL": "none", "GIT_CONFIG_GLOBAL": os.devnull}),
        **(env or {}),
    }
    return run(
        ["git", "-c", "core.autocrlf=false", "-c", "gc.auto=0", *arguments], env=environment, check=check, stdin=stdin
    )


def _has(repository: Path, commit: str) -> bool:
    return repository.is_dir() and _git(repository, "cat-file", "-e", f"{commit}^{{tree}}", check=False).ok


def _fetch(url: str, commit: str, paths: Sequence[str], repository: Path, settings: Settings) -> str:
    place = settings.mirror.map_url(url) if settings.mirror else None
    place = place or url
    if settings.offline and not place.startswith("file:"):
        raise OfflineError(
            f"commit {commit[:12]} is not in the cache, and offline mode forbids to fetch it",
            where=url,
            hint="run once without --offline; docs/how-to/build-offline.md shows how to carry a cache over",
        )
    if not repository.is_dir():
        with files.atomic_path(repository) as temporary:
            _git(temporary, "init", "--quiet", "--bare", temporary)
    note(f"fetching {url.rsplit('/', 1)[-1]} {commit[:12]}" + (f" from {place}" if place != url else ""))
    with files.no_space_is_an_error(repository):
        for stale in repository.glob("*.lock"):  # of a git that was killed; a living one would hold our lock
            stale.unlink()
        # What is not sent now (see --filter) git would ask this remote for.
        _git(repository, "config", "extensions.partialClone", "source")
        _git(repository, "config", "remote.source.url", place)
        _git(repository, "config", "remote.source.promisor", "true")
        want = ["fetch", "--quiet", "--no-tags", "--depth=1", "--filter=blob:none", "source", commit]
        done = _git(repository, *want, check=False, network=True)
        if not done.ok and re.search(r"unadvertised object|shallow", done.output, re.I):
            # Servers before protocol 2 give only what a ref names: take everything, then look for the commit.
            everything = ["fetch", "--quiet", "--tags", "source", "+refs/*:refs/mirror/*"]
            _git(repository, *everything, check=False, network=True)
        if not _has(repository, commit):
            raise _explain(url, place, commit, done)
        blobs = _blobs(repository, commit, paths)
        if blobs:
            # One request for all of them; left to itself, checkout would ask for each.
            want = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--filter=blob:none", "source", "--stdin"]
            stdin = "".join(f"{blob}\n" for blob in blobs).encode()
            done = _git(repository, *want, check=False, stdin=stdin, network=True)
            if missing := _blobs(repository, commit, paths):
                raise _explain(url, place, missing[0], done)
    return place


def _date(tree: Path, commit_time: int) -> None:
    """Give every file the commit's time (seconds since 1970), which is what builds take as their date."""
    for path in tree.rglob("*"):
        os.utime(path, (commit_time, commit_time), follow_symlinks=False)


def _blobs(repository: Path, commit: str, paths: Sequence[str]) -> list[str]:
    """The files of a commit (below ``paths``) that are not here yet, as object ids."""
    for path in paths:
        if not _git(repository, "ls-tree", commit, "--", path).output.strip():
            raise CommitNotFoundError(
                f"commit {commit[:12]} has no {path}",
                where=repository.name.removesuffix(".git").replace("+", "/"),
                hint="check the key paths of this source in the recipe",
            )
    # rev-list reports what is missing; cat-file would go and fetch each object, one at a time.
    listed = _git(
        repository, "rev-list", "--objects", "--no-object-names", "--missing=print", "--no-walk", commit, "--", *paths
    )
    return [line[1:] for line in listed.output.splitlines() if line.startswith("?")]


def _explain(url: str, place: str, commit: str, finished: Finished) -> Exception:
    output = finished.output.strip()
    why = "\n".join(line for line in output.splitlines() if line.strip())[-600:]
    if "No space left" in output:
        return files.no_space(Path(finished.argv[-1]) if Path(finished.argv[-1]).exists() else Path.cwd())
    if _NO_COMMIT.search(output) or finished.ok:
        return CommitNotFoundError(
            f"commit {commit} is not there",
            where=place,
            why=why or f"pinned for {url}",
            hint="the mirror is older than the pin or holds another project: update it, or take another with --mirror"
            if place != url
            else "upstream has rewritten its history or hidden the commit; take a mirror that has it with --mirror",
        )
    if _UNREACHABLE.search(output):
        host = urlsplit(place).netloc or place
        return HostUnreachableError(f"cannot fetch from {host}", where=place, why=why, hint=MIRROR_HINT)
    return CommandError("git fetch failed", where=" ".join(finished.argv), why=why)


def _export(repository: Path, commit: str, paths: Sequence[str], into: Path) -> None:
    """Write the files with checkout, since ``git archive`` would drop what .gitattributes marks export-ignore."""
    index = into.with_name(f"{into.name}.index")
    env = {"GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(into)}
    try:
        done = _git(repository, "checkout", "--quiet", commit, "--", *(paths or ["."]), env=env, check=False)
        if not done.ok:
            # git names the files that it could not write, but not always why
            if "No space left" in done.output or shutil.disk_usage(into).free < _FULL:
                raise files.no_space(into)
            raise CommandError("git could not write a commit's files", where=" ".join(done.argv), why=done.output)
    finally:
        index.unlink(missing_ok=True)
