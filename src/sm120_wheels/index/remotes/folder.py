"""A folder as a remote (a disk, a network mount): a true copy of the index, switched by the same rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels.errors import PublishRefusedError, RemoteError
from sm120_wheels.files import atomic_path, locked, no_space_is_an_error, write_text
from sm120_wheels.index.layout import Layout, Snapshot
from sm120_wheels.index.maintain import stray_folders
from sm120_wheels.index.remotes.plan import MEMORY, Memory, Pushed, check, file_keys, links_of, node_names, wheels_of
from sm120_wheels.index.store import ensure_link, remove


@dataclass(frozen=True)
class Folder:
    path: Path

    def push(self, snapshot: Snapshot, *, delete: bool) -> Pushed:
        """See :func:`sm120_wheels.index.remotes.push`."""
        target = Layout(self.path)
        source = snapshot.layout
        if self.path.resolve() == source.root.resolve():
            raise PublishRefusedError("an index cannot be pushed to itself", where=str(self.path))
        try:
            with no_space_is_an_error(self.path), locked(target.lock, what="the remote folder"):
                return self._push(snapshot, target, delete=delete)
        except OSError as exc:
            raise RemoteError("the folder cannot be written", where=str(self.path), why=str(exc)) from exc

    def _push(self, snapshot: Snapshot, target: Layout, *, delete: bool) -> Pushed:
        wheels = wheels_of(snapshot)
        check(self._memory(target), wheels, delete=delete, where=str(self.path))
        files = [(k, p) for k, p in file_keys(snapshot, wheels) if not (self.path / k).exists()]
        size = sum(p.stat().st_size for _, p in files)
        # What will be there is remembered before anything is: a push that stops is not forgotten.
        write_text(self.path / MEMORY, Memory(wheels={w.filename: w.sha256 for w in wheels}).text())
        for key, path in files:
            _copy(path, self.path / key)
        pages = 0
        for name in node_names(snapshot):
            if not (target.nodes / name).exists():
                pages += 1
                _copy_tree(snapshot.layout.nodes / name, target.nodes / name)
        generation = target.generation(snapshot.number)
        if generation.exists() and target.current.is_symlink() and target.current.readlink().name != generation.name:
            remove(generation)
        if not generation.exists():
            _copy_tree(snapshot.layout.generation(snapshot.number), generation)
        for link, to in links_of(snapshot).items():
            ensure_link(self.path / link, to)
        os.sync()
        ensure_link(target.current, f"generations/{snapshot.number:09d}")
        if delete:
            _clean(target, snapshot)
        return Pushed(generation=snapshot.number, files=len(files), pages=pages, bytes=size)

    def _memory(self, target: Layout) -> Memory:
        path = self.path / MEMORY
        if path.is_file():
            return Memory.read(path.read_bytes(), str(self.path))
        if target.current.is_symlink():
            raise PublishRefusedError(
                "that folder is an index of its own",
                where=str(self.path),
                why="it was published to, not pushed to",
                hint="push to an empty folder",
            )
        return Memory()


def _copy(source: Path, target: Path) -> None:
    with atomic_path(target) as temporary:
        shutil.copyfile(source, temporary)


def _copy_tree(source: Path, target: Path) -> None:
    with atomic_path(target) as temporary:
        shutil.copytree(source, temporary, symlinks=True)


def _clean(target: Layout, snapshot: Snapshot) -> None:
    for number in target.numbers():
        if number != snapshot.number:
            remove(target.generation(number))
    for node in _others(target.nodes, set(node_names(snapshot))):
        remove(node)
    for folder in stray_folders(target, snapshot):
        remove(folder)


def _others(folder: Path, names: set[str]) -> Iterator[Path]:
    return (p for p in sorted(folder.iterdir()) if p.name not in names)
