"""Chooses the one published wheel that fits a machine, or says for each wheel why it does not.

Choosing is a function of values; where they come from (an index on disk or on a server, ``machine.py``) is kept apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename
from packaging.version import Version
from pydantic import ValidationError

from sm120_wheels.arch import Arch
from sm120_wheels.errors import DownloadError, HostUnreachableError, SettingError, UnknownArchError, near_misses
from sm120_wheels.gpus import LEAST_DRIVER
from sm120_wheels.index.layout import present
from sm120_wheels.index.machine import Machine, version_of
from sm120_wheels.index.model import Evidence, Wheel
from sm120_wheels.index.names import project_of
from sm120_wheels.index.render import url as quoted

_TIMEOUT_S = 30


@dataclass(frozen=True, kw_only=True)
class Rejected:
    wheel: Wheel
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The wheel that fits, or none; and why each of the others was passed over."""

    wheel: Wheel | None
    notes: tuple[str, ...]
    rejected: tuple[Rejected, ...]


def choose(wheels: Sequence[Wheel], machine: Machine) -> Choice:
    """The best of the wheels that fit: not failed on a GPU, newest, whole, of torch's own CUDA, passed on a GPU."""
    fitting: list[Wheel] = []
    rejected: list[Rejected] = []
    for wheel in wheels:
        reasons = objections(wheel, machine)
        if reasons:
            rejected.append(Rejected(wheel=wheel, reasons=tuple(reasons)))
        else:
            fitting.append(wheel)
    # The closest misses first: whoever reads the list wants to know what single thing to change.
    rejected.sort(key=lambda r: (len(r.reasons), -_order(r.wheel.version), r.wheel.filename))
    if not fitting:
        return Choice(wheel=None, notes=(), rejected=tuple(rejected))
    best = max(fitting, key=lambda w: _rank(w, machine))
    return Choice(wheel=best, notes=tuple(notes(best, machine)), rejected=tuple(rejected))


def objections(wheel: Wheel, machine: Machine) -> list[str]:
    """Why a wheel does not fit; nothing where it does."""
    found = [
        f"yanked: {wheel.yanked or 'no reason given'}" if wheel.yanked is not None else "",
        _python_problem(wheel, machine),
        _gpu_problem(wheel, machine),
        _driver_problem(wheel, machine),
        *_torch_problems(wheel, machine),
    ]
    return [f for f in found if f]


def notes(wheel: Wheel, machine: Machine) -> list[str]:
    """What is worth knowing about a wheel that fits."""
    found = []
    if wheel.torch and machine.torch is None:
        found.append(f"torch is not installed there; this wheel was built against torch {wheel.torch}")
    smokes = wheel.smokes()
    if wheel.archs and not any(s.state == "passed" for s in smokes):
        found.append("no GPU smoke test of this wheel has passed so far")
    for smoke in smokes:
        if smoke.state == "failed":
            found.append(f"a GPU smoke test failed on {smoke.gpu or 'some GPU'}: {smoke.detail or 'no reason given'}")
    if wheel.without:
        found.append(f"built without {', '.join(wheel.without)}")
    if wheel.exceptions:
        found.append(f"published although these gates objected: {', '.join(wheel.exceptions)}")
    capabilities = {g.capability for g in machine.gpus}
    if len(capabilities) > 1:
        found.append(f"chosen for the first of this machine's GPUs ({machine.gpus[0].name})")
    return found


def _python_problem(wheel: Wheel, machine: Machine) -> str:
    if wheel.requires_python and not SpecifierSet(wheel.requires_python).contains(machine.python, prereleases=True):
        return f"needs Python {wheel.requires_python}; this is {machine.python}"
    if not parse_wheel_filename(wheel.filename)[3] & machine.tags:
        return f"is for {'-'.join(wheel.tags)}, which Python {machine.python} on this system does not install"
    return ""


def _gpu_problem(wheel: Wheel, machine: Machine) -> str:
    audit = wheel.latest("audit")
    verdicts = audit.verdicts if audit else {}
    no_code = bool(verdicts) and set(verdicts.values()) == {"no-cuda"}
    if not wheel.archs and (no_code or not verdicts):
        return ""
    capability = machine.capability
    if capability is None:
        return "no NVIDIA GPU was found (say which with --gpu 12.0)"
    text = f"{capability[0]}.{capability[1]}"
    if no_code:
        # Without code of its own it says by its label which GPUs the set it belongs to is for.
        verdicts = {}
    if verdicts.get(text) == "unread":
        return f"is not known to run on compute capability {text}: its audit could not look for traps"
    if text in verdicts and verdicts[text] != "runs":
        return f"has no complete code for compute capability {text} (audit: {verdicts[text]})"
    if text not in verdicts and not any(_runs(arch, capability) for arch in wheel.archs):
        return f"has code for {', '.join(wheel.archs) or 'no known target'}; this GPU is {text}"
    return ""


def _runs(arch: str, capability: tuple[int, int]) -> bool:
    try:
        return Arch.parse(arch).runs_on(capability)
    except UnknownArchError:
        return False


def _driver_problem(wheel: Wheel, machine: Machine) -> str:
    if not wheel.cuda or not machine.driver_cuda:
        return ""
    major = version_of(wheel.cuda)[0]
    if version_of(machine.driver_cuda)[0] >= major:
        return ""
    wanted = f", which is driver {LEAST_DRIVER[major]} or later" if major in LEAST_DRIVER else ""
    return f"needs a driver for CUDA {major}{wanted}; this one ({machine.driver}) reaches CUDA {machine.driver_cuda}"


def _torch_problems(wheel: Wheel, machine: Machine) -> list[str]:
    if machine.torch is None:
        return []
    found = []
    release = version_of(machine.torch)
    if wheel.torch and version_of(wheel.torch)[:2] != release[:2]:
        found.append(f"was built against torch {wheel.torch}; torch {machine.torch} is installed")
    else:
        for text in wheel.requires_dist:
            requirement = Requirement(text)
            if project_of(requirement.name) != "torch" or requirement.marker:
                continue
            if not requirement.specifier.contains(machine.torch, prereleases=True):
                found.append(f"needs {text}; torch {machine.torch} is installed")
    if wheel.cuda and machine.torch_cuda and version_of(wheel.cuda)[0] != version_of(machine.torch_cuda)[0]:
        found.append(f"is for CUDA {wheel.cuda}; the installed torch is for CUDA {machine.torch_cuda}")
    return found


def _rank(wheel: Wheel, machine: Machine) -> tuple[Any, ...]:
    smokes = {s.state for s in wheel.smokes()}
    same_cuda = bool(wheel.cuda and machine.torch_cuda and version_of(wheel.cuda) == version_of(machine.torch_cuda)[:2])
    return (
        "failed" not in smokes,
        Version(Version(wheel.version).public),
        not wheel.without,
        same_cuda,
        "passed" in smokes,
        version_of(wheel.cuda) if wheel.cuda else (),
        wheel.uploaded,
        wheel.filename,
    )


def _order(version: str) -> float:
    release = Version(version).release
    return float(sum(part / 1000**place for place, part in enumerate(release)))


# -- where the wheels come from


def offered(index: str, project: str) -> list[Wheel]:
    """The published wheels of a project: of an index in a folder, or at an address.

    Raises :class:`SettingError` with near misses for an unknown project.
    """
    name = project_of(project)
    if base := base_address(index):
        return _offered_by_server(base, name)
    snapshot = present(Path(index))
    found = snapshot.project(name)
    if found is None:
        raise _unknown(project, index, sorted(snapshot.front().packages))
    return list(found.wheels)


def catalogue(index: str) -> list[Wheel]:
    """Every published wheel of an index in a folder, or at an address."""
    if base := base_address(index):
        return [wheel for name in _listed_by_server(base) for wheel in _offered_by_server(base, name)]
    snapshot = present(Path(index))
    return [wheel for name in sorted(snapshot.front().packages) for wheel in offered(index, name)]


def address_of(wheel: Wheel, index: str) -> str:
    """Where a wheel's own file lies."""
    if base := base_address(index):
        return base + quoted(wheel.path)
    return str((Path(index) / wheel.path).resolve())


def base_address(index: str) -> str:
    """The address of an index, ending in a slash; empty for a folder."""
    return f"{index.rstrip('/')}/" if index.startswith(("http://", "https://")) else ""


def wheel_from_json(entry: dict[str, Any], project: str) -> Wheel:
    """A record from an entry of our own JSON pages. Raises ``KeyError`` or ``ValidationError`` for others."""
    own = entry["_sm120"]
    evidence = tuple(Evidence(**{k: v for k, v in e.items() if k != "url"}) for e in own["evidence"])
    yanked = entry.get("yanked", False)
    return Wheel(
        filename=entry["filename"],
        sha256=entry["hashes"]["sha256"],
        size=entry["size"],
        uploaded=entry["upload-time"],
        project=project,
        version=str(parse_wheel_filename(entry["filename"])[1]),
        summary=own["summary"],
        requires_python=entry.get("requires-python"),
        requires_dist=tuple(own["requires-dist"]),
        metadata_sha256=entry["core-metadata"]["sha256"],
        indexes=tuple(own["indexes"]),
        cuda=own["cuda"],
        torch=own["torch"],
        archs=tuple(own["archs"]),
        identifier=own["identifier"],
        without=tuple(own["without"]),
        exceptions=tuple(own["exceptions"]),
        evidence=evidence,
        yanked=None if yanked is False else "" if yanked is True else yanked,
    )


def _offered_by_server(base: str, project: str) -> list[Wheel]:
    page = _get(f"{base}simple/{quote(project)}/index.json")
    if page is None:
        raise _unknown(project, base, _listed_by_server(base))
    try:
        return [wheel_from_json(entry, project) for entry in page["files"]]
    except (KeyError, TypeError, ValueError, ValidationError) as exc:
        raise _foreign(base, exc) from exc


def _listed_by_server(base: str) -> list[str]:
    """The names of all projects of an index at an address."""
    listing = _get(f"{base}simple/index.json")
    if listing is None:
        raise DownloadError(
            "there is no index of this project's kind there",
            where=base,
            why="it has no simple/index.json",
            hint="give the address of the page that lists the packages, without cu130/",
        )
    try:
        return [str(p["name"]) for p in listing["projects"]]
    except (KeyError, TypeError) as exc:
        raise _foreign(base, exc) from exc


def _foreign(base: str, cause: Exception) -> DownloadError:
    return DownloadError(
        "the index was not made by this program",
        where=base,
        why=f"its pages do not tell CUDA, torch and GPU targets ({cause!r})"[:300],
        hint="use pip or uv with it",
    )


def _get(address: str) -> dict[str, Any] | None:
    try:
        response = requests.get(address, timeout=_TIMEOUT_S)
    except requests.RequestException as exc:
        raise HostUnreachableError("the index cannot be reached", where=address, why=str(exc)) from exc
    if response.status_code in (403, 404):  # object stores say 403 for what is not there
        return None
    if not response.ok:
        raise DownloadError("the index did not answer with a page", where=address, why=f"HTTP {response.status_code}")
    try:
        return dict(json.loads(response.content))
    except (TypeError, ValueError) as exc:
        raise DownloadError("the index's page is no JSON object", where=address, why=str(exc)) from exc


def _unknown(project: str, index: str, known: Sequence[str]) -> SettingError:
    return SettingError(f"no package is called {project!r} here", where=index, hint=near_misses(project, known))
