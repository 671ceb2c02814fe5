"""What a build's compiles took, made from the records: for people, for JSON and for the next stage's provenance.

Pure code over records; ``trace`` draws the same records.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sm120_wheels.compile.cache.stats import CacheReport
from sm120_wheels.compile.task import Task, lower_bound
from sm120_wheels.files import human_bytes, human_seconds

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class UnitSummary:
    """One translation unit. Seconds; bytes. ``retries``: how often its compiler was killed and tried again."""

    source: str
    seconds: float
    cpu_seconds: float
    peak_rss: int
    """Of the whole process tree: the larger of the sampled sum and the kernel's high-water mark of its largest
    process."""
    reserved: int
    waited_seconds: float
    retries: int
    exit_code: int
    basis: str
    mean_rss: int | None = None
    """Held on average, sampled; None where it was not."""
    tail: Mapping[str, Any] | None = None
    """What it held past its peak: ``memory`` in bytes, from ``after`` seconds of its time on."""


@dataclass(frozen=True, kw_only=True)
class LostTime:
    """Core-seconds without a compile: while a file waited (for memory), and while none did (start, tail, links)."""

    waiting: float = 0.0
    no_work: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CompileSummary:
    """``makespan``: from the first arrival to the last end, seconds. ``efficiency``: lower bound (with the times and
    the memory as they were, and the average budget) over makespan."""

    units: tuple[UnitSummary, ...]
    makespan: float
    lower_bound: float
    efficiency: float
    peak_used: int
    """The largest sampled sum over all compiles of this user, bytes."""
    budget: int
    """The average budget while compiling, bytes: other programs may have made it smaller for a time."""
    cores: int
    kills: int
    """Compilers that were killed (each try counts); those that were tried again with success included."""
    oom_kills: int
    """Rise of the kernel's own count of out-of-memory kills, anywhere on the host, while this build ran."""
    failed: tuple[str, ...]
    killed_for_good: tuple[str, ...]
    """Sources whose compiler was killed at the last try too."""
    without_broker: int
    """Compiles that took turns because no broker could be had."""
    lost: LostTime
    cache: CacheReport | None = None
    """What a compiler cache answered; its hits are not among the units."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"cache": self.cache.to_json() if self.cache else None}

    def largest(self, count: int = 5) -> list[UnitSummary]:
        return sorted(self.units, key=lambda u: (-u.peak_rss, u.source))[:count]

    def lines(self) -> list[str]:
        """For a person, a few lines."""
        cached = self.cache.lines() if self.cache else []
        if not self.units:
            return ["nothing was compiled", *cached]
        text = [
            f"{len(self.units)} files compiled in {human_seconds(self.makespan)}; no schedule could beat "
            f"{human_seconds(self.lower_bound)} on {self.cores} cores and {human_bytes(self.budget)} "
            f"(efficiency {self.efficiency:.0%})",
            f"memory: at most {human_bytes(self.peak_used)} in use; {self.kills} compilers killed, "
            f"{sum(u.retries for u in self.units)} tried again",
            f"cores idle: {human_seconds(self.lost.waiting)} with files waiting for memory, "
            f"{human_seconds(self.lost.no_work)} with none waiting (core-seconds)",
        ]
        text += cached
        if self.without_broker:
            text.append(f"{self.without_broker} files compiled one at a time: no broker could be started")
        text += [f"  {human_bytes(u.peak_rss):>9}  {human_seconds(u.seconds):>12}  {u.source}" for u in self.largest()]
        return text


class Records:
    """The records of a build as they are written. A line that is not whole yet, or never will be (a broker that died),
    is left out; so is one said twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._seen: set[tuple[str, int]] = set()
        self._records: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All of them up to now; reads what is new."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                new = stream.read()
        except FileNotFoundError:
            return self._records
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._take(line)
        return self._records

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            return
        if record["kind"] == "end":
            key = (record["uid"], record["attempt"])
            if key in self._seen:
                return
            self._seen.add(key)
        self._records.append(record)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a build that has ended."""
    return Records(path).read()


def summarise(
    records: Iterable[Record], *, cores: int, budget: int, cache: CacheReport | None = None
) -> CompileSummary:
    """``cores`` and ``budget`` (bytes) are used where no sample says better."""
    listed = list(records)
    samples = [r for r in listed if r["kind"] == "sample"]
    ends = [r for r in listed if r["kind"] == "end"]
    turns = [r for r in listed if r["kind"] == "turn"]
    units = [_unit(tries) for tries in _by_uid(ends).values()] + [_turn(r) for r in turns]
    busy = [s for s in samples if s["running"] or s["waiting"]]
    allowed = sum(s["budget"] for s in busy) // len(busy) if busy else budget
    seen_cores = max([s["cores"] for s in busy], default=cores)
    began = min([r["arrived"] for r in ends] + [r["ended"] - r["wall_s"] for r in turns], default=0.0)
    last = max([r["ended"] for r in ends + turns], default=0.0)
    # By what was held on average: a schedule could have let a file go up while another one goes down.
    tasks = [Task(key=u.source, memory=u.mean_rss or u.peak_rss, seconds=u.seconds) for u in units]
    bound = lower_bound(tasks, cores=seen_cores, budget=max(allowed, 1))
    finals = [tries[-1] for tries in _by_uid(ends).values()]
    counts = [s["oom_kills"] for s in samples]
    return CompileSummary(
        units=tuple(sorted(units, key=lambda u: (-u.seconds, u.source))),
        makespan=round(last - began, 3),
        lower_bound=round(bound, 3),
        efficiency=round(bound / (last - began), 4) if last > began else 1.0,
        peak_used=max([s["used"] for s in samples] + [u.peak_rss for u in units], default=0),
        budget=allowed,
        cores=seen_cores,
        kills=sum(1 for r in ends if r["killed"]),
        oom_kills=max(counts) - min(counts) if counts else 0,
        failed=tuple(r["source"] for r in [*finals, *turns] if r["exit"] != 0),
        killed_for_good=tuple(r["source"] for r in finals if r["exit"] != 0 and r["killed"]),
        without_broker=len(turns),
        lost=_lost(ends, cores=seen_cores),
        cache=cache,
    )


def _by_uid(ends: Sequence[Record]) -> dict[str, list[Record]]:
    grouped: dict[str, list[Record]] = {}
    for record in sorted(ends, key=lambda r: (r["ended"], r["attempt"])):
        grouped.setdefault(record["uid"], []).append(record)
    return grouped


def _unit(tries: Sequence[Record]) -> UnitSummary:
    last = tries[-1]
    return UnitSummary(
        source=last["source"],
        seconds=last["wall_s"],
        cpu_seconds=last["cpu_s"],
        peak_rss=max(r["peak"] for r in tries),
        reserved=last["reserved"],
        waited_seconds=last["waited_s"],
        retries=sum(1 for r in tries if r["retry"]),
        exit_code=last["exit"],
        basis=last["basis"],
        mean_rss=last.get("mean"),
        tail=last.get("tail"),
    )


def _turn(record: Record) -> UnitSummary:
    return UnitSummary(
        source=record["source"],
        seconds=record["wall_s"],
        cpu_seconds=record["cpu_s"],
        peak_rss=record["peak"],
        reserved=0,
        waited_seconds=record["waited_s"],
        retries=0,
        exit_code=record["exit"],
        basis="none",
    )


def _lost(ends: Sequence[Record], *, cores: int) -> LostTime:
    """Idle cores, interval by interval between arrivals, starts and ends."""
    moments = sorted({r[name] for r in ends for name in ("arrived", "started", "ended")})
    held_back = no_work = 0.0
    for begin, end in itertools.pairwise(moments):
        running = sum(r["cores"] for r in ends if r["started"] <= begin and r["ended"] >= end)
        waiting = sum(1 for r in ends if r["attempt"] == 0 and r["arrived"] <= begin and r["started"] >= end)
        idle = max(0, cores - running) * (end - begin)
        if waiting:
            held_back += idle
        else:
            no_work += idle
    return LostTime(waiting=round(held_back, 3), no_work=round(no_work, 3))
