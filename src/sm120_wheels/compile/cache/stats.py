"""What a compiler cache answered in one build: for people, for JSON and for the build's record.

Pure code, and the reader of ccache's statistics log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sm120_wheels.files import human_bytes

#: Lines of ccache's statistics log that say where something was stored or looked up, not what came of the call.
_DETAILS = ("local_storage_", "remote_storage_", "primary_storage_", "secondary_storage_")
_HITS = frozenset({"direct_cache_hit", "preprocessed_cache_hit"})
_LOOKUPS = frozenset({"direct_cache_miss", "preprocessed_cache_miss"})


@dataclass(frozen=True, kw_only=True)
class SharedReport:
    """What the shared store did. ``where`` never holds a user name, a password or a token."""

    where: str
    state: str
    """``used``, ``unreachable`` (at the start) or ``lost`` (while building)."""
    why: str = ""
    hits: int = 0
    """Entries found; a compile that hits has two, a list of what it read and the object."""
    misses: int = 0
    stored: int = 0
    dropped: int = 0
    """Entries that could not be stored: the store was lost, or too slow for what was made."""
    damaged: int = 0
    """Entries that did not have the digest they were stored with; each counts as a miss too."""
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(frozen=True, kw_only=True)
class CacheReport:
    """Compiles of one build, as the cache's tool counted them."""

    tool: str
    """``ccache 4.7.5``, ``sccache 0.16.0``, or ``none``."""
    why: str = ""
    """Why there is none, where there is none."""
    hits: int = 0
    remote_hits: int = 0
    """Those of ``hits`` whose object came from the shared store."""
    misses: int = 0
    other: dict[str, int] = field(default_factory=dict)
    """Calls that were no lookup, by the tool's own word for them (a link, a failed compile)."""
    shared: SharedReport | None = None

    @property
    def cacheable(self) -> int:
        return self.hits + self.misses

    @property
    def hit_rate(self) -> float | None:
        """Part of the cacheable compiles; None where there were none."""
        return self.hits / self.cacheable if self.cacheable else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"hit_rate": None if self.hit_rate is None else round(self.hit_rate, 4)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CacheReport:
        known = {name: field for name, field in value.items() if name != "hit_rate"}
        return cls(**known | {"shared": SharedReport(**known["shared"]) if known["shared"] else None})

    def lines(self) -> list[str]:
        """For a person."""
        if self.tool == "none":
            return [f"compiler cache: none ({self.why})"]
        text = f"compiler cache: {self.tool}, {self.hits} of {self.cacheable} compiles were there already"
        if self.remote_hits:
            text += f", {self.remote_hits} of them in the shared cache"
        if self.other:
            text += "; " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(self.other.items()))
        return [text, *([_shared_line(self.shared)] if self.shared else [])]


def _shared_line(shared: SharedReport) -> str:
    if shared.state == "unreachable":
        return f"shared cache {shared.where}: not used ({shared.why})"
    if shared.bytes_read or shared.bytes_written or not (shared.hits or shared.stored):
        moved = f"{human_bytes(shared.bytes_read)} read, {human_bytes(shared.bytes_written)} written"
    else:  # sccache counts entries only
        moved = f"{shared.hits} entries read, {shared.stored} written"
    text = f"shared cache {shared.where}: {moved}"
    if shared.damaged:
        text += f", {shared.damaged} damaged entries left aside"
    if shared.dropped:
        text += f", {shared.dropped} entries not stored"
    return text + (f"; lost while building ({shared.why})" if shared.state == "lost" else "")


def read_statistics_log(path: Path) -> list[list[str]]:
    """The counters of each call of ccache (its ``stats_log``). A file that is not there holds none."""
    return [counters for _, counters in _calls(path)]


def found_by_ccache(path: Path) -> set[str]:
    """The sources that a statistics log says were in the cache, as ccache was given them."""
    return {source for source, counters in _calls(path) if _HITS.intersection(counters)}


def _calls(path: Path) -> list[tuple[str, list[str]]]:
    """Source and counters of each call. A file that is not there holds none."""
    calls: list[tuple[str, list[str]]] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return calls
    for line in lines:
        if line.startswith("# "):
            calls.append((line[2:].strip(), []))
        elif line.strip():
            if not calls:
                calls.append(("", []))
            calls[-1][1].append(line.strip())
    return calls


def count(calls: Iterable[list[str]], *, tool: str, shared: SharedReport | None = None) -> CacheReport:
    hits = remote = misses = 0
    other: Counter[str] = Counter()
    for call in calls:
        if _HITS.intersection(call):
            hits += 1
            remote += any(name in call for name in ("remote_storage_hit", "secondary_storage_hit"))
        elif "cache_miss" in call:
            misses += 1
        else:
            other.update(name for name in call if name not in _LOOKUPS and not name.startswith(_DETAILS))
    return CacheReport(tool=tool, hits=hits, remote_hits=remote, misses=misses, other=dict(other), shared=shared)
