"""What the broker decides with: its clients, the policy, the budget and what is known about compiles.

It reads /proc and cgroups and answers launchers; listening, and when to do what, is the broker's own.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from sm120_wheels.compile import budget, sampling
from sm120_wheels.compile.client import Client, Stage
from sm120_wheels.compile.command import parse
from sm120_wheels.compile.envelope import Envelope
from sm120_wheels.compile.knowledge import Knowledge, Origin
from sm120_wheels.compile.policy import Policy
from sm120_wheels.compile.protocol import Message, parse_owner
from sm120_wheels.compile.records import end_record, sample_record
from sm120_wheels.compile.task import Task

#: Tries of one compile: as predicted, with more, alone, alone once more.
MOST_TRIES = 4
#: How often running compiles are sampled, in seconds, and the part of the broker's time that it may take: with many
#: compiles it becomes rarer instead of dearer.
SAMPLE_S = 0.1
_SAMPLE_SHARE = 0.05
_LINGER_S = 60.0
_FAILURE_AHEAD_S = 1.0
#: A status is one packet, which the kernel limits to about 200 kB.
_MOST_LISTED = 200


class Admission:
    """Who waits and who runs. All times are seconds of ``time.monotonic`` unless they say otherwise."""

    def __init__(self) -> None:
        self.clients: dict[int, Client] = {}
        self.knowledge = Knowledge()
        self.budget = budget.measure()
        self.policy = Policy(budget=self.budget.memory, cores=self.budget.cores, ceiling=self.budget.ceiling)
        self.sample_gap = SAMPLE_S
        self._used = 0
        self._used_by: collections.Counter[str] = collections.Counter()
        self._most_used_by: collections.Counter[str] = collections.Counter()
        self._biases: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        """Sessions with a file that does not compile, and since when its launcher is gone."""

    def introduce(self, client: Client, message: Message) -> None:
        get = message.fields.get
        client.command = parse(message.arguments, get("cwd", "/"))
        client.uid = get("uid", "")
        client.origin = Origin(
            package=get("SM120_PACKAGE", ""),
            session=get("SM120_SESSION", ""),
            profile=get("SM120_PROFILE", ""),
            store=get("SM120_STORE", ""),
        )
        client.records = get("SM120_RECORDS", "")
        if client.uid.endswith(f".{client.pid}"):  # else it counts processes in another namespace than we do
            client.owner = parse_owner(get("SM120_OWNER", ""))
        client.attempt = message.number("attempt")
        client.memory_cap = message.number("SM120_MEMORY") or None
        client.cores_cap = message.number("SM120_CORES") or None
        client.prediction = self.knowledge.predict(client.command, client.origin)
        client.arrived = time.monotonic() - message.number("waited_ms") / 1000
        client.arrived_at = time.time() - message.number("waited_ms") / 1000
        self.measure()

    def waits(self, client: Client, now: float) -> None:
        """A launcher asks for leave. One whose headers are still being read is let in by :meth:`predict_pending`."""
        if client.prediction.basis != "pending":
            self.wait(client, now, memory=client.prediction.memory, alone=False)
            self._restore_attempt(client, client.attempt, now)

    def wait(self, client: Client, now: float, *, memory: int, alone: bool) -> None:
        client.stage = Stage.WAITING
        client.waiting_since, client.claim = now, memory
        self.policy.submit(
            Task(
                key=client.uid,
                memory=memory,
                seconds=client.prediction.seconds,
                cores=client.command.parallel,
                arrived=client.arrived,
                build=client.origin.session,
                alone=alone,
                tail=client.tail,
            )
        )

    def predict_pending(self, now: float) -> None:
        """Headers have been read: let those wait for memory that had no prediction yet."""
        for client in self.clients.values():
            if client.stage is Stage.NEW and client.prediction.basis == "pending":
                client.prediction = self.knowledge.predict(client.command, client.origin)
                if client.prediction.basis != "pending":
                    self.wait(client, now, memory=client.prediction.memory, alone=False)
                    self._restore_attempt(client, client.attempt, now)

    def _restore_attempt(self, client: Client, attempt: int, now: float) -> None:
        """A launcher that waits for a later try under a new broker keeps its larger claim."""
        client.attempt = attempt
        if attempt:
            self.wait(client, now, memory=client.prediction.memory << attempt, alone=attempt >= 2)

    def resume(self, client: Client, message: Message, now: float) -> None:
        client.attempt = message.number("attempt")
        client.reserved = message.number("held")
        client.started = now - message.number("elapsed_ms") / 1000
        client.resumed, client.envelope = True, Envelope(whole=False)
        client.stage = Stage.RUNNING
        client.kills_before = budget.oom_kills()
        client.group = sampling.process_group(client.pid)
        self.policy.resume(
            Task(
                key=client.uid,
                memory=client.reserved,
                seconds=client.prediction.seconds,
                cores=client.command.parallel,
                arrived=client.arrived,
                build=client.origin.session,
            ),
            started=client.started,
        )

    def ended(self, client: Client, message: Message, now: float) -> None:
        self.policy.forget(client.uid)
        seconds = message.number("wall_ms") / 1000
        if client.stage is not Stage.RUNNING:  # it ran under an earlier broker
            client.attempt, client.reserved = message.number("attempt"), message.number("held")
            client.started, client.kills_before = now - seconds, budget.oom_kills()
        peak = max(client.envelope.peak, message.number("maxrss"))
        tail = client.envelope.tail()
        code = message.number("exit")
        weak_sign = code != 0 and client.attempt == 0 and budget.oom_kills() > client.kills_before
        killed = code != 0 and (message.number("killed") == 1 or weak_sign)
        retry = killed and client.attempt + 1 < MOST_TRIES
        self.knowledge.learn(
            client.command,
            client.origin,
            client.prediction,
            peak=peak,
            tail=tail,
            seconds=seconds,
            cpu_seconds=message.number("cpu_ms") / 1000,
            complete=code == 0,
        )
        record = end_record(client, peak=peak, tail=tail, code=code, killed=killed, retry=retry, message=message)
        self._record(client.records, record)
        self._relearn(client.origin.session, now)
        if retry:
            client.attempt += 1
            self.wait(client, now, memory=self._claim(client, peak), alone=client.attempt >= 2)
        else:
            client.stage, client.failed = Stage.DONE, code != 0
        client.envelope = Envelope()
        client.send(b"retry" if retry else b"done")

    def stop_failed(self, now: float) -> None:
        """Let no file of a build wait when one has failed: the build tool would have all of them compiled before it
        said so, which can take an hour. What runs is finished. The failure gets a second's start from the end of its
        launcher, so that the build tool sees it first."""
        for client in self.clients.values():
            failed = self._failed.get(client.origin.session)
            if client.stage is Stage.WAITING and failed is not None and now - failed >= _FAILURE_AHEAD_S:
                self.policy.forget(client.uid)
                client.stage = Stage.DONE
                client.send(b"stop")

    def _claim(self, client: Client, peak: int) -> int:
        """What to reserve after a kill. Where it had not yet taken what was expected, others took the memory and the
        expectation stands; else it was too small. Never more than there could be here, where that is enough."""
        if peak < client.prediction.expected or client.attempt >= 2:
            more = int(1.1 * max(client.prediction.memory, peak))
        else:
            more = max(2 * client.reserved, int(1.5 * peak))
        ceiling = self.budget.ceiling
        return min(more, ceiling) if peak < ceiling else more

    def _relearn(self, session: str, now: float) -> None:
        """When this build's predictions prove too small, those that still wait are predicted anew."""
        bias = self.knowledge.bias(session)
        if abs(bias / self._biases.get(session, 1.0) - 1) < 0.1:
            return
        self._biases[session] = bias
        for client in self.clients.values():
            if client.origin.session == session and client.stage is Stage.WAITING and client.attempt == 0:
                client.prediction = self.knowledge.predict(client.command, client.origin)
                self.wait(client, client.waiting_since, memory=client.prediction.memory, alone=False)

    def lost(self, client: Client) -> None:
        """The other side is gone. What its compile has left running is ended, and holds its memory until it is.

        One that hung up and lives was not killed: it will say its state again, and nothing of it is ended here.
        """
        if client.failed and client.origin.session:
            self._failed.setdefault(client.origin.session, time.monotonic())
        hung_up = sampling.alive(client.pid, client.processes.get(client.pid, -1))
        if client.stage is not Stage.RUNNING or hung_up:
            self._drop(client)
            return
        self._kill_compile(client)
        client.stage = Stage.LINGERING
        client.lost = time.monotonic()
        self._settle(client, client.lost)

    def end_orphans(self) -> None:
        """End the launchers of builds whose own process is gone (killed with signal 9), and what they compile: the
        build tool, which nobody waits for any more, sees them fail and stops."""
        owners = {client.owner for client in self.clients.values() if client.owner is not None}
        gone = {owner for owner in owners if not sampling.alive(*owner)}
        for client in self.clients.values():
            if client.owner in gone and client.stage is not Stage.LINGERING:
                client.processes = sampling.tree(client.pid).processes or client.processes
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(client.pid, signal.SIGKILL)
                self._kill_compile(client)

    def _kill_compile(self, client: Client) -> None:
        for pid, ticks in client.processes.items():
            if sampling.alive(pid, ticks) and sampling.process_group(pid) == client.group:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _settle(self, client: Client, now: float) -> None:
        left = [p for p, t in client.processes.items() if sampling.alive(p, t)]
        if not left or now - client.lost > _LINGER_S:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        if client.stage in (Stage.WAITING, Stage.RUNNING, Stage.LINGERING):
            self.policy.forget(client.uid)
        self.clients.pop(id(client), None)

    def rest(self) -> None:
        """Nobody has been here for a while."""
        self.knowledge.rest()
        self._biases.clear()
        self._failed.clear()

    def admit(self, now: float) -> None:
        by_uid = {c.uid: c for c in self.clients.values() if c.stage is Stage.WAITING}
        for task in self.policy.admit(now):
            client = by_uid[task.key]
            client.stage = Stage.RUNNING
            client.started = now
            client.reserved = task.memory
            client.kills_before = budget.oom_kills()
            client.group = sampling.process_group(client.pid)
            client.send(b"go %d" % max(1, task.memory))

    def sample(self, now: float) -> None:
        began = time.perf_counter()
        self._used = 0
        self._used_by = collections.Counter()
        for client in list(self.clients.values()):
            if client.stage is Stage.LINGERING:
                self._settle(client, now)
            if client.stage is Stage.RUNNING:
                tree = sampling.tree(client.pid)
                client.processes = tree.processes or client.processes
                client.used = tree.resident
                self._used += tree.resident
                self._used_by[client.origin.session] += tree.resident
                self._watch(client, now - client.started)
        self._most_used_by |= self._used_by
        self.sample_gap = max(SAMPLE_S, (time.perf_counter() - began) / _SAMPLE_SHARE)

    def _watch(self, client: Client, elapsed: float) -> None:
        """Hold for a running compile what it needs from now on."""
        client.envelope.add(elapsed, client.used)
        tail, expected = client.tail, client.prediction.expected
        if tail is not None:
            if client.envelope.in_tail(tail, elapsed=elapsed, used=client.used, expected=expected):
                self.policy.enter_tail(client.uid, client.used)
            elif client.used > tail.memory:
                self.policy.leave_tail(client.uid, client.envelope.peak)
        self.policy.observe(client.uid, client.used)

    def measure(self) -> None:
        """Read the limits and free memory anew: what other programs take holds back new admissions."""
        clients = list(self.clients.values())
        usage: dict[Path, int] = {}
        for client in clients:
            for folder in client.folders:
                usage[folder] = usage.get(folder, 0) + (client.used if client.stage is Stage.RUNNING else 0)
        caps = [c.memory_cap for c in clients if c.memory_cap]
        self.budget = budget.measure(
            cap=min(caps, default=None),
            own_usage=self._used,
            own_usage_in=usage,
            folders=list(usage) or None,
        )
        now = self.budget
        # Who asks for more compiles than there are cores gets them; builds that asked for nothing get the cores.
        most = max([now.cores, *(c.cores_cap for c in clients if c.cores_cap)])
        sessions = {c.origin.session: c.cores_cap for c in clients if c.cores_cap or most > now.cores}
        self.policy.limit_jobs({session: cap or now.cores for session, cap in sessions.items()})
        self.policy.resize(budget=now.memory, cores=most, ceiling=now.ceiling, free=now.free)

    def status(self, now: float) -> dict[str, Any]:
        """What ``sm120 broker status`` and the progress display show; memory in bytes, times in seconds."""
        clients = [c for c in self.clients.values() if c.stage is not Stage.NEW]
        running = [c for c in clients if c.stage in (Stage.RUNNING, Stage.LINGERING)]
        pressed = self.policy.idle_since
        holds = {key: running.held for key, running in self.policy.running.items()}
        order = {task.key: place for place, task in enumerate(self.policy.order())}
        waiting = sorted((c for c in clients if c.stage is Stage.WAITING), key=lambda c: order.get(c.uid, 0))
        return {
            "pid": os.getpid(),
            "budget": self.budget.memory,
            "ceiling": self.budget.ceiling,
            "bound_by": self.budget.bound_by,
            "cores": self.budget.cores,
            "held": self.policy.held,
            "used": self._used,
            "running_count": len(running),
            "waiting_count": len(waiting),
            "why_waiting": self.policy.why_waiting(),
            "others_for_s": 0.0 if pressed is None else round(now - pressed, 1),
            "builds": {session: self._build_status(session) for session in {c.origin.session for c in clients}},
            "waiting_in": dict(collections.Counter(c.origin.session for c in waiting)),
            "running": [c.summary(now, held=holds.get(c.uid, c.reserved)) for c in running[:_MOST_LISTED]],
            "waiting": [c.summary(now) for c in waiting[:_MOST_LISTED]],
        }

    def _build_status(self, session: str) -> dict[str, Any]:
        return {
            "used": self._used_by[session],
            "cores": self._cores_of(session),
            "why_waiting": self.policy.why_waiting(session),
        }

    def _cores_of(self, session: str) -> int:
        caps = [c.cores_cap for c in self.clients.values() if c.cores_cap and c.origin.session == session]
        return min(caps, default=self.budget.cores)

    def _record(self, path: str, record: dict[str, Any]) -> None:
        if not path:
            return
        try:
            with Path(path).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
        except OSError as exc:
            self.knowledge.complaints.append(f"{path}: {exc}")

    def record_sample(self) -> None:
        """One line about the whole for every build that has compiles here."""
        for path, session in {(c.records, c.origin.session) for c in self.clients.values() if c.records}:
            used, cores = self._most_used_by[session], self._cores_of(session)
            self._record(path, sample_record(self.policy, self.budget, session=session, used=used, cores=cores))
        self._most_used_by = collections.Counter(self._used_by)

    def complain(self) -> None:
        """Say in the broker's log what could not be read or written, each once."""
        for complaint in dict.fromkeys(self.knowledge.complaints):
            print(f"{time.strftime('%F %T')} {complaint}", file=sys.stderr, flush=True)
        self.knowledge.complaints.clear()
