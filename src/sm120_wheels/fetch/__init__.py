"""Bring pinned sources here: verified, cached by content, shared by all builds.

``fetch_source`` gives a read-only folder for a source; nothing here patches or builds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels import files
from sm120_wheels.fetch.archive import unpack
from sm120_wheels.fetch.download import download
from sm120_wheels.fetch.git import checkout
from sm120_wheels.fetch.index import find_file
from sm120_wheels.recipe import Source
from sm120_wheels.settings import Settings

#: 1980-01-01, the oldest date that a zip file can hold.
OLDEST_EPOCH = 315532800

__all__ = ["OLDEST_EPOCH", "Fetched", "fetch_source", "folder_pin"]


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A source that lies in the cache."""

    name: str
    folder: Path
    """Read-only by convention: builds copy from it."""
    pin: str
    """Commit id, sha256, or ``sha256:…`` of a folder's content."""
    came_from: str
    """URL that the bytes were taken from (after mapping), or ``cache``."""

    @property
    def epoch(self) -> int:
        """The source's own date, seconds since 1970: the commit's, or the newest member's of an archive.

        A folder of ours has none that two checkouts share, so it is as old as a zip file can be.
        """
        if self.pin.startswith("sha256:"):
            return OLDEST_EPOCH
        dates = [int(path.stat().st_mtime) for path in self.folder.rglob("*") if path.is_file()]
        return max([OLDEST_EPOCH, *dates])


def folder_pin(folder: Path) -> str:
    """The content of a folder as one hash: names, executable bits and bytes of all files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            mode = "x" if path.stat().st_mode & 0o100 else "-"
            digest.update(f"{path.relative_to(folder).as_posix()}\0{mode}\0{files.sha256_file(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def fetch_source(name: str, source: Source, *, recipe_folder: Path, cache_root: Path, settings: Settings) -> Fetched:
    """Make a source available as a folder.

    Raises the 2x errors of errors.py: wrong sha256, host unreachable, commit not there, offline and not cached.
    """
    if source.folder:
        folder = recipe_folder / source.folder
        return Fetched(name=name, folder=folder, pin=folder_pin(folder), came_from=str(source.folder))
    if source.git:
        assert source.commit is not None
        folder, came_from = checkout(
            source.git, source.commit, paths=source.paths, cache_root=cache_root, settings=settings
        )
        return Fetched(name=name, folder=folder, pin=source.commit, came_from=came_from)
    assert source.sha256 is not None
    folder = cache_root / "trees" / source.sha256
    if folder.is_dir():
        return Fetched(name=name, folder=folder, pin=source.sha256, came_from="cache")
    with files.locked(cache_root / "locks" / f"{source.sha256}.lock", what=f"the cache entry of {name}"):
        if folder.is_dir():  # another process was first
            return Fetched(name=name, folder=folder, pin=source.sha256, came_from="cache")
        if source.archive:
            urls = [source.archive]
            if settings.mirror and (mapped := settings.mirror.map_url(source.archive)):
                urls = [mapped]
        else:
            assert source.pypi is not None
            urls = []
        file = download(
            source.url.rsplit("/", 1)[-1],
            source.sha256,
            urls=urls,
            find_urls=(lambda: find_file(source.url)) if source.pypi else None,
            cache_root=cache_root,
            settings=settings,
        )
        with files.atomic_path(folder) as temporary:
            unpack(file.path, temporary)
    return Fetched(name=name, folder=folder, pin=source.sha256, came_from=file.came_from)
