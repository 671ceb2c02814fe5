"""Publishes a set of wheels: takes copies, asks the gates, and shows all of them in one switch or none.

A filename that was published once keeps its bytes for ever: the same bytes are accepted again (and bring new
evidence, or a further CUDA index), other bytes are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from sm120_wheels.errors import PublishRefusedError, WheelInvalidError
from sm120_wheels.files import sha256_file
from sm120_wheels.index import evidence as evidence_files
from sm120_wheels.index import gates
from sm120_wheels.index.auditing import live_audit
from sm120_wheels.index.change import change_to
from sm120_wheels.index.evidence import Document
from sm120_wheels.index.inspect import Inspected, inspect_wheel
from sm120_wheels.index.layout import Snapshot
from sm120_wheels.index.model import Evidence, Project, Wheel
from sm120_wheels.index.names import check_filename, cuda_of, label_of
from sm120_wheels.index.store import Transaction, remove, writing
from sm120_wheels.wheel.archive import parse_filename

_CHUNK = 4 << 20
Audit = Callable[[Path, str], bytes | None]
"""Audits the wheel at a path, whose sha256 is given; None where that is not possible."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a person asks of a publish."""

    cuda: tuple[str, ...] = ()
    """The indexes (``cu130``) for wheels whose version names no CUDA version."""
    allow: frozenset[str] = frozenset()
    """Gates that are overruled."""
    require_smoke: bool = False
    timeout_s: float = -1
    """How long to wait for another publisher; < 0: for ever."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """What became of one wheel."""

    wheel: Wheel
    action: Literal["published", "updated", "unchanged"]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Published:
    root: Path
    generation: int
    lines: tuple[Line, ...]


@dataclass(kw_only=True)
class _Candidate:
    path: Path
    sha256: str
    size: int
    inspected: Inspected
    documents: list[Document]
    known: Wheel | None
    staged: Path | None
    exceptions: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def publish(
    root: Path,
    wheels: Sequence[Path],
    *,
    options: Options | None = None,
    audit: Audit = live_audit,
    now: Callable[[], datetime] = utc_now,
) -> Published:
    """Publish wheels together. Raises :class:`PublishRefusedError`, :class:`WheelInvalidError`,
    :class:`NoSpaceError` or :class:`BusyError`; the index is then as it was.
    """
    options = options or Options()
    labels = tuple(label_of(c) for c in options.cuda)
    _check_names(wheels)
    with writing(root, timeout_s=options.timeout_s) as transaction:
        snapshot = transaction.snapshot
        candidates = [_take(transaction, snapshot, path, audit) for path in wheels]
        _ask_gates(candidates, options, labels)
        labels = _labels_of_set(candidates, labels)
        uploaded = now().astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        lines: list[Line] = []
        files: dict[str, Path] = {}
        changed: dict[str, dict[str, Wheel]] = {}
        for candidate in candidates:
            wheel = _record(candidate, labels, uploaded)
            if candidate.known is None:
                files[wheel.folder] = _finish_folder(transaction, candidate, wheel)
            else:
                files.update(_more_evidence(transaction, candidate, wheel))
            action: Literal["published", "updated", "unchanged"] = "published"
            if candidate.known is not None:
                action = "unchanged" if wheel == candidate.known else "updated"
            lines.append(Line(wheel=wheel, action=action, notes=tuple(candidate.notes)))
            if action != "unchanged":
                changed.setdefault(wheel.project, {})[wheel.filename] = wheel
        if not changed:
            return Published(root=root, generation=snapshot.number, lines=tuple(lines))
        projects = {name: _merged(snapshot.project(name), name, new) for name, new in changed.items()}
        settings = transaction.layout.read_settings()
        generation = transaction.commit(change_to(snapshot, projects, settings, files=files))
    return Published(root=root, generation=generation, lines=tuple(lines))


def _check_names(wheels: Sequence[Path]) -> None:
    seen: dict[str, Path] = {}
    for path in wheels:
        parse_filename(path)
        check_filename(path.name)
        if not path.is_file():
            raise WheelInvalidError(f"there is no wheel {path.name}", where=str(path), hint="give the path of a file")
        if path.name in seen:
            raise PublishRefusedError(
                f"{path.name} was given twice", where=f"{seen[path.name]} and {path}", hint="give each wheel once"
            )
        seen[path.name] = path


def _take(transaction: Transaction, snapshot: Snapshot, path: Path, audit: Audit) -> _Candidate:
    """Copy a wheel into the index's staging folder and read it there: what is checked is what is published."""
    project = snapshot.project(parse_filename(path).distribution)
    known = project.find(path.name) if project else None
    staged = None
    if known is None:
        staged = transaction.stage()
        sha256, size = _copy(path, staged / path.name)
        source = staged / path.name
        twin = next((w for w in project.wheels if w.sha256 == sha256), None) if project else None
        if twin:
            raise PublishRefusedError(
                f"{path.name} has the bytes of a wheel published under another name",
                where=str(path),
                why=f"{twin.filename} has the same sha256 {sha256}",
            )
    else:
        source = path
        sha256, size = sha256_file(path), path.stat().st_size
        if sha256 != known.sha256:
            raise PublishRefusedError(
                f"{path.name} was published before with other bytes",
                where=str(path),
                why=f"published: sha256 {known.sha256}\nthis file: sha256 {sha256}",
                hint="a published file never changes; build with another version or build tag, and yank the old one",
            )
    inspected = inspect_wheel(source, verify=known is None)
    documents = evidence_files.beside(path, sha256)
    documents += [evidence_files.document("sbom", sbom) for sbom in inspected.sboms]
    if inspected.build_json is not None:
        documents.append(evidence_files.document("build", inspected.build_json))
    had = {e.kind for e in known.evidence} if known else set()
    if "audit" not in had and all(d.evidence.kind != "audit" for d in documents):
        content = audit(source, sha256)
        if content is not None:
            documents.append(evidence_files.read("audit", content, sha256=sha256, where=path))
    return _Candidate(
        path=path,
        sha256=sha256,
        size=size,
        inspected=inspected,
        documents=documents,
        known=known,
        staged=staged,
    )


def _copy(source: Path, target: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            writer.write(chunk)
    return digest.hexdigest(), size


def _ask_gates(candidates: Sequence[_Candidate], options: Options, labels: tuple[str, ...]) -> None:
    objected: list[gates.Objection] = []
    for candidate in candidates:
        gates.check_label(candidate.path.name, candidate.inspected, labels)
        told = [*(candidate.known.evidence if candidate.known else ()), *(d.evidence for d in candidate.documents)]
        found = gates.objections(candidate.path.name, candidate.inspected, told, require_smoke=options.require_smoke)
        if candidate.known is not None and not options.require_smoke:
            # It is out already: bad news about it must reach the page, not be turned away at the door.
            accepted = set(candidate.known.exceptions) | options.allow
            candidate.notes += [
                f"{o.why} [{o.gate}]; consider `sm120 index yank`" for o in found if o.gate not in accepted
            ]
            continue
        candidate.exceptions = tuple(sorted({o.gate for o in found if o.gate in options.allow}))
        objected += [o for o in found if o.gate not in options.allow]
    if objected:
        raise gates.refusal(objected)


def _labels_of_set(candidates: Sequence[_Candidate], labels: tuple[str, ...]) -> tuple[str, ...]:
    """The indexes for the wheels of a set that name none themselves."""
    of_set = {c.inspected.label for c in candidates if c.inspected.label} | set(labels)
    for candidate in candidates:
        if candidate.inspected.label is None and not of_set and candidate.known is None:
            raise PublishRefusedError(
                f"{candidate.path.name} names no CUDA version, and nothing else says which index it belongs to",
                where=str(candidate.path),
                hint="publish it together with the wheels it belongs to, or say --cuda cu130 (may be repeated)",
            )
    return tuple(sorted(of_set))


def _record(candidate: _Candidate, labels: tuple[str, ...], uploaded: str) -> Wheel:
    inspected, known = candidate.inspected, candidate.known
    own = (inspected.label,) if inspected.label else labels
    evidence = list(known.evidence) if known else []
    have = {(e.kind, e.sha256) for e in evidence}
    evidence += [d.evidence for d in candidate.documents if (d.evidence.kind, d.evidence.sha256) not in have]
    return describe(
        candidate.path.name,
        inspected,
        sha256=candidate.sha256,
        size=candidate.size,
        uploaded=known.uploaded if known else uploaded,
        indexes=tuple(sorted({*(known.indexes if known else ()), *own})),
        exceptions=known.exceptions if known else candidate.exceptions,
        evidence=tuple(evidence),
        yanked=known.yanked if known else None,
    )


def describe(
    filename: str,
    inspected: Inspected,
    *,
    sha256: str,
    size: int,
    uploaded: str,
    indexes: tuple[str, ...],
    exceptions: tuple[str, ...],
    evidence: tuple[Evidence, ...],
    yanked: str | None,
) -> Wheel:
    """The record of a wheel: what it says about itself, and what the index knows about it."""
    build = inspected.build or {}
    return Wheel(
        filename=filename,
        sha256=sha256,
        size=size,
        uploaded=uploaded,
        project=inspected.project,
        version=inspected.version,
        summary=inspected.summary,
        requires_python=inspected.requires_python,
        requires_dist=inspected.requires_dist,
        metadata_sha256=hashlib.sha256(inspected.metadata).hexdigest(),
        indexes=indexes,
        cuda=cuda_of(inspected.label) if inspected.label else None,
        torch=inspected.torch,
        archs=inspected.archs,
        identifier=str(build.get("identifier") or ""),
        without=inspected.without,
        exceptions=exceptions,
        evidence=evidence,
        yanked=yanked,
    )


def _finish_folder(transaction: Transaction, candidate: _Candidate, wheel: Wheel) -> Path:
    """Put METADATA, the evidence and the record beside the staged copy."""
    folder = candidate.staged
    assert folder is not None
    (folder / f"{wheel.filename}.metadata").write_bytes(candidate.inspected.metadata)
    for document in candidate.documents:
        (folder / document.evidence.filename).write_bytes(document.content)
    (folder / "record.json").write_text(wheel.model_dump_json(indent=1) + "\n", encoding="utf-8")
    # No state shows this folder: what lies there was taken out of the index, or put there by hand.
    remove(transaction.layout.root / wheel.folder)
    return folder


def _more_evidence(transaction: Transaction, candidate: _Candidate, wheel: Wheel) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for document in candidate.documents:
        path = f"{wheel.folder}/{document.evidence.filename}"
        if not (transaction.layout.root / path).exists():
            staged = transaction.stage() / document.evidence.filename
            staged.write_bytes(document.content)
            files[path] = staged
    return files


def _merged(project: Project | None, name: str, new: dict[str, Wheel]) -> Project:
    kept = [w for w in project.wheels if w.filename not in new] if project else []
    return Project.of(name, [*kept, *new.values()])
