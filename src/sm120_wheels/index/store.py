"""Changes an index: everything new is written aside and synced, then one rename of one link shows it.

A process that dies at any point leaves the old state or the new one. What a dead one left behind is named in a
journal (the record of the generation that never became current) and removed by the next writer. What the files mean
is not known here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from sm120_wheels.console import note
from sm120_wheels.errors import BusyError, SettingError
from sm120_wheels.files import content_key, locked, no_space_is_an_error
from sm120_wheels.index.layout import FORMAT, Layout, Snapshot, damaged, read_manifest, shard_of

#: Generations kept after a switch, for readers that had already followed the link.
KEPT_GENERATIONS = 3
#: From this many files on, one sync of the whole machine is cheaper than one for each file.
_SYNC_ALL_FROM = 128
_SYNCS_AT_ONCE = 16

Node = Mapping[str, bytes]
"""A folder of generated files: path to content."""


def node_digest(node: Node) -> str:
    return content_key({path: hashlib.sha256(data).hexdigest() for path, data in node.items()})


@dataclass(frozen=True, kw_only=True)
class Change:
    """A new state, as its difference from the present one; None removes."""

    projects: Mapping[str, Node | None] = field(default_factory=dict)
    slots: Mapping[str, Node | None] = field(default_factory=dict)
    """``roots/<label>`` and ``front``."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Path below the root to the staged file or folder that is moved there."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Permanent links: path below the root to target."""


@contextlib.contextmanager
def writing(root: Path, *, timeout_s: float = -1, trust: bool = True) -> Iterator[Transaction]:
    """The right to change an index; another writer waits (``timeout_s`` < 0: for ever), which is said, or gets a
    BusyError.

    Without ``trust`` nothing of the present state is read, so that a damaged one can be replaced.
    """
    layout = Layout(root)
    with no_space_is_an_error(root):
        try:
            layout.state.mkdir(parents=True, exist_ok=True)
            layout.lock.touch()
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise SettingError(
                "the index cannot be written",
                where=str(root),
                why=f"{exc.strerror}: {exc.filename}",
                hint="give a folder that you may write to with --root",
            ) from exc
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(layout.lock, what="the index", timeout_s=0))
            except BusyError:
                note("waiting for another publish to end …")
                stack.enter_context(locked(layout.lock, what="the index", timeout_s=timeout_s))
            transaction = Transaction(layout)
            transaction.clear()
            if trust:
                transaction.recover()
            try:
                yield transaction
            finally:
                shutil.rmtree(layout.staging, ignore_errors=True)


class Transaction:
    """Held by the one writer. :meth:`commit` may be called more than once."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._names = itertools.count()

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot.current(self.layout.root)

    def clear(self) -> None:
        """Remove what a writer that died had staged."""
        shutil.rmtree(self.layout.staging, ignore_errors=True)
        self.layout.staging.mkdir()

    def recover(self) -> None:
        """Remove what a writer that died had moved into place without showing it."""
        current = self.snapshot.number
        pending = [n for n in self.layout.numbers() if n > current]
        if pending not in ([], [current + 1]):
            # One writer leaves one generation at most: the link was put back, or lost, by something else.
            raise damaged(self.layout.current, f"it leads to {current or 'nothing'}, but there is {pending[-1]}")
        for number in pending:
            self._undo(number)

    def _undo(self, number: int) -> None:
        manifest = read_manifest(self.layout, number)
        for digest in manifest["created"]:
            remove(self.layout.nodes / digest)
        for path in manifest["files"]:
            remove(self.layout.root / path)
            with contextlib.suppress(OSError):
                (self.layout.root / path).parent.rmdir()
        remove(self.layout.generation(number))

    def stage(self) -> Path:
        """A new empty folder on the index's filesystem; gone when the transaction ends."""
        folder = self.layout.staging / str(next(self._names))
        folder.mkdir(parents=True)
        return folder

    def commit(self, change: Change, *, anew: bool = False) -> int:
        """Make the change the present state and return the number of its generation.

        With ``anew`` the change is all there is: nothing of the present state is taken over, or trusted.
        """
        old = Snapshot(self.layout, 0) if anew else self.snapshot
        number = (max([0, *self.layout.numbers()]) if anew else old.number) + 1
        nodes, slots = self._plan(old, change)
        if anew:
            self._repair(nodes)
        manifest = {
            "format": FORMAT,
            "number": number,
            "slots": slots,
            "created": sorted(d for d in nodes if not (self.layout.nodes / d).exists()),
            "replaced": sorted(self._replaced(old, change, slots)),
            "files": sorted(p for p in change.files if not (self.layout.root / p).exists()),
        }
        try:
            self._build(manifest, nodes, change)
        except BaseException:
            with contextlib.suppress(Exception):
                self._undo(number)
            raise
        self._switch(number)
        if anew:
            self.sweep()
        else:
            self._collect(number)
        return number

    # -- what there is to write

    def _plan(self, old: Snapshot, change: Change) -> tuple[dict[str, Node | dict[str, str]], dict[str, str]]:
        """The nodes of the new state that the change brings, and all of its slots."""
        nodes: dict[str, Node | dict[str, str]] = {}
        slots = dict(old.slots)
        shards: dict[str, dict[str, str]] = {}
        for project, node in change.projects.items():
            entries = shards.setdefault(shard_of(project), old.shard(shard_of(project)))
            if node is None:
                entries.pop(project, None)
                continue
            entries[project] = node_digest(node)
            nodes[entries[project]] = node
        for slot, entries in shards.items():
            slots[slot] = content_key({"links": entries})
            nodes[slots[slot]] = dict(entries)
            if not entries:
                del nodes[slots.pop(slot)]
        for slot, node in change.slots.items():
            if node is None:
                slots.pop(slot, None)
                continue
            slots[slot] = node_digest(node)
            nodes[slots[slot]] = node
        return nodes, slots

    def _replaced(self, old: Snapshot, change: Change, slots: dict[str, str]) -> Iterator[tuple[str, str]]:
        """Slot and node of what the new state no longer shows; a project's slot is ``p/<shard>/<project>``."""
        for slot, digest in old.slots.items():
            if slots.get(slot) != digest:
                yield slot, digest
        for project, node in change.projects.items():
            before = old.shard(shard_of(project)).get(project)
            if before and (node is None or node_digest(node) != before):
                yield f"{shard_of(project)}/{project}", before

    def _repair(self, nodes: Mapping[str, Node | dict[str, str]]) -> None:
        """Write those nodes again whose files on disk are not what their digest says."""
        aside = self.stage()
        for digest, node in nodes.items():
            place = self.layout.nodes / digest
            if place.exists() and read_node_digest(place) != digest:
                written = _Written()
                _write_node(aside / digest, node, written)
                written.sync()
                place.rename(aside / f"{digest}.damaged")
                (aside / digest).rename(place)

    # -- writing it

    def _build(self, manifest: dict[str, object], nodes: Mapping[str, Node | dict[str, str]], change: Change) -> None:
        created = set(manifest["created"])  # type: ignore[call-overload]
        written = _Written()
        staged = self.stage()
        for digest in sorted(created):
            _write_node(staged / digest, nodes[digest], written)
        generation = self._stage_generation(manifest, written)
        for source in change.files.values():
            written.tree(source)
        written.sync()
        # The journal first: from here on, whatever is moved into place is known to the next writer.
        number = int(str(manifest["number"]))
        self.layout.generations.mkdir(exist_ok=True)
        generation.rename(self.layout.generation(number))
        written.folder(self.layout.generations)
        written.sync()
        self.layout.nodes.mkdir(exist_ok=True)
        for digest in sorted(created):
            (staged / digest).rename(self.layout.nodes / digest)
        written.folder(self.layout.nodes)
        for path in manifest["files"]:  # type: ignore[attr-defined]
            target = self.layout.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            change.files[path].rename(target)
            written.folder(target.parent)
            written.folder(target.parent.parent)
        for path, target in change.links.items():
            if ensure_link(self.layout.root / path, target):
                written.folder((self.layout.root / path).parent)
        written.folder(self.layout.root)
        written.sync()

    def _stage_generation(self, manifest: dict[str, object], written: _Written) -> Path:
        folder = self.stage()
        path = folder / "generation.json"
        path.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        written.file(path)
        slots: dict[str, str] = manifest["slots"]  # type: ignore[assignment]
        for slot, digest in slots.items():
            link = folder / slot
            link.parent.mkdir(exist_ok=True)
            link.symlink_to("../" * (2 + slot.count("/")) + f"nodes/{digest}")
        for inner in (folder / "p", folder / "roots", folder):
            if inner.is_dir():
                written.folder(inner)
        return folder

    def _switch(self, number: int) -> None:
        """The one rename that shows the new state."""
        new = self.layout.state / "current.new"
        new.unlink(missing_ok=True)
        new.symlink_to(f"generations/{number:09d}")
        new.replace(self.layout.current)
        _fsync(self.layout.state)

    # -- removing what no reader needs

    def _collect(self, number: int) -> None:
        """Drop generations beyond the kept ones, and the nodes that only they showed."""
        numbers = self.layout.numbers()
        kept = [Snapshot(self.layout, n) for n in numbers if n > number - KEPT_GENERATIONS]
        for dropped in [n for n in numbers if n <= number - KEPT_GENERATIONS]:
            following = read_manifest(self.layout, dropped + 1) if dropped + 1 in numbers else {"replaced": []}
            for slot, digest in following["replaced"]:
                if not any(_shown(snapshot, slot) == digest for snapshot in kept):
                    remove(self.layout.nodes / digest)
            remove(self.layout.generation(dropped))

    def sweep(self) -> list[str]:
        """Remove every generation but the current one and every node it does not show; returns their names."""
        current = self.snapshot
        shown = set(current.slots.values()) | {node.name for _, node in current.project_nodes()}
        removed: list[str] = []
        for number in self.layout.numbers():
            if number != current.number:
                remove(self.layout.generation(number))
        for node in sorted(self.layout.nodes.iterdir()) if self.layout.nodes.is_dir() else []:
            if node.name not in shown:
                remove(node)
                removed.append(node.name)
        return removed


def read_node_digest(folder: Path) -> str:
    """The digest of a node as it lies on disk: equal to its name, unless something happened to it."""
    if not folder.is_dir():
        return ""
    links = {p.name: str(p.readlink()).removeprefix("../") for p in folder.iterdir() if p.is_symlink()}
    if links:
        return content_key({"links": links})
    files = [p for p in folder.rglob("*") if p.is_file()]
    return node_digest({str(p.relative_to(folder)): p.read_bytes() for p in files})


def ensure_link(link: Path, target: str) -> bool:
    """Make a link; returns False where it was there. Refuses to take the place of anything that is not a link."""
    with contextlib.suppress(OSError):
        if str(link.readlink()) == target:
            return False
    if link.exists() and not link.is_symlink():
        raise damaged(link, "something else lies where a link of the index belongs", hint="move it elsewhere")
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_name(f".{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(link)
    return True


class _Written:
    """What must reach the disk before the next step; many files cost one sync, few cost one each."""

    def __init__(self) -> None:
        self._paths: dict[Path, None] = {}

    def file(self, path: Path) -> None:
        self._paths[path] = None

    folder = file

    def tree(self, path: Path) -> None:
        if path.is_dir():
            for inner in path.rglob("*"):
                self.file(inner)
        self.file(path)

    def sync(self) -> None:
        if len(self._paths) >= _SYNC_ALL_FROM:
            os.sync()
        else:
            # At once, so that a journalling file system commits them together instead of one after the other.
            with ThreadPoolExecutor(max_workers=_SYNCS_AT_ONCE) as pool:
                list(pool.map(_fsync, self._paths))
        self._paths.clear()


def _write_node(folder: Path, node: Node | dict[str, str], written: _Written) -> None:
    folder.mkdir()
    for path, content in node.items():
        target = folder / path
        if isinstance(content, str):
            target.symlink_to(f"../{content}")
            continue
        if target.parent != folder:
            target.parent.mkdir(parents=True, exist_ok=True)
            written.folder(target.parent)
        target.write_bytes(content)
        written.file(target)
    written.folder(folder)


def _shown(snapshot: Snapshot, slot: str) -> str | None:
    if slot.startswith("p/") and slot.count("/") == 2:
        shard, project = slot.rsplit("/", 1)
        return snapshot.shard(shard).get(project)
    return snapshot.slots.get(slot)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
