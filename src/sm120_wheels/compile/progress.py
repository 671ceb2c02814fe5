"""How a build's compiles are going: asked from the broker and shown, in place on a terminal, sparsely elsewhere.

It only looks: a build runs the same without it.
"""

from __future__ import annotations

import contextlib
import json
import socket as sockets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sm120_wheels import console
from sm120_wheels.compile.policy import PATIENCE_ALONE_S
from sm120_wheels.compile.profile import Profile
from sm120_wheels.compile.protocol import MESSAGE_MAX, connect, encode
from sm120_wheels.compile.sampling import largest_programs
from sm120_wheels.compile.simulate import simulate
from sm120_wheels.compile.summary import Records
from sm120_wheels.compile.task import Tail, Task
from sm120_wheels.files import human_bytes, human_seconds

_ASK_S = 1.0
_LINE_S = 30.0
_LINE_PART = 0.1
#: A wait for other programs' memory is said after so many seconds, and who holds the most.
_OTHERS_S = 5.0
_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class RunningUnit:
    source: str
    seconds: float
    expected_seconds: float
    used: int


@dataclass(frozen=True, kw_only=True)
class OtherPrograms:
    """Nothing compiles because other programs hold the memory: for how long (seconds), what the next file wants, what
    is free for it (bytes) and what sets that, and who holds the most (program, bytes)."""

    seconds: float
    source: str
    wanted: int
    free: int
    bound_by: str
    largest: tuple[tuple[str, int], ...]

    def line(self) -> str:
        named = ", ".join(f"{program} {human_bytes(held)}" for program, held in self.largest)
        return (
            f"waiting {human_seconds(self.seconds)} (at most {human_seconds(PATIENCE_ALONE_S)}) for other programs to "
            f"give memory back: {PurePosixPath(self.source).name} wants {human_bytes(self.wanted)}, "
            f"{human_bytes(self.free)} are free by {self.bound_by}; the largest programs are {named}"
        )


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One build's. Memory in bytes. ``total`` and ``seconds_left`` are None where no profile says them;
    ``one_at_a_time`` is how many files were compiled so because no broker could be started again."""

    done: int
    running: tuple[RunningUnit, ...]
    waiting: int
    total: int | None
    used: int
    held: int
    budget: int
    why_waiting: str
    killed: int
    seconds_left: float | None
    others: OtherPrograms | None = None
    one_at_a_time: int = 0
    failed: tuple[str, ...] = ()
    """Names of files that did not compile; they are not among ``done``."""
    there: int = 0
    """Files of the profile that needed no compile: compiled by an earlier try, or found by ccache. Not in ``total``."""
    stage: str = ""
    """What the build does while it compiles nothing, where it says so: ``packing flashinfer-python``."""

    def line(self) -> str:
        of = f" of {self.total}" if self.total is not None else ""
        if self.stage:
            return f"{self.stage}; {self.done}{of} compiled"
        there = f" ({self.there} there already)" if self.there else ""
        parts = [f"{self.done}{of} compiled{there}, {len(self.running)} running, {self.waiting} waiting"]
        if self.waiting and self.why_waiting and self.others is None:
            parts[0] += f" for {self.why_waiting}"
        parts.append(f"memory {human_bytes(self.used)} of {human_bytes(self.budget)}")
        if self.failed:
            parts.append(f"FAILED: {', '.join(self.failed[:_MOST_NAMED])}{' …' if self.failed[_MOST_NAMED:] else ''}")
        if self.killed:
            parts.append(f"{self.killed} killed and tried again")
        if self.seconds_left is not None:
            parts.append(f"about {human_seconds(self.seconds_left)} left")
        if self.one_at_a_time:
            parts.append("no compile broker can be started: compiling one file at a time")
        return ", ".join(parts) + (f"; {self.others.line()}" if self.others is not None else "")


def watch(
    *,
    socket: Path,
    session: str,
    records: Path,
    profile: Profile | None,
    ended: threading.Event,
    tell: Callable[[Progress], None],
    present: Callable[[], Collection[str]],
) -> None:
    """Tell the progress once a second until ``ended``. ``present``: sources that need no compile any more. While there
    is no broker to ask, only that is told, once files were compiled without one."""
    connection: sockets.socket | None = None
    written = Records(records)
    while not ended.wait(_ASK_S):
        try:
            connection = connection or connect(socket)
            connection.send(encode({"state": "status"}))
            status = json.loads(connection.recv(MESSAGE_MAX))
        except (OSError, ValueError):
            if connection is not None:
                connection.close()
            connection = None
            known = written.read()
            if any(record["kind"] == "turn" for record in known):
                tell(progress_without_broker(known, profile=profile))
            continue
        if isinstance(status, dict):
            largest = largest_programs(_MOST_NAMED) if status["others_for_s"] >= _OTHERS_S else []
            known = written.read()
            there = present() if profile is not None else ()
            tell(progress_of(status, known, session=session, profile=profile, largest=largest, present=there))
    if connection is not None:
        connection.close()


def progress_without_broker(records: list[dict[str, Any]], *, profile: Profile | None) -> Progress:
    """What the records alone say, while compiles take turns."""
    finals = _finals(records)
    done, failed = len(finals), _failed(finals)
    return Progress(
        done=done - len(failed),
        failed=failed,
        running=(),
        waiting=0,
        total=max(len(profile.units), done) if profile else None,
        used=0,
        held=0,
        budget=0,
        why_waiting="",
        killed=0,
        seconds_left=None,
        one_at_a_time=sum(record["kind"] == "turn" for record in records),
    )


def _finals(records: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {r["uid"]: r for r in records if r["kind"] in ("end", "turn") and not r.get("retry")}


def _failed(finals: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(PurePosixPath(r["source"]).name for r in finals.values() if r.get("exit"))


def progress_of(
    status: Mapping[str, Any],
    records: list[dict[str, Any]],
    *,
    session: str,
    profile: Profile | None,
    largest: Sequence[tuple[str, int]] = (),
    present: Collection[str] = (),
) -> Progress:
    """Join the broker's status with this session's records. ``largest``: the programs to name in a wait for others;
    ``present``: sources that need no compile any more."""
    finals = _finals(records)
    running = [c for c in status["running"] if c["session"] == session and c["uid"] not in finals]
    # the records were read after the broker was asked: what waited then may have ended since
    ended_since = sum(c["session"] == session and c["uid"] in finals for c in status["waiting"])
    waiting = [c for c in status["waiting"] if c["session"] == session and c["uid"] not in finals]
    waiting_count = status["waiting_in"].get(session, 0) - ended_since
    own = status["builds"].get(session, {"used": 0, "cores": status["cores"], "why_waiting": ""})
    failed = _failed(finals)
    here: set[str] = set()
    there: set[str] = set()
    if profile is not None:
        here = _units([s["source"] for s in [*finals.values(), *running, *waiting]], profile)
        there = _units(present, profile) - here
    return Progress(
        there=len(there),
        done=len(finals) - len(failed),
        failed=failed,
        running=tuple(
            RunningUnit(source=c["source"], seconds=c["for_s"], expected_seconds=c["expected_s"], used=c["used"])
            for c in sorted(running, key=lambda c: -c["for_s"])
        ),
        waiting=waiting_count,
        total=max(len(profile.units) - len(there), len(finals) + len(running) + waiting_count) if profile else None,
        used=own["used"],
        held=status["held"],
        budget=status["budget"],
        why_waiting=own["why_waiting"],
        killed=sum(1 for r in records if r.get("retry")),
        seconds_left=_seconds_left(status, own["cores"], finals, running, waiting, profile, here | there)
        if profile
        else None,
        others=OtherPrograms(
            seconds=status["others_for_s"],
            source=waiting[0]["source"],
            wanted=waiting[0]["needs"],
            free=status["budget"],
            bound_by=status["bound_by"],
            largest=tuple(largest),
        )
        if waiting and status["others_for_s"] >= _OTHERS_S
        else None,
    )


def _units(sources: Iterable[str], profile: Profile) -> set[str]:
    """Which units of the profile these sources are."""
    return {unit.source for source in sources if (unit := profile.find(source)) is not None}


def _seconds_left(
    status: Mapping[str, Any],
    cores: int,
    finals: Mapping[str, Mapping[str, Any]],
    running: list[dict[str, Any]],
    waiting: list[dict[str, Any]],
    profile: Profile,
    known: Collection[str],
) -> float:
    """What the policy would need for the rest: what runs, what waits, and what the profile has beside the ``known``
    units."""
    pace = _pace(finals.values())
    rest = [_rest_of(f"{i}", c, pace, gone=c["for_s"]) for i, c in enumerate(running)]
    rest += [_rest_of(f"w{i}", c, pace) for i, c in enumerate(waiting)]
    rest += [_paced(task, pace) for task in profile.tasks() if task.key not in known]
    return simulate(rest, cores=cores, budget=max(1, status["budget"])).makespan


def _rest_of(key: str, compile_: Mapping[str, Any], pace: float, *, gone: float = 0.0) -> Task:
    """What is left of a compile after ``gone`` seconds."""
    tail = Tail(**compile_["tail"]) if compile_.get("tail") else None
    task = _paced(Task(key=key, memory=compile_["needs"], seconds=compile_["expected_s"], tail=tail), pace)
    left = task.tail and replace(task.tail, after=max(0.0, task.tail.after - gone))
    return replace(task, memory=task.memory_after(gone), seconds=max(0.5, task.seconds - gone), tail=left)


def _paced(task: Task, pace: float) -> Task:
    tail = task.tail and replace(task.tail, after=pace * task.tail.after)
    return replace(task, seconds=pace * task.seconds, tail=tail)


def _pace(ended: Iterable[Mapping[str, Any]]) -> float:
    """How many times as long as predicted this build's compiles have taken: another machine, or a busy one."""
    pairs = [(r["wall_s"], r["expected_s"]) for r in ended if r.get("expected_s") and not r.get("exit")]
    expected = sum(e for _, e in pairs)
    return sum(w for w, _ in pairs) / expected if expected else 1.0


@contextlib.contextmanager
def display() -> Iterator[Callable[[Progress], None]]:
    """What to give a session as ``on_progress``: a live view on a terminal, else a line now and then."""
    if not console.is_terminal():
        yield SparseLines().tell
        return
    with Live(console=console.err, refresh_per_second=4, transient=True) as live:
        yield lambda progress: live.update(render(progress))


class SparseLines:
    """At most one line in 30 s, unless another tenth of the files is done, nothing goes on any more or another stage
    began."""

    def __init__(self, say: Callable[[str], None] = console.note, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._said = clock()
        self._part = 0
        self._held_up = False
        self._failed = 0
        self._stage = ""

    def tell(self, progress: Progress) -> None:
        part = int(progress.done / progress.total / _LINE_PART) if progress.total else 0
        held_up = progress.others is not None or bool(progress.one_at_a_time)
        news = part > self._part or (held_up and not self._held_up) or len(progress.failed) > self._failed
        news = news or bool(progress.stage and progress.stage != self._stage)
        self._held_up, self._failed, self._stage = held_up, len(progress.failed), progress.stage
        if self._clock() - self._said >= _LINE_S or news:
            self._said, self._part = self._clock(), part
            self._say(progress.line())


def render(progress: Progress) -> RenderableType:
    """The live view: a bar of files, a bar of memory, the compiles that run."""
    bars = Table.grid(padding=(0, 1))
    of = f"/{progress.total}" if progress.total is not None else ""
    bars.add_row(
        "files", ProgressBar(total=progress.total or 1, completed=progress.done, width=40), f"{progress.done}{of}"
    )
    bars.add_row(
        "memory",
        ProgressBar(total=max(1, progress.budget), completed=min(progress.used, progress.budget), width=40),
        f"{human_bytes(progress.used)} of {human_bytes(progress.budget)}",
    )
    units = Table.grid(padding=(0, 1))
    for unit in progress.running[:16]:
        late = "red" if unit.seconds > 1.5 * unit.expected_seconds else ""
        units.add_row(
            human_bytes(unit.used),
            Text(f"{human_seconds(unit.seconds)} of {human_seconds(unit.expected_seconds)}", style=late),
            Text(PurePosixPath(unit.source).name),
        )
    return Group(bars, units, Text(progress.line(), style=_style(progress)))


def _style(progress: Progress) -> str:
    if progress.failed:
        return "bold red"
    return "" if progress.others or progress.one_at_a_time else "dim"
