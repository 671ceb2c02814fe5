"""Starts workers, tells them cases, and takes them away when they die or pass a deadline: the watchdog.

A team is one worker, or one for each GPU of a multi-GPU case. It is its own process group (and session), killed whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sm120_wheels.gpus import usage
from sm120_wheels.process import describe_status
from sm120_wheels.prove.smoke.launches import Launched, launches
from sm120_wheels.prove.smoke.packages import PAYLOAD
from sm120_wheels.prove.smoke.stacks import stacks_of

_WORKER = PAYLOAD / "sm120_smoke" / "worker.py"
_LEADER = PAYLOAD / "sm120_smoke" / "leader.py"
#: What the other ranks get to end by themselves when one has failed.
_GRACE_S = 3.0
_REAP_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How workers are started: the same for all of a run."""

    python: Path
    backend: str
    environment: Mapping[str, str]
    packages: Sequence[Mapping[str, Any]]
    """What is imported: ``imports``, ``parts``, ``namespaces``, ``root``."""
    overlays: Sequence[Path]
    scratch: Path
    prefix: Sequence[str] = ()
    """Put before the interpreter: takes the network away."""
    wrapper: Sequence[str] = ()
    """Put right before the interpreter: compute-sanitizer. ``{worker}`` stands for the number of the worker."""
    launches: bool = False
    """Note every launch, to repeat a hang."""
    start_deadline: float = 300.0
    """Seconds until a worker must have imported everything."""


@dataclass(kw_only=True)
class Answer:
    """What one rank said about a case, or what became of it."""

    end: Mapping[str, Any] | None = None
    """Its ``end`` event."""
    stage: str = ""
    step: str = ""
    died: str = ""
    """How it ended before it answered; empty where it did not."""


@dataclass(kw_only=True)
class Outcome:
    """What a team made of a case."""

    answers: list[Answer]
    late: bool = False
    """The deadline passed; :attr:`stacks` says where it stood."""
    stacks: str = ""
    gpu: str = ""
    """What nvidia-smi said before the kill."""
    output: str = ""
    seconds: float = 0.0


@dataclass(kw_only=True)
class _Rank:
    commands: int
    events: int
    buffer: bytes = b""
    hello: dict[str, Any] = field(default_factory=dict)
    ended: bool = False


class Team:
    """One or several workers, alive from construction to :meth:`stop`."""

    def __init__(
        self, setup: Setup, *, ranks: int = 1, number: int = 0, extra: Mapping[str, str] | None = None
    ) -> None:
        self._setup = setup
        self._log = setup.scratch / f"worker-{number}.log"
        self._session = setup.scratch / f"session-{number}"
        self._session.mkdir(parents=True, exist_ok=True)
        self._ranks: list[_Rank] = []
        self._process = self._start(ranks, number, {**setup.environment, **(extra or {})})
        self._selector = selectors.DefaultSelector()
        for rank in self._ranks:
            os.set_blocking(rank.events, False)
            self._selector.register(rank.events, selectors.EVENT_READ, rank)
        try:
            self.hello = self._greet()
        except BaseException:
            self.stop()
            raise

    def _start(self, ranks: int, worker: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        configurations, theirs = [], []
        for number in range(ranks):
            read_commands, commands = os.pipe()
            events, write_events = os.pipe()
            theirs += [read_commands, write_events]
            self._ranks.append(_Rank(commands=commands, events=events))
            configurations.append(
                self._configuration(read_commands, write_events, number if ranks > 1 else None, ranks)
            )
        wrapper = [word.replace("{worker}", str(worker)) for word in self._setup.wrapper]
        python = [*wrapper, str(self._setup.python)]
        if ranks == 1:
            argv = [*python, "-I", "-B", str(_WORKER), json.dumps(configurations[0])]
        else:
            together = {"python": str(self._setup.python), "worker": str(_WORKER), "ranks": configurations}
            argv = [*python, "-I", "-B", str(_LEADER), json.dumps(together)]
        with self._log.open("ab") as log:
            try:
                return subprocess.Popen(
                    [*self._setup.prefix, *argv],
                    env=environment,
                    cwd=self._setup.scratch,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=theirs,
                    start_new_session=True,
                )
            finally:
                for fd in theirs:
                    os.close(fd)

    def _configuration(self, commands: int, events: int, rank: int | None, world: int) -> dict[str, Any]:
        return {
            "commands": commands,
            "events": events,
            "payload": str(PAYLOAD),
            "overlays": [str(path) for path in self._setup.overlays],
            "backend": self._setup.backend,
            "launches": str(self._launches(rank or 0)) if self._setup.launches else "",
            "packages": [dict(package) for package in self._setup.packages],
            "device": 0,
            "rank": rank,
            "world": world,
            "folder": str(self._session),
        }

    def _launches(self, rank: int) -> Path:
        return self._session / f"launches-{rank}"

    def launched(self) -> list[tuple[str, list[Launched]]]:
        """For each rank why its launches are not known, and the last of them, oldest first."""
        found = [launches(self._launches(number)) for number in range(len(self._ranks))]
        return [(str(r.hello.get("launches", "")), each) for r, each in zip(self._ranks, found, strict=True)]

    @property
    def problem(self) -> str:
        """Why nothing can be launched by this team; empty where it can."""
        return next((str(rank.hello["problem"]) for rank in self._ranks if rank.hello["problem"]), "")

    def _greet(self) -> dict[str, Any]:
        answers = self._wait(self._setup.start_deadline, until="hello")
        for number, (rank, answer) in enumerate(zip(self._ranks, answers.answers, strict=True)):
            if not rank.hello:
                why = f"the worker {answer.died}" if answer.died else "the worker was not ready in time"
                tail = " ".join(answers.output.split())[-600:]
                rank.hello = {"problem": f"{why} while it imported the packages: {tail or answers.stacks}"}
            rank.hello.setdefault("rank", number)
        if self.problem:
            self.stop()
        return self._ranks[0].hello

    def run(self, command: Mapping[str, Any], deadline: float) -> Outcome:
        """Run one case. After a late or broken outcome the team is of no more use (see :attr:`usable`)."""
        began, at = time.monotonic(), self._log.stat().st_size
        for rank in self._ranks:
            rank.ended = False
            with contextlib.suppress(BrokenPipeError):  # it died since: the event pipe tells
                os.write(rank.commands, (json.dumps(dict(command)) + "\n").encode())
        outcome = self._wait(deadline, until="end", log_from=at)
        outcome.seconds = time.monotonic() - began
        outcome.output = self._tail(at)
        return outcome

    @property
    def usable(self) -> bool:
        """Whether it takes another case."""
        return self._process.poll() is None and not any(rank.ended for rank in self._ranks)

    def _wait(self, deadline: float, *, until: str, log_from: int = 0) -> Outcome:
        answers = [Answer() for _ in self._ranks]
        waiting = {id(rank): (rank, answer) for rank, answer in zip(self._ranks, answers, strict=True)}
        limit = time.monotonic() + deadline
        shortened = False
        while waiting:
            remaining = limit - time.monotonic()
            if remaining <= 0:
                return self._late(answers, [rank for rank, _ in waiting.values()], shortened, log_from)
            for key, _ in self._selector.select(remaining):
                rank = key.data
                answer = answers[self._ranks.index(rank)]
                for event in self._read(rank):
                    if event["event"] == "at":
                        answer.stage, answer.step = event["stage"], event["step"]
                    elif event["event"] == "hello":
                        rank.hello = event
                    elif event["event"] == "end":
                        answer.end = event
                    if event["event"] == until:
                        waiting.pop(id(rank), None)
                if rank.ended and id(rank) in waiting:
                    waiting.pop(id(rank))
                    answer.died = self._death()
                failed = answer.died or (answer.end is not None and answer.end["state"] == "failed")
                if failed and waiting and not shortened:
                    limit, shortened = min(limit, time.monotonic() + _GRACE_S), True
        if any(answer.died for answer in answers):
            self.stop()
        return Outcome(answers=answers, output=self._tail(log_from))

    def _late(self, answers: list[Answer], stuck: Sequence[_Rank], shortened: bool, log_from: int) -> Outcome:
        texts = []
        for rank in stuck:
            answer = answers[self._ranks.index(rank)]
            pid = rank.hello.get("pid") or self._process.pid
            name = f"rank {self._ranks.index(rank)}, " if len(self._ranks) > 1 else ""
            at = f"{answer.stage}: {answer.step}" if answer.stage else "start"
            texts.append(f"--- {name}process {pid}, last word: {at}\n{stacks_of(int(pid), self._log)}")
        gpu = usage() if self._setup.backend == "cuda" else "no GPU is in use"
        output = self._tail(log_from)
        if not self.stop():
            gpu += "\nthe kernel does not let go of the process: it is stuck in the driver"
        late = not (shortened and any(a.died or a.end for a in answers))
        return Outcome(answers=answers, late=late, stacks="\n".join(texts), gpu=gpu, output=output)

    def _read(self, rank: _Rank) -> list[dict[str, Any]]:
        try:
            data = os.read(rank.events, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            rank.ended = True
            self._selector.unregister(rank.events)
            return []
        *lines, rank.buffer = (rank.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _death(self) -> str:
        if len(self._ranks) > 1:
            return "died"
        try:
            code = self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return "closed its pipe and did not end"
        return f"ended with {describe_status(code)}" if code >= 0 else f"was {describe_status(code)}"

    def _tail(self, start: int, limit: int = 6000) -> str:
        with self._log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(start, size - limit))
            return stream.read().decode("utf-8", "replace").strip()

    def stop(self) -> bool:
        """Kill the whole group. False where the kernel would not let go of it in time (stuck in the driver)."""
        for rank in self._ranks:
            if rank.commands >= 0:
                os.close(rank.commands)
                rank.commands = -1
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return False
        finally:
            self._selector.close()
            for rank in self._ranks:
                if rank.events >= 0:
                    os.close(rank.events)
                    rank.events = -1
                rank.ended = True
        return True

    def leave(self) -> None:
        """Let it end by itself, as after its last case; killed where it does not."""
        for rank in self._ranks:
            if rank.commands >= 0:
                os.close(rank.commands)
                rank.commands = -1
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self.stop()
