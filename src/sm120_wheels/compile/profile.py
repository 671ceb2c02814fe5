"""What translation units are known to take: profiles that ship with recipes, and the store of what was measured here.

A profile is a CSV file ``recipes/<recipe>/profiles/<version>-<arch>.csv`` with a line for each source. The store is one
JSON file for each package below the cache folder, written by the broker alone. Neither predicts anything.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

from sm120_wheels import paths
from sm120_wheels.compile.budget import MIB
from sm120_wheels.compile.task import Tail, Task
from sm120_wheels.errors import InsufficientMemoryError, SettingError
from sm120_wheels.files import human_bytes, write_json, write_text

_COLUMNS = (
    *("source", "peak_mib", "seconds", "cpu_seconds", "include_files", "include_kib", "cutlass_files"),
    *("tail_mib", "tail_after"),
)
#: How many trailing path components must agree for two paths to be the same source.
_LEAST_COMMON = 2
_KEPT_ERRORS = 200


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a source includes, all levels deep: files, bytes, and how many of the files are CUTLASS or CuTe."""

    files: int = 0
    size: int = 0
    cutlass_files: int = 0


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One measured translation unit. ``peak`` in bytes for the whole process tree, times in seconds."""

    source: str
    peak: int
    seconds: float
    cpu_seconds: float = 0.0
    footprint: Footprint | None = None
    tail: Tail | None = None
    """What it holds past its peak; None where that is not known, or hardly less."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Measured units by source path (relative to the source tree, POSIX)."""

    units: Mapping[str, Unit]

    def find(self, source: str) -> Unit | None:
        """The unit whose path shares the most trailing components (at least two) with ``source``; None if several
        do."""
        match = best_match(source, self._by_name.get(PurePosixPath(source).name, ()))
        return None if match is None else self.units[match]

    @functools.cached_property
    def _by_name(self) -> dict[str, list[str]]:
        index: dict[str, list[str]] = {}
        for known in self.units:
            index.setdefault(PurePosixPath(known).name, []).append(known)
        return index

    def tasks(self) -> list[Task]:
        """The units as tasks for the policy, without any margin."""
        return [Task(key=u.source, memory=u.peak, seconds=u.seconds, tail=u.tail) for u in self.units.values()]


def best_match(source: str, candidates: Iterable[str]) -> str | None:
    """Of paths that may be the same source in another folder, the one that agrees longest from the end."""
    wanted = PurePosixPath(source).parts[::-1]
    scored = sorted(((_common(wanted, PurePosixPath(c).parts[::-1]), c) for c in candidates), reverse=True)
    if not scored or scored[0][0] < min(_LEAST_COMMON, len(wanted)):
        return None
    if len(scored) > 1 and scored[1][0] == scored[0][0]:
        return None
    return scored[0][1]


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    count = 0
    for left, right in zip(a, b):  # noqa: B905 - the shorter one ends it
        if left != right:
            break
        count += 1
    return count


def read_profile(path: Path) -> Profile:
    """Read a profile. Raises :class:`SettingError` naming file and line for one that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise SettingError("the compile profile cannot be read", where=str(path), why=str(exc)) from exc
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    units: dict[str, Unit] = {}
    reader = csv.DictReader(lines)
    missing = [c for c in ("source", "peak_mib", "seconds") if c not in (reader.fieldnames or ())]
    if missing:
        raise SettingError(
            "the compile profile lacks columns", where=str(path), why=f"no {', '.join(missing)} in its first line"
        )
    for number, row in enumerate(reader, start=2):
        try:
            unit = Unit(
                source=row["source"],
                peak=round(float(row["peak_mib"]) * MIB),
                seconds=float(row["seconds"]),
                cpu_seconds=float(row.get("cpu_seconds") or 0),
                footprint=_row_footprint(row),
                tail=_row_tail(row),
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise SettingError(
                f"line {number} of the compile profile is not a measurement", where=str(path), why=str(exc)
            ) from exc
        units[unit.source] = unit
    return Profile(units=units)


def _row_footprint(row: Mapping[str, str]) -> Footprint | None:
    if not row.get("include_files"):
        return None
    return Footprint(
        files=int(row["include_files"]),
        size=int(row.get("include_kib") or 0) * 1024,
        cutlass_files=int(row.get("cutlass_files") or 0),
    )


def _row_tail(row: Mapping[str, str]) -> Tail | None:
    if not row.get("tail_mib"):
        return None
    return Tail(memory=round(float(row["tail_mib"]) * MIB), after=float(row["tail_after"]))


def write_profile(path: Path, units: Iterable[Unit], *, comment: str) -> None:
    """Write a profile, longest first. ``comment`` says how it was measured and becomes its first lines."""
    stream = io.StringIO()
    for line in comment.splitlines():
        stream.write(f"# {line}\n")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for unit in sorted(units, key=lambda u: (-u.seconds, u.source)):
        footprint, tail = unit.footprint, unit.tail
        writer.writerow(
            [unit.source, round(unit.peak / MIB), round(unit.seconds, 2), round(unit.cpu_seconds, 2)]
            + (
                ["", "", ""]
                if footprint is None
                else [footprint.files, footprint.size // 1024, footprint.cutlass_files]
            )
            + (
                ["", ""]
                if tail is None or not tail.saves(unit.peak)
                else [math.ceil(tail.memory / MIB), round(tail.after, 1)]
            )
        )
    write_text(path, stream.getvalue())


def shipped_profile(recipe: str, version: str, arch: str) -> Path | None:
    """The profile that comes with a recipe (``arch`` like ``sm120a``), or None."""
    path = paths.recipes_root() / recipe / "profiles" / f"{version}-{arch}.csv"
    return path if path.is_file() else None


def check_fits(profile: Profile, *, ceiling: int) -> None:
    """Refuse a build that can never be done here. ``ceiling`` is the memory for compiles (bytes) if nothing else ran.

    Raises :class:`InsufficientMemoryError` naming the largest unit, what it needs and what to do.
    """
    over = sorted((u for u in profile.units.values() if u.peak > ceiling), key=lambda u: -u.peak)
    if not over:
        return
    others = f" ({len(over) - 1} more files are too large as well)" if len(over) > 1 else ""
    raise InsufficientMemoryError(
        f"{over[0].source} needs {human_bytes(over[0].peak)} of memory to compile, and this machine can give "
        f"{human_bytes(ceiling)}",
        where=over[0].source,
        why=f"the need is measured; what can be given is the limit less the reserve{others}",
        hint="raise --memory or the memory limit of the container or VM, build on a larger machine, or leave out the "
        "component that this file belongs to",
    )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An entry of the store. ``count`` measurements; ``peak`` is their largest (bytes), ``seconds`` the last."""

    source: str
    targets: str
    compiler: str
    variant: str
    parallel: int
    peak: int
    seconds: float
    cpu_seconds: float
    count: int = 1
    footprint: Footprint | None = None
    tail: Tail | None = None


class Store:
    """What was measured on this machine for one package. Read once, kept in memory, written by :meth:`save`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Measured] = {}
        #: basis of a prediction → logarithms of measured over predicted, latest last
        self.errors: dict[str, list[float]] = {}
        self._changed = False
        self._read()

    def add(self, measured: Measured) -> None:
        key = store_key(measured)
        before = self.entries.get(key)
        if before is not None:
            measured = replace(
                measured,
                count=before.count + 1,
                peak=max(measured.peak, before.peak),
                footprint=measured.footprint or before.footprint,
                tail=_covering(measured.tail, before.tail),
            )
        self.entries[key] = measured
        self._changed = True

    def add_footprint(self, measured: Measured, footprint: Footprint | None) -> None:
        """What an entry's source includes, known later than its figures."""
        entry = self.entries.get(store_key(measured))
        if entry is not None and footprint is not None:
            self.entries[store_key(measured)] = replace(entry, footprint=footprint)
            self._changed = True

    def add_error(self, basis: str, error: float) -> None:
        kept = self.errors.setdefault(basis, [])
        kept.append(round(error, 4))
        del kept[:-_KEPT_ERRORS]
        self._changed = True

    def save(self) -> None:
        if not self._changed:
            return
        self._changed = False
        entries = [asdict(e) for _, e in sorted(self.entries.items())]
        write_json(self.path, {"format": 1, "entries": entries, "errors": self.errors})

    def _read(self) -> None:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            for entry in content["entries"]:
                footprint = entry.pop("footprint", None)
                tail = entry.pop("tail", None)
                measured = Measured(
                    **entry,
                    footprint=Footprint(**footprint) if footprint else None,
                    tail=Tail(**tail) if tail else None,
                )
                self.entries[store_key(measured)] = measured
            self.errors = {k: [float(x) for x in v] for k, v in content["errors"].items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # A cache: a file of another format or a damaged one is as good as none, and is written anew.
            self.entries, self.errors = {}, {}


def _covering(now: Tail | None, before: Tail | None) -> Tail | None:
    """The later measurement's moment, as of its time; the larger memory."""
    return replace(now, memory=max(now.memory, before.memory)) if now and before else now or before


def store_key(m: Measured) -> str:
    return "|".join((m.source, m.targets, str(m.parallel), m.variant, m.compiler))


def short_source(source: str) -> str:
    """The last three components of a path: what the store knows a source by, wherever the tree lies."""
    return "/".join(PurePosixPath(source).parts[-3:])


def store_path(package: str) -> Path:
    return paths.cache_root() / "profiles" / f"{package}.json"
