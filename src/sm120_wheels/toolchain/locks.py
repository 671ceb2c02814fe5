"""Hash-locked requirement files (recipes/locks/*.txt): reading them, and choosing the lines that one machine needs.

Nothing is installed here; :mod:`sm120_wheels.toolchain.uv` does that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sm120_wheels.errors import RecipeInvalidError, near_misses
from sm120_wheels.paths import recipes_root

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)")


@dataclass(frozen=True, kw_only=True)
class LockEntry:
    """One pinned distribution of a lock with the sha256 of every file that the index has of it."""

    requirement: Requirement
    sha256: tuple[str, ...]

    @property
    def name(self) -> str:
        """The canonical name: lower case, dashes."""
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        return next(iter(self.requirement.specifier)).version

    def applies_to(self, environment: Mapping[str, str]) -> bool:
        """Whether the entry's marker (if any) holds in an environment of PEP 508 marker variables."""
        marker = self.requirement.marker
        return marker is None or marker.evaluate(dict(environment))

    def line(self) -> str:
        """The entry in requirements.txt form, without its marker (it was evaluated when the entry was chosen)."""
        hashes = " ".join(f"--hash=sha256:{digest}" for digest in self.sha256)
        return f"{self.name}=={self.version} {hashes}"


@dataclass(frozen=True, kw_only=True)
class LockRequest:
    """A lock file, or only some distributions of it.

    With ``only``, just these names are installed, without what they depend on: enough to compile against torch's
    headers and libraries, not to import it.
    """

    path: Path
    only: tuple[str, ...] = ()


def lock_path(name: str) -> Path:
    """The lock called ``name`` in recipes/locks, e.g. ``torch-2.11.0``."""
    return recipes_root() / "locks" / f"{name}.txt"


def known_locks() -> list[str]:
    """Names of all locks in recipes/locks, sorted."""
    return sorted(path.stem for path in (recipes_root() / "locks").glob("*.txt"))


def read_lock(path: Path) -> tuple[LockEntry, ...]:
    """Read a lock file. Raises :class:`RecipeInvalidError` where a line is not ``name==version`` with a sha256."""
    if not path.is_file():
        raise RecipeInvalidError(
            f"no lock file {path.name}", where=str(path), hint=near_misses(path.stem, known_locks())
        )
    logical = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return tuple(_entry(line, path) for line in logical if line.strip() and not line.lstrip().startswith("#"))


def _entry(line: str, path: Path) -> LockEntry:
    text, _, rest = line.partition(" --hash=")
    digests = tuple(_HASH.findall("--hash=" + rest))
    try:
        requirement = Requirement(text.strip())
    except InvalidRequirement as exc:
        raise RecipeInvalidError(
            "a lock line is not a requirement", where=str(path), why=f"{text.strip()}: {exc}", hint=_REGENERATE
        ) from exc
    pins = list(requirement.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or not digests:
        raise RecipeInvalidError(
            f"{requirement.name} is not pinned by version and sha256",
            where=str(path),
            why=f"the line is: {text.strip()}",
            hint=_REGENERATE,
        )
    return LockEntry(requirement=requirement, sha256=digests)


_REGENERATE = "run `sm120 lock` to write the lock again from the .in file beside it"


def choose(requests: Sequence[LockRequest], *, python_version: str) -> tuple[LockEntry, ...]:
    """The entries that this machine needs for CPython ``python_version`` (full, e.g. ``3.12.1``), sorted by name.

    Where two locks pin the same name, the earlier request's pin counts (torch's own setuptools before the build
    tools'). Raises :class:`RecipeInvalidError` for an ``only`` name that its lock does not hold.
    """
    environment = marker_environment(python_version)
    chosen: dict[str, LockEntry] = {}
    for request in requests:
        entries = read_lock(request.path)
        wanted = _wanted(request, entries)
        for entry in entries:
            if entry.name in wanted and entry.applies_to(environment):
                chosen.setdefault(entry.name, entry)
    return tuple(chosen[name] for name in sorted(chosen))


def _wanted(request: LockRequest, entries: Iterable[LockEntry]) -> frozenset[str]:
    names = frozenset(entry.name for entry in entries)
    if not request.only:
        return names
    wanted = frozenset(canonicalize_name(name) for name in request.only)
    for name in sorted(wanted - names):
        raise RecipeInvalidError(
            f"the lock {request.path.stem} holds no {name}",
            where=str(request.path),
            hint=near_misses(name, sorted(names)),
        )
    return wanted


def marker_environment(python_version: str) -> dict[str, str]:
    """PEP 508 marker variables of CPython ``python_version`` on this machine."""
    environment = {key: str(value) for key, value in default_environment().items()}
    environment.update(
        implementation_name="cpython",
        implementation_version=python_version,
        platform_python_implementation="CPython",
        python_full_version=python_version,
        python_version=".".join(python_version.split(".")[:2]),
        extra="",
    )
    return environment
