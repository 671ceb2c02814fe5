"""Where everything of an index lies, and how its present state is read. Nothing here writes.

Below the root::

    index.html               link: the front page
    cu130/<project>/         links: a simple index for each CUDA version; ``simple/`` is the one of all
    packages/<project>/      links: a page of all wheels of a project
    files/ab/<sha256>/       a wheel, its METADATA and its evidence; written once, never changed
    .state/current           link to the present generation: the one thing that a publish switches
    .state/generations/N/    links to nodes: ``p/<shard>``, ``roots/<label>``, ``front``
    .state/nodes/<digest>/   generated files under the digest of their content; shared between generations

A shard is a node of links from project to that project's node, chosen by the first byte of the sha256 of its name.
So a new state costs the changed projects, their shards and one small folder, whatever the number of wheels; and the
links above never change once made, because they lead through ``current``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sm120_wheels.errors import IndexDamagedError, SettingError
from sm120_wheels.index.model import Front, Project, Settings

FORMAT = 1
FRONT = "front"

REBUILD = "`sm120 index verify` lists the damage; `sm120 index rebuild` makes the pages anew from the files"


@dataclass(frozen=True)
class Layout:
    """The paths of an index."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / ".state"

    @property
    def lock(self) -> Path:
        return self.state / "lock"

    @property
    def current(self) -> Path:
        return self.state / "current"

    @property
    def generations(self) -> Path:
        return self.state / "generations"

    @property
    def nodes(self) -> Path:
        return self.state / "nodes"

    @property
    def staging(self) -> Path:
        return self.state / "staging"

    @property
    def settings(self) -> Path:
        return self.state / "settings.json"

    @property
    def files(self) -> Path:
        return self.root / "files"

    def generation(self, number: int) -> Path:
        return self.generations / f"{number:09d}"

    def numbers(self) -> list[int]:
        """The generations that exist, oldest first."""
        if not self.generations.is_dir():
            return []
        return sorted(int(p.name) for p in self.generations.iterdir() if p.name.isdigit())

    def read_settings(self) -> Settings:
        if not self.settings.is_file():
            return Settings()
        try:
            return Settings.model_validate_json(self.settings.read_bytes())
        except ValidationError as exc:
            raise damaged(self.settings, str(exc)) from exc


def shard_of(project: str) -> str:
    """``p/ab``: the slot that holds a project."""
    return f"p/{hashlib.sha256(project.encode()).hexdigest()[:2]}"


def root_slot(label: str) -> str:
    return f"roots/{label}"


def permanent_links(project: str, labels: tuple[str, ...]) -> dict[str, str]:
    """The links that make a project reachable: path below the root to target."""
    through = f".state/current/{shard_of(project)}/{project}"
    links = {f"packages/{project}": f"../{through}/page", "index.html": f".state/current/{FRONT}/index.html"}
    for label in labels:
        links[f"{label}/{project}"] = f"../{through}/{label}"
        for page in ("index.html", "index.json"):
            links[f"{label}/{page}"] = f"../.state/current/{root_slot(label)}/{page}"
    return links


def damaged(path: Path, why: str, *, hint: str = REBUILD) -> IndexDamagedError:
    return IndexDamagedError("the index is damaged", where=str(path), why=why, hint=hint)


@dataclass(frozen=True)
class Snapshot:
    """The state that was current when the snapshot was taken; reading it needs no lock."""

    layout: Layout
    number: int
    """0 for an index that nothing was published to."""

    @classmethod
    def current(cls, root: Path) -> Snapshot:
        layout = Layout(root)
        try:
            target = layout.current.readlink()
        except FileNotFoundError:
            return cls(layout, 0)
        except OSError as exc:
            raise damaged(layout.current, f"it is not a link ({exc.strerror})") from exc
        if not target.name.isdigit():
            raise damaged(layout.current, f"it leads to {target}")
        return cls(layout, int(target.name))

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The generation's own record: ``slots``, and what it ``created`` and ``replaced``."""
        return read_manifest(self.layout, self.number) if self.number else {"slots": {}}

    @property
    def slots(self) -> dict[str, str]:
        slots: dict[str, str] = self.manifest["slots"]
        return slots

    @property
    def labels(self) -> list[str]:
        return sorted(s.removeprefix("roots/") for s in self.slots if s.startswith("roots/"))

    @cached_property
    def _shards(self) -> dict[str, dict[str, str]]:
        return {}

    def shard(self, slot: str) -> dict[str, str]:
        """The projects of a shard and the digests of their nodes."""
        digest = self.slots.get(slot)
        if digest is None:
            return {}
        if slot not in self._shards:
            folder = self.layout.nodes / digest
            try:
                self._shards[slot] = {p.name: p.readlink().name for p in sorted(folder.iterdir())}
            except OSError as exc:
                raise damaged(folder, str(exc)) from exc
        return dict(self._shards[slot])

    def project_nodes(self) -> Iterator[tuple[str, Path]]:
        for slot in sorted(s for s in self.slots if s.startswith("p/")):
            for project, digest in self.shard(slot).items():
                yield project, self.layout.nodes / digest

    def project(self, name: str) -> Project | None:
        slot = shard_of(name)
        if slot not in self.slots:
            return None
        link = self.layout.nodes / self.slots[slot] / name
        return read_project(link) if link.is_symlink() else None

    def projects(self) -> Iterator[Project]:
        for _, node in self.project_nodes():
            yield read_project(node)

    def names(self, label: str) -> list[str]:
        """The projects that an index lists."""
        digest = self.slots.get(root_slot(label))
        if digest is None:
            return []
        path = self.layout.nodes / digest / "index.json"
        try:
            return [p["name"] for p in json.loads(path.read_bytes())["projects"]]
        except (OSError, ValueError, KeyError) as exc:
            raise damaged(path, str(exc)) from exc

    def front(self) -> Front:
        digest = self.slots.get(FRONT)
        if digest is None:
            return Front(packages={}, recent=())
        path = self.layout.nodes / digest / "front.json"
        try:
            return Front.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as exc:
            raise damaged(path, str(exc)) from exc


def present(root: Path) -> Snapshot:
    """The present state of an index that exists. Raises :class:`SettingError` where there is none."""
    if not Layout(root).state.is_dir():
        raise SettingError(
            "there is no index here",
            where=str(root),
            hint="give its folder with --root; `sm120 index publish` makes a new one",
        )
    return Snapshot.current(root)


def read_project(node: Path) -> Project:
    path = node / "state.json"
    try:
        return Project.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as exc:
        raise damaged(path, str(exc)) from exc


def read_manifest(layout: Layout, number: int) -> dict[str, Any]:
    path = layout.generation(number) / "generation.json"
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["format"] != FORMAT:
            raise damaged(path, f"format {manifest['format']}; this program reads {FORMAT}", hint="use a newer sm120")
        if not isinstance(manifest["slots"], dict):
            raise damaged(path, "slots is not an object")
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise damaged(path, repr(exc)) from exc
    return dict(manifest)
