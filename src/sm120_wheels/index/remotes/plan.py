"""What there is to push, in the order that keeps readers safe, and what a remote remembers. No remote is known here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sm120_wheels.errors import PublishRefusedError, RemoteError
from sm120_wheels.index.layout import FRONT, Snapshot, root_slot
from sm120_wheels.index.model import Wheel

#: Where a remote keeps :class:`Memory`.
MEMORY = ".state/pushed.json"


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What a push sent."""

    generation: int
    files: int
    pages: int
    bytes: int


class Remote(Protocol):
    def push(self, snapshot: Snapshot, *, delete: bool) -> Pushed: ...


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What was pushed to a remote last."""

    wheels: dict[str, str] = field(default_factory=dict)
    """Filename to sha256."""
    pages: dict[str, str] = field(default_factory=dict)
    """For places without links: page to sha256."""

    @classmethod
    def read(cls, content: bytes, where: str) -> Memory:
        try:
            value = json.loads(content)
            return cls(wheels=dict(value["wheels"]), pages=dict(value["pages"]))
        except (ValueError, KeyError, TypeError) as exc:
            raise RemoteError(
                "what the remote remembers cannot be read",
                where=f"{where}/{MEMORY}",
                why=repr(exc),
                hint="remove that file if no other index is pushed there, and push again",
            ) from exc

    def text(self) -> str:
        return json.dumps({"wheels": self.wheels, "pages": self.pages}, indent=0, sort_keys=True) + "\n"


def check(memory: Memory, wheels: list[Wheel], *, delete: bool, where: str) -> None:
    """Refuse to push where a published file would change, or where another index's wheels would disappear."""
    ours = {w.filename: w.sha256 for w in wheels}
    for filename, sha256 in sorted(memory.wheels.items()):
        if filename in ours and ours[filename] != sha256:
            raise PublishRefusedError(
                f"{filename} was pushed before with other bytes",
                where=where,
                why=f"there: sha256 {sha256}\nhere: sha256 {ours[filename]}",
                hint="a published file never changes; build with another version or build tag",
            )
    unknown = sorted(set(memory.wheels) - set(ours))
    if unknown and not delete:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise PublishRefusedError(
            "the remote holds wheels that this index does not",
            where=where,
            why=", ".join(unknown[:5]) + more,
            hint="publish them here too; or push with --delete if they were pruned here",
        )


def wheels_of(snapshot: Snapshot) -> list[Wheel]:
    return [w for p in snapshot.projects() for w in p.wheels]


def file_keys(snapshot: Snapshot, wheels: list[Wheel]) -> Iterator[tuple[str, Path]]:
    """Everything below files/ that belongs to these wheels: the wheels themselves first."""
    root = snapshot.layout.root
    for wheel in wheels:
        yield wheel.path, root / wheel.path
    for wheel in wheels:
        names = [f"{wheel.filename}.metadata", *(e.filename for e in wheel.evidence), "record.json"]
        for key in dict.fromkeys(f"{wheel.folder}/{name}" for name in names):
            yield key, root / key


def page_keys(snapshot: Snapshot) -> Iterator[tuple[str, Path]]:
    """Every page at its address: those of projects, then the lists of projects, then the front page."""
    for project, node in snapshot.project_nodes():
        yield f"packages/{project}/index.html", node / "page" / "index.html"
        for folder in sorted(p for p in node.iterdir() if p.is_dir() and p.name != "page"):
            for page in ("index.json", "index.html"):
                yield f"{folder.name}/{project}/{page}", folder / page
    for label in snapshot.labels:
        node = snapshot.layout.nodes / snapshot.slots[root_slot(label)]
        for page in ("index.json", "index.html"):
            yield f"{label}/{page}", node / page
    yield "index.html", snapshot.layout.nodes / snapshot.slots[FRONT] / "index.html"


def node_names(snapshot: Snapshot) -> list[str]:
    """The nodes that a state shows."""
    return sorted({*snapshot.slots.values(), *(node.name for _, node in snapshot.project_nodes())})


def links_of(snapshot: Snapshot) -> dict[str, str]:
    """The permanent links of a state."""
    from sm120_wheels.index.layout import permanent_links

    links: dict[str, str] = {}
    for project in snapshot.projects():
        links.update(permanent_links(project.project, project.labels))
    return links
