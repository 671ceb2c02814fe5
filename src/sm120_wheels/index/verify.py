"""Re-hashes everything in an index and says what is wrong with it. Changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sm120_wheels.errors import IndexDamagedError, WheelInvalidError
from sm120_wheels.files import sha256_file
from sm120_wheels.index.change import front_node, front_of, project_node, root_node
from sm120_wheels.index.layout import FRONT, Layout, Snapshot, permanent_links, present, read_project, root_slot
from sm120_wheels.index.maintain import stray_folders
from sm120_wheels.index.model import Project, Wheel
from sm120_wheels.index.store import node_digest, read_node_digest
from sm120_wheels.wheel.archive import open_wheel


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is not as it should be. ``note``: harmless, and removed by the next publish or prune."""

    kind: Literal["damage", "note"]
    path: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    wheels: int
    bytes: int
    findings: tuple[Finding, ...]

    @property
    def damage(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.kind == "damage")


def verify(root: Path) -> Verified:
    """Check every file of the present state. A damaged index is a result, not an exception."""
    layout = Layout(root)
    findings: list[Finding] = []
    wheels = size = 0
    try:
        snapshot = present(root)
        if snapshot.number:
            findings += _slots(snapshot)
            projects = []
            for name, node in snapshot.project_nodes():
                found, project = _project(snapshot, name, node)
                findings += found
                if project:
                    projects.append(project)
                    wheels += len(project.wheels)
                    size += sum(w.size for w in project.wheels)
            findings += _above(snapshot, projects)
        findings += _strays(layout, snapshot)
    except IndexDamagedError as exc:
        findings.append(Finding(kind="damage", path=exc.where, what=exc.why))
    return Verified(wheels=wheels, bytes=size, findings=tuple(findings))


def _slots(snapshot: Snapshot) -> Iterator[Finding]:
    """The links of the generation, and the nodes they lead to."""
    layout = snapshot.layout
    for slot, digest in sorted(snapshot.slots.items()):
        link = layout.generation(snapshot.number) / slot
        if not link.is_symlink() or link.readlink().name != digest:
            yield _damage(layout, link, f"it does not lead to {digest}")
        if read_node_digest(layout.nodes / digest) != digest:
            yield _damage(layout, layout.nodes / digest, "its content is not what its name says")


def _project(snapshot: Snapshot, name: str, node: Path) -> tuple[list[Finding], Project | None]:
    layout = snapshot.layout
    findings: list[Finding] = []
    if read_node_digest(node) != node.name:
        findings.append(_damage(layout, node, f"the pages of {name} are not what was written"))
    try:
        project = read_project(node)
    except IndexDamagedError as exc:
        return [*findings, Finding(kind="damage", path=exc.where, what=exc.why)], None
    if not findings and node_digest(project_node(project, layout.read_settings())) != node.name:
        findings.append(_note(layout, node, "this version would write other pages: `sm120 index rebuild`"))
    for path, target in permanent_links(name, project.labels).items():
        link = layout.root / path
        if not link.is_symlink() or str(link.readlink()) != target:
            findings.append(_damage(layout, link, f"it should be a link to {target}"))
    for wheel in project.wheels:
        findings += _wheel(layout, wheel)
    return findings, project


def _wheel(layout: Layout, wheel: Wheel) -> Iterator[Finding]:
    path = layout.root / wheel.path
    if not path.is_file():
        yield _damage(layout, path, "the wheel is gone")
        return
    if (found := sha256_file(path)) != wheel.sha256:
        yield _damage(layout, path, f"sha256 {found}; published as {wheel.sha256}")
        return
    try:
        with open_wheel(path) as opened:
            inside = hashlib.sha256(opened.read(f"{opened.dist_info}/METADATA")).hexdigest()
    except WheelInvalidError as exc:
        yield _damage(layout, path, f"{exc.what}: {exc.why}")
        return
    if inside != wheel.metadata_sha256:
        yield _damage(layout, path, "its METADATA is not what its page says")
    expected = {f"{wheel.filename}.metadata": wheel.metadata_sha256}
    expected.update({e.filename: e.sha256 for e in wheel.evidence})
    for name, sha256 in expected.items():
        beside = path.with_name(name)
        if not beside.is_file():
            yield _damage(layout, beside, "the file is gone")
        elif (found := sha256_file(beside)) != sha256:
            yield _damage(layout, beside, f"sha256 {found}; published as {sha256}")


def _above(snapshot: Snapshot, projects: list[Project]) -> Iterator[Finding]:
    """The lists of projects and the front page, against what the projects say."""
    layout = snapshot.layout
    labels = {label for p in projects for label in p.labels}
    for label in sorted(labels | set(snapshot.labels)):
        names = sorted(p.project for p in projects if label in p.labels)
        if snapshot.slots.get(root_slot(label)) != node_digest(root_node(label, names)):
            listed = set(snapshot.names(label)) ^ set(names)
            told = f"wrong about {', '.join(sorted(listed))}" if listed else "made by another version"
            make = _damage if listed else _note
            yield make(layout, layout.root / label / "index.html", f"the list of projects is {told}")
    front = front_of(projects)
    if snapshot.front() != front:
        yield _damage(layout, layout.root / "index.html", "the front page does not show what is published")
    elif snapshot.slots.get(FRONT) != node_digest(front_node(front, layout.read_settings())):
        yield _note(layout, layout.root / "index.html", "this version would write another: `sm120 index rebuild`")


def _strays(layout: Layout, snapshot: Snapshot) -> Iterator[Finding]:
    for number in layout.numbers():
        if number > snapshot.number:
            yield _note(layout, layout.generation(number), "left by a publish that was stopped")
    for path in sorted(layout.staging.iterdir()) if layout.staging.is_dir() else []:
        yield _note(layout, path, "a publish is running, or was stopped")
    for folder in stray_folders(layout, snapshot):
        yield _note(layout, folder, "no page shows these files; `sm120 index prune` removes them")


def _damage(layout: Layout, path: Path, what: str) -> Finding:
    return Finding(kind="damage", path=str(path.relative_to(layout.root)), what=what)


def _note(layout: Layout, path: Path, what: str) -> Finding:
    return Finding(kind="note", path=str(path.relative_to(layout.root)), what=what)
