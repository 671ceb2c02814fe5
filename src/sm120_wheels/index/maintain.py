"""Changes to an index that exists: yank, unyank, prune, rebuild. Each is one switch, as a publish is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version
from pydantic import ValidationError

from sm120_wheels.errors import SettingError, near_misses
from sm120_wheels.files import sha256_file, write_text
from sm120_wheels.index.change import change_to
from sm120_wheels.index.inspect import inspect_wheel
from sm120_wheels.index.layout import Layout, Snapshot, damaged
from sm120_wheels.index.model import Project, Settings, Wheel
from sm120_wheels.index.names import project_of
from sm120_wheels.index.publish import describe
from sm120_wheels.index.store import Transaction, remove, writing


@dataclass(frozen=True, kw_only=True)
class Pruned:
    wheels: tuple[Wheel, ...]
    freed: int
    """Bytes of files that were removed, or would be."""
    swept: int
    """Generated folders that nothing shows any more."""


def select(snapshot: Snapshot, what: str) -> list[Wheel]:
    """The published wheels that a filename, a project or a requirement names.

    Raises :class:`SettingError` with near misses where there are none.
    """
    if what.endswith(".whl"):
        project = snapshot.project(project_of(what.split("-")[0]))
        wheels = [w for w in (project.wheels if project else ()) if w.filename == what]
        known = [w.filename for w in project.wheels] if project else sorted(snapshot.front().packages)
    else:
        try:
            requirement = Requirement(what)
        except InvalidRequirement as exc:
            raise SettingError(
                f"{what!r} names no wheel", why=str(exc), hint="give a filename, or a requirement as name==version"
            ) from exc
        project = snapshot.project(project_of(requirement.name))
        wheels = [
            w
            for w in (project.wheels if project else ())
            if requirement.specifier.contains(w.version, prereleases=True)
        ]
        known = sorted({w.version for w in project.wheels}) if project else sorted(snapshot.front().packages)
    if not wheels:
        raise SettingError(f"no published wheel is {what!r}", hint=near_misses(what, known))
    return wheels


def yank(root: Path, what: str, *, reason: str | None) -> list[Wheel]:
    """Yank wheels, or with ``reason`` None take it back. Returns the wheels that changed."""
    with writing(root) as transaction:
        snapshot = transaction.snapshot
        wheels = [w for w in select(snapshot, what) if w.yanked != reason]
        if not wheels:
            return []
        new = {w.filename: w.model_copy(update={"yanked": reason}) for w in wheels}
        project = snapshot.project(wheels[0].project)
        assert project is not None
        changed = Project.of(project.project, [new.get(w.filename, w) for w in project.wheels])
        settings = transaction.layout.read_settings()
        transaction.commit(change_to(snapshot, {changed.project: changed}, settings))
        return list(new.values())


def prune(root: Path, *, keep: int, only: str | None = None, dry_run: bool = False) -> Pruned:
    """Keep the newest ``keep`` versions of each project (local versions of one release count once).

    The pages change first; then the files go, with all that no page shows.
    """
    if keep < 1:
        raise SettingError(f"--keep {keep} would leave nothing", hint="keep at least 1")
    with writing(root) as transaction:
        snapshot = transaction.snapshot
        projects: dict[str, Project] = {}
        gone: list[Wheel] = []
        for project in snapshot.projects():
            if only is not None and project.project != project_of(only):
                continue
            dropped = _beyond(project, keep)
            if dropped:
                gone += dropped
                projects[project.project] = Project.of(project.project, [w for w in project.wheels if w not in dropped])
        if only is not None and snapshot.project(project_of(only)) is None:
            raise SettingError(f"no project is called {only!r}", hint=near_misses(only, snapshot.front().packages))
        if dry_run:
            return Pruned(wheels=tuple(gone), freed=sum(_size(root / w.folder) for w in gone), swept=0)
        if projects:
            settings = transaction.layout.read_settings()
            transaction.commit(change_to(snapshot, projects, settings, anew=True))
        swept = transaction.sweep()
        freed = 0
        for folder in stray_folders(transaction.layout, transaction.snapshot):
            freed += _size(folder)
            remove(folder)
        return Pruned(wheels=tuple(gone), freed=freed, swept=len(swept))


def rebuild(root: Path, *, adopt: bool = False) -> int:
    """Make all pages anew from the wheels on disk; returns the number of wheels.

    What no wheel tells (when it was published, whether it was yanked, which evidence belongs to it) comes from the
    present state or, with ``adopt``, from the record beside each wheel, which knows nothing of later yanks and
    evidence. Raises :class:`IndexDamagedError` where a wheel's bytes are not those that were published.
    """
    with writing(root, trust=not adopt) as transaction:
        return _remake(transaction, transaction.layout.read_settings(), adopt=adopt)


def settings_with(settings: Settings, *, title: str | None, base_url: str | None) -> Settings:
    """Settings with these values. Raises :class:`SettingError` for an address that is none."""
    changed: dict[str, str] = {}
    if title is not None:
        changed["title"] = " ".join(title.split())
    if base_url is not None:
        parts = urlsplit(base_url)
        plain = not any(c.isspace() or c in "\"'<>\\`$" for c in base_url)
        if base_url and not (parts.scheme in ("http", "https") and parts.netloc and plain and not parts.query):
            raise SettingError(f"--base-url {base_url!r} is not an address", hint="write it as https://host/whl/")
        changed["base_url"] = base_url if base_url.endswith("/") or not base_url else f"{base_url}/"
    return settings.model_copy(update=changed)


def configure(root: Path, settings: Settings) -> None:
    """Set title and address of an index; pages that exist are made anew."""
    with writing(root) as transaction:
        write_text(transaction.layout.settings, settings.model_dump_json(indent=1) + "\n")
        if transaction.snapshot.number:
            _remake(transaction, settings)


def _remake(transaction: Transaction, settings: Settings, *, adopt: bool = False) -> int:
    layout = transaction.layout
    found: dict[str, list[Wheel]] = {}
    for wheel in adopted(layout) if adopt else (w for p in transaction.snapshot.projects() for w in p.wheels):
        found.setdefault(wheel.project, []).append(_read_again(layout.root, wheel))
    projects = {name: Project.of(name, wheels) for name, wheels in sorted(found.items())}
    transaction.commit(change_to(Snapshot(layout, 0), projects, settings, anew=True), anew=True)
    return sum(len(p.wheels) for p in projects.values())


def adopted(layout: Layout) -> Iterator[Wheel]:
    """The records that lie beside the wheels, as they were when these were published."""
    for path in sorted(layout.files.glob("*/*/record.json")):
        try:
            yield Wheel.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as exc:
            raise damaged(path, str(exc), hint="move that folder away, or publish its wheel again") from exc


def _read_again(root: Path, wheel: Wheel) -> Wheel:
    path = root / wheel.path
    if not path.is_file():
        raise damaged(path, "the file is gone", hint="bring it back from a copy, or publish the wheel again")
    if (found := sha256_file(path)) != wheel.sha256:
        raise damaged(
            path, f"published as sha256 {wheel.sha256}\nnow it is {found}", hint="bring the file back from a copy"
        )
    inspected = inspect_wheel(path, verify=False)
    return describe(
        wheel.filename,
        inspected,
        sha256=wheel.sha256,
        size=path.stat().st_size,
        uploaded=wheel.uploaded,
        indexes=wheel.indexes,
        exceptions=wheel.exceptions,
        evidence=wheel.evidence,
        yanked=wheel.yanked,
    )


def _beyond(project: Project, keep: int) -> list[Wheel]:
    releases = sorted({Version(w.version).public for w in project.wheels}, key=Version, reverse=True)
    kept = set(releases[:keep])
    return [w for w in project.wheels if Version(w.version).public not in kept]


def stray_folders(layout: Layout, snapshot: Snapshot) -> list[Path]:
    """Folders of files that a state does not show."""
    shown = {w.folder for p in snapshot.projects() for w in p.wheels}
    return [f for f in sorted(layout.files.glob("*/*")) if str(f.relative_to(layout.root)) not in shown]


def _size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
