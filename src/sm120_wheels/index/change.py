"""Turns changed records into the files of a new state. Pure but for reading the present state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from sm120_wheels.index import page, render
from sm120_wheels.index.layout import FRONT, Snapshot, permanent_links, read_project, root_slot
from sm120_wheels.index.model import Front, Package, Project, Settings, Wheel
from sm120_wheels.index.store import Change, Node


def change_to(
    snapshot: Snapshot,
    projects: Mapping[str, Project],
    settings: Settings,
    *,
    anew: bool = False,
    files: Mapping[str, Path] | None = None,
) -> Change:
    """The change that makes the given projects what they are given as; one without wheels goes away.

    With ``anew``, the pages above the projects are made from all projects instead of from the present pages: needed
    where wheels were removed, and where the present pages are not trusted.
    """
    old_labels = {name: _labels_of(snapshot, name, anew) for name in projects}
    labels = {label for p in projects.values() for label in p.labels} | {x for old in old_labels.values() for x in old}
    labels |= set(snapshot.labels) if anew else set()
    slots: dict[str, Node | None] = {FRONT: front_node(_front(snapshot, projects, anew), settings)}
    everything = dict(_all(snapshot, projects)) if anew else {}
    links: dict[str, str] = {}
    for label in sorted(labels):
        if anew:
            names = {n for n, p in everything.items() if p.wheels and label in p.labels}
        else:
            names = set(snapshot.names(label)) - set(projects)
            names |= {n for n, p in projects.items() if p.wheels and label in p.labels}
        slots[root_slot(label)] = root_node(label, sorted(names)) if names else None
    for name, project in projects.items():
        links.update(permanent_links(name, project.labels))
    nodes = {n: project_node(p, settings) if p.wheels else None for n, p in projects.items()}
    return Change(projects=nodes, slots=slots, files=files or {}, links=links)


def project_node(project: Project, settings: Settings) -> Node:
    """All generated files of a project."""
    node = {"state.json": project.text().encode(), "page/index.html": page.project_page(project, settings)}
    for label in project.labels:
        node[f"{label}/index.html"] = render.project_html(project, label, base_url=settings.base_url)
        node[f"{label}/index.json"] = render.project_json(project, label, base_url=settings.base_url)
    return node


def root_node(label: str, names: list[str]) -> Node:
    return {"index.html": render.root_html(label, names), "index.json": render.root_json(label, names)}


def front_node(front: Front, settings: Settings) -> Node:
    return {
        "index.html": page.front_page(front, settings),
        "front.json": (front.model_dump_json() + "\n").encode(),
    }


def front_of(projects: Iterator[Project] | list[Project]) -> Front:
    """The front page's content from all projects."""
    packages: dict[str, Package] = {}
    wheels: list[Wheel] = []
    for project in projects:
        if project.wheels:
            packages[project.project] = _package(project)
            wheels = list(page.newest([*wheels, *project.wheels]))
    return Front(packages=dict(sorted(packages.items())), recent=tuple(wheels))


def _front(snapshot: Snapshot, projects: Mapping[str, Project], anew: bool) -> Front:
    if anew:
        return front_of([p for _, p in _all(snapshot, projects)])
    old = snapshot.front()
    packages = {n: p for n, p in old.packages.items() if n not in projects}
    packages.update({n: _package(p) for n, p in projects.items() if p.wheels})
    # Nothing was removed, so what is among the newest now was so before, or is in a changed project.
    wheels = [w for w in old.recent if w.project not in projects]
    wheels += [w for p in projects.values() for w in p.wheels]
    return Front(packages=dict(sorted(packages.items())), recent=page.newest(wheels))


def _all(snapshot: Snapshot, projects: Mapping[str, Project]) -> Iterator[tuple[str, Project]]:
    for name, node in snapshot.project_nodes():
        if name not in projects:
            yield name, read_project(node)
    yield from projects.items()


def _labels_of(snapshot: Snapshot, name: str, anew: bool) -> tuple[str, ...]:
    if anew:
        return ()
    project = snapshot.project(name)
    return project.labels if project else ()


def _package(project: Project) -> Package:
    return Package(wheels=len(project.wheels), newest=project.wheels[0].version, labels=project.labels)
