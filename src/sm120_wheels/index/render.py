"""Renders the simple indexes that pip and uv read: HTML and JSON, byte for byte the same for the same records.

Formats: the "Simple repository API" page of the Python packaging specifications (PEP 503, 592, 629, 658, 691, 700,
714, 740). Pages for people are made in ``page.py``.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any
from urllib.parse import quote

from packaging.version import Version

from sm120_wheels.index.model import ALL, Evidence, Project, Wheel
from sm120_wheels.index.names import cuda_of

#: The version of the specification that first has everything we write (PEP 740's provenance).
API_VERSION = "1.3"
_UP = "../../"


def url(path: str) -> str:
    """A path as a URL; ``+`` too is quoted, because object stores read it as a space."""
    return quote(path, safe="/")


def file_url(wheel: Wheel, evidence: Evidence | None = None, *, up: str = _UP) -> str:
    """The relative URL of a wheel, or of a piece of its evidence, from a page ``up`` from the root."""
    return up + url(f"{wheel.folder}/{evidence.filename}" if evidence else wheel.path)


def listed(project: Project, label: str) -> list[Wheel]:
    """The wheels of a project that an index lists."""
    return [w for w in project.wheels if label == ALL or label in w.indexes]


def project_json(project: Project, label: str, *, base_url: str = "") -> bytes:
    """The page of one project in one index, as JSON."""
    wheels = listed(project, label)
    return _json(
        {
            "meta": {"api-version": API_VERSION},
            "name": project.project,
            "versions": [str(v) for v in sorted({Version(w.version) for w in wheels})],
            "files": [_file(w, base_url) for w in wheels],
        }
    )


def project_html(project: Project, label: str, *, base_url: str = "") -> bytes:
    """The page of one project in one index, as HTML."""
    links = [f"<a {_attributes(w, base_url)}>{escape(w.filename)}</a><br>" for w in listed(project, label)]
    return _html(f"{project.project} ({_describe(label)})", links)


def root_json(label: str, names: list[str]) -> bytes:
    """The list of an index's projects, as JSON."""
    projects = [{"name": n} for n in sorted(names)]
    # The label is private, and there so that two indexes of the same projects are two different files.
    return _json({"meta": {"api-version": API_VERSION, "_index": label}, "projects": projects})


def root_html(label: str, names: list[str]) -> bytes:
    """The list of an index's projects, as HTML."""
    return _html(f"Projects ({_describe(label)})", [f'<a href="{n}/">{n}</a><br>' for n in map(escape, sorted(names))])


def _file(wheel: Wheel, base_url: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "filename": wheel.filename,
        "url": file_url(wheel),
        "hashes": {"sha256": wheel.sha256},
        "size": wheel.size,
        "upload-time": wheel.uploaded,
        "core-metadata": {"sha256": wheel.metadata_sha256},
        "yanked": False if wheel.yanked is None else wheel.yanked or True,
        # Keys with an underscore are the index's own (PEP 700).
        "_sm120": {
            "summary": wheel.summary,
            "cuda": wheel.cuda,
            "torch": wheel.torch,
            "archs": list(wheel.archs),
            "indexes": list(wheel.indexes),
            "identifier": wheel.identifier,
            "without": list(wheel.without),
            "exceptions": list(wheel.exceptions),
            "requires-dist": list(wheel.requires_dist),
            "evidence": [_evidence(wheel, e) for e in wheel.evidence],
        },
    }
    if wheel.requires_python:
        entry["requires-python"] = wheel.requires_python
    entry.update(_provenance(wheel, base_url, "provenance"))
    return entry


def _provenance(wheel: Wheel, base_url: str, key: str) -> dict[str, str]:
    """PEP 740 wants a full URL, and readers refuse a page with another: so there is a link only with a known base."""
    evidence = wheel.latest("provenance")
    return {key: file_url(wheel, evidence, up=base_url)} if evidence and base_url else {}


def _evidence(wheel: Wheel, evidence: Evidence) -> dict[str, Any]:
    told = evidence.model_dump(mode="json", exclude_defaults=True)
    return {**told, "url": file_url(wheel, evidence)}


def _attributes(wheel: Wheel, base_url: str) -> str:
    attributes = {"href": f"{file_url(wheel)}#sha256={wheel.sha256}"}
    if wheel.requires_python:
        attributes["data-requires-python"] = wheel.requires_python
    attributes["data-core-metadata"] = f"sha256={wheel.metadata_sha256}"
    if wheel.yanked is not None:
        attributes["data-yanked"] = wheel.yanked
    attributes.update(_provenance(wheel, base_url, "data-provenance"))
    return " ".join(f'{k}="{escape(v)}"' for k, v in attributes.items())


def _describe(label: str) -> str:
    return "all CUDA versions" if label == ALL else f"CUDA {cuda_of(label)}"


def _html(title: str, lines: list[str]) -> bytes:
    page = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{API_VERSION}">',
        f"<title>{escape(title)}</title>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
        *lines,
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(page).encode()


def _json(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n").encode()
