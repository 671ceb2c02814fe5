"""The broker: one small process for each user and host that says which compile may start.

    python -m sm120_wheels.compile.broker SOCKET

It joins the policy to the world: sockets to launchers, the clock, /proc and cgroups. A launcher's death closes its
socket,
which frees what it held as soon as nothing of its compile is left. It ends by itself when nobody has been connected
for a while. It does not compile anything.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sm120_wheels.compile import budget, sampling
from sm120_wheels.compile.client import Client, Stage
from sm120_wheels.compile.command import parse
from sm120_wheels.compile.knowledge import Knowledge, Origin
from sm120_wheels.compile.policy import Policy, Task
from sm120_wheels.compile.protocol import MESSAGE_MAX, Message, decode, make_private_folder, peer
from sm120_wheels.compile.records import end_record, sample_record

#: Tries of one compile: as predicted, with more, alone, alone once more.
MOST_TRIES = 4
_SAMPLE_S = 0.1
#: Sampling may take this part of the broker's time; with many compiles it becomes rarer instead of dearer.
_SAMPLE_SHARE = 0.05
_BUDGET_S = 0.5
_SAVE_S = 5.0
_PING_S = 20.0
_RECORD_S = 1.0
_LINGER_S = 60.0
#: A status is one packet, which the kernel limits to about 200 kB.
_MOST_LISTED = 200
#: A build tool starts its launchers one after another. The first may not take the cores from larger ones a moment
#: behind them, so new arrivals are heard out: until none came for the quiet time, at most for the longest.
_GATHER_QUIET_S = 0.008
_GATHER_LONGEST_S = 0.5
#: Launchers that wait for a new broker look for it every tenth of a second.
_YOUNG_S = 1.0
_GATHER_QUIET_YOUNG_S = 0.15


class Broker:
    """State and reactions; :meth:`serve` is the loop. All times are seconds of ``time.monotonic``."""

    def __init__(self, path: Path, *, idle_s: float = 120.0) -> None:
        self._path = path
        self._idle_s = idle_s
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, Client] = {}
        self._knowledge = Knowledge()
        now = time.monotonic()
        self._budget = budget.measure()
        self._policy = Policy(budget=self._budget.memory, cores=self._budget.cores, ceiling=self._budget.ceiling)
        self._sampled = self._measured = self._saved = self._pinged = self._recorded = self._busy = now
        self._sample_gap = _SAMPLE_S
        self._stop = False
        self._wake = -1
        self._used = self._most_used = 0
        self._gathering_since: float | None = None
        self._last_arrival = self._born = now
        self._biases: dict[str, float] = {}

    def serve(self) -> None:
        """Listen until idle or told to stop by SIGTERM."""
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(_listening(self._path))
            inode = self._path.stat().st_ino
            stack.callback(self._selector.close)
            self._selector.register(listener, selectors.EVENT_READ, None)
            wake = self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            stack.callback(os.close, wake)
            self._selector.register(wake, selectors.EVENT_READ, wake)
            for number in (signal.SIGTERM, signal.SIGINT):
                stack.callback(signal.signal, number, signal.signal(number, self._on_stop))
            self._knowledge.on_footprint = lambda: os.eventfd_write(wake, 1)
            while not self._stop:
                for key, _ in self._selector.select(self._timeout()):
                    if isinstance(key.data, Client):
                        self._hear(key.data)
                    elif key.data is None:
                        self._accept(listener)
                    else:
                        os.eventfd_read(wake)
                        self._predict_pending(time.monotonic())
                now = time.monotonic()
                self._tick(now)
                if not self._clients and now - self._busy > self._idle_s:
                    break
                if not _still_ours(self._path, inode):
                    break  # the socket file is gone: nobody new can find us, so the next launcher starts another
            self._knowledge.on_footprint = lambda: None
            self._knowledge.rest()

    def _on_stop(self, signum: int, frame: object) -> None:
        self._stop = True
        os.eventfd_write(self._wake, 1)

    def _timeout(self) -> float:
        if self._gathering_since is not None:
            return max(0.001, self._last_arrival + self._quiet() - time.monotonic())
        if any(c.stage in (Stage.RUNNING, Stage.LINGERING) for c in self._clients.values()):
            return self._sample_gap
        return _BUDGET_S if self._policy.waiting else 2.0

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = listener.accept()
                pid, uid = peer(connection)
                if uid != os.getuid():
                    connection.close()
                    continue
                connection.setblocking(False)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_MAX)
                client = Client(connection=connection, pid=pid, folders=budget.memory_folders(pid))
                self._clients[id(client)] = client
                self._selector.register(connection, selectors.EVENT_READ, client)

    def _hear(self, client: Client) -> None:
        try:
            packet = client.connection.recv(MESSAGE_MAX)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._lost(client)
            return
        message = decode(packet)
        now = time.monotonic()
        self._busy = now
        state = message.fields.get("state", "")
        if state in ("waiting", "running", "ended") and client.stage is Stage.NEW:
            self._introduce(client, message)
            if state == "waiting":
                self._last_arrival = time.monotonic()
                self._gathering_since = self._gathering_since or self._last_arrival
        if state == "waiting" and client.prediction.basis != "pending":
            self._wait(client, now, memory=client.prediction.memory, alone=False)
            self._restore_attempt(client, message.number("attempt"), now)
        elif state == "running":
            self._resume(client, message, now)
        elif state == "ended":
            self._ended(client, message, now)
        elif state == "status":
            self._send(client, json.dumps(self.status(now)).encode())
        elif state == "stop":
            self._stop = True

    def _introduce(self, client: Client, message: Message) -> None:
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
        client.attempt = message.number("attempt")
        client.memory_cap = message.number("SM120_MEMORY") or None
        client.cores_cap = message.number("SM120_CORES") or None
        client.prediction = self._knowledge.predict(client.command, client.origin)
        client.arrived = time.monotonic() - message.number("waited_ms") / 1000
        client.arrived_at = time.time() - message.number("waited_ms") / 1000
        self._measure(time.monotonic())

    def _wait(self, client: Client, now: float, *, memory: int, alone: bool) -> None:
        client.stage = Stage.WAITING
        client.waiting_since = now
        self._policy.submit(
            Task(
                key=client.uid,
                memory=memory,
                seconds=client.prediction.seconds,
                cores=client.command.parallel,
                arrived=client.arrived,
                alone=alone,
            )
        )

    def _predict_pending(self, now: float) -> None:
        """Headers have been read: let those wait for memory that had no prediction yet."""
        for client in self._clients.values():
            if client.stage is Stage.NEW and client.prediction.basis == "pending":
                client.prediction = self._knowledge.predict(client.command, client.origin)
                if client.prediction.basis != "pending":
                    self._wait(client, now, memory=client.prediction.memory, alone=False)
                    self._restore_attempt(client, client.attempt, now)

    def _restore_attempt(self, client: Client, attempt: int, now: float) -> None:
        """A launcher that waits for a later try under a new broker keeps its larger claim."""
        client.attempt = attempt
        if attempt:
            self._wait(client, now, memory=client.prediction.memory << attempt, alone=attempt >= 2)

    def _resume(self, client: Client, message: Message, now: float) -> None:
        client.attempt = message.number("attempt")
        client.reserved = message.number("held")
        client.started = now - message.number("elapsed_ms") / 1000
        client.stage = Stage.RUNNING
        client.kills_before = budget.oom_kills()
        client.group = sampling.process_group(client.pid)
        self._policy.resume(
            Task(
                key=client.uid,
                memory=client.reserved,
                seconds=client.prediction.seconds,
                cores=client.command.parallel,
                arrived=client.arrived,
            ),
            started=client.started,
        )

    def _ended(self, client: Client, message: Message, now: float) -> None:
        self._policy.forget(client.uid)
        seconds = message.number("wall_ms") / 1000
        if client.stage is not Stage.RUNNING:  # it ran under an earlier broker
            client.attempt, client.reserved = message.number("attempt"), message.number("held")
            client.started, client.kills_before = now - seconds, budget.oom_kills()
        peak = max(client.peak, message.number("maxrss"))
        code = message.number("exit")
        weak_sign = code != 0 and client.attempt == 0 and budget.oom_kills() > client.kills_before
        killed = code != 0 and (message.number("killed") == 1 or weak_sign)
        retry = killed and client.attempt + 1 < MOST_TRIES
        self._knowledge.learn(
            client.command,
            client.origin,
            client.prediction,
            peak=peak,
            seconds=seconds,
            cpu_seconds=message.number("cpu_ms") / 1000,
            complete=code == 0,
        )
        record = end_record(client, peak=peak, code=code, killed=killed, retry=retry, message=message)
        self._record(client.records, record)
        self._relearn(client.origin.session, now)
        if retry:
            client.attempt += 1
            alone = client.attempt >= 2  # then what it held when it was killed is as good a guess as any
            more = max(client.prediction.memory, int(1.1 * peak))
            self._wait(client, now, memory=more if alone else max(2 * client.reserved, int(1.5 * peak)), alone=alone)
        else:
            client.stage = Stage.DONE
        client.peak = 0
        self._send(client, b"retry" if retry else b"done")

    def _relearn(self, session: str, now: float) -> None:
        """When this build's predictions prove too small, those that still wait are predicted anew."""
        bias = self._knowledge.bias(session)
        if abs(bias / self._biases.get(session, 1.0) - 1) < 0.1:
            return
        self._biases[session] = bias
        for client in self._clients.values():
            if client.origin.session == session and client.stage is Stage.WAITING and client.attempt == 0:
                client.prediction = self._knowledge.predict(client.command, client.origin)
                self._wait(client, client.waiting_since, memory=client.prediction.memory, alone=False)

    def _lost(self, client: Client) -> None:
        """The other side is gone. What its compile has left running is ended, and holds its memory until it is."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.connection)
        client.connection.close()
        if client.stage is Stage.RUNNING:
            group = client.group
            for pid, ticks in client.processes.items():
                if sampling.alive(pid, ticks) and sampling.process_group(pid) == group:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            client.stage = Stage.LINGERING
            client.lost = time.monotonic()
            self._settle(client, client.lost)
            return
        self._drop(client)

    def _settle(self, client: Client, now: float) -> None:
        left = [p for p, t in client.processes.items() if sampling.alive(p, t)]
        if not left or now - client.lost > _LINGER_S:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        if client.stage in (Stage.WAITING, Stage.RUNNING, Stage.LINGERING):
            self._policy.forget(client.uid)
        self._clients.pop(id(client), None)
        if not self._clients:
            self._knowledge.rest()
            self._biases.clear()

    def _tick(self, now: float) -> None:
        if now - self._sampled >= self._sample_gap * 0.9:
            self._sample(now)
        if now - self._measured >= _BUDGET_S:
            self._measure(now)
        if now - self._saved >= _SAVE_S:
            self._knowledge.save()
            self._saved = now
            self._complain()
        if now - self._pinged >= _PING_S:
            self._pinged = now
            for client in list(self._clients.values()):
                if client.stage in (Stage.WAITING, Stage.RUNNING):
                    self._send(client, b"ping")
        self._admit(now)
        if now - self._recorded >= _RECORD_S:
            self._recorded = now
            for records in {c.records for c in self._clients.values() if c.records}:
                self._record(records, sample_record(self._policy, self._budget, used=self._most_used, now=now))
            self._most_used = self._used

    def _quiet(self) -> float:
        return _GATHER_QUIET_YOUNG_S if time.monotonic() - self._born < _YOUNG_S else _GATHER_QUIET_S

    def _gathered(self, now: float) -> bool:
        since = self._gathering_since
        if since is None:
            return True
        if now - self._last_arrival < self._quiet() and now - since < _GATHER_LONGEST_S:
            return False
        self._gathering_since = None
        return True

    def _admit(self, now: float) -> None:
        if not self._gathered(now):
            return
        by_uid = {c.uid: c for c in self._clients.values() if c.stage is Stage.WAITING}
        for task in self._policy.admit(now):
            client = by_uid[task.key]
            client.stage = Stage.RUNNING
            client.started, client.started_at = now, time.time()
            client.reserved = task.memory
            client.kills_before = budget.oom_kills()
            client.group = sampling.process_group(client.pid)
            self._send(client, b"go %d" % max(1, task.memory))

    def _sample(self, now: float) -> None:
        began = time.perf_counter()
        self._used = 0
        for client in list(self._clients.values()):
            if client.stage is Stage.LINGERING:
                self._settle(client, now)
            if client.stage is Stage.RUNNING:
                tree = sampling.tree(client.pid)
                client.processes = tree.processes or client.processes
                client.used = tree.resident
                client.peak = max(client.peak, tree.resident)
                self._used += tree.resident
                self._policy.observe(client.uid, tree.resident)
        self._most_used = max(self._most_used, self._used)
        self._sampled = now
        self._sample_gap = max(_SAMPLE_S, (time.perf_counter() - began) / _SAMPLE_SHARE)

    def _measure(self, now: float) -> None:
        clients = list(self._clients.values())
        usage: dict[Path, int] = {}
        for client in clients:
            for folder in client.folders:
                usage[folder] = usage.get(folder, 0) + (client.used if client.stage is Stage.RUNNING else 0)
        caps = [c.memory_cap for c in clients if c.memory_cap]
        cores = [c.cores_cap for c in clients if c.cores_cap]
        self._budget = budget.measure(
            cap=min(caps, default=None),
            cores=min(cores, default=None),
            own_usage=self._used,
            own_usage_in=usage,
            folders=list(usage) or None,
        )
        self._policy.resize(budget=self._budget.memory, cores=self._budget.cores, ceiling=self._budget.ceiling)
        self._measured = now

    def status(self, now: float) -> dict[str, Any]:
        """What ``sm120 broker status`` and the progress display show; memory in bytes, times in seconds."""
        clients = [c for c in self._clients.values() if c.stage is not Stage.NEW]
        running = [c for c in clients if c.stage in (Stage.RUNNING, Stage.LINGERING)]
        order = {task.key: place for place, task in enumerate(self._policy.order(now))}
        waiting = sorted((c for c in clients if c.stage is Stage.WAITING), key=lambda c: order.get(c.uid, 0))
        return {
            "pid": os.getpid(),
            "budget": self._budget.memory,
            "ceiling": self._budget.ceiling,
            "bound_by": self._budget.bound_by,
            "cores": self._budget.cores,
            "held": self._policy.held,
            "used": self._used,
            "running_count": len(running),
            "waiting_count": len(waiting),
            "why_waiting": self._policy.why_waiting(now),
            "waiting_in": dict(collections.Counter(c.origin.session for c in waiting)),
            "running": [c.summary(now) for c in running[:_MOST_LISTED]],
            "waiting": [c.summary(now) for c in waiting[:_MOST_LISTED]],
        }

    def _send(self, client: Client, packet: bytes) -> None:
        try:
            client.connection.send(packet)
        except BlockingIOError:
            return  # a full buffer means that it does not read; a ping or a status is not worth waiting for
        except OSError as exc:
            if exc.errno not in (errno.EPIPE, errno.ECONNRESET, errno.EBADF, errno.EMSGSIZE):
                raise
            # a lost one is read as end of file in the next round

    def _record(self, path: str, record: dict[str, Any]) -> None:
        if not path:
            return
        try:
            with Path(path).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
        except OSError as exc:
            self._knowledge.complaints.append(f"{path}: {exc}")

    def _complain(self) -> None:
        for complaint in dict.fromkeys(self._knowledge.complaints):
            print(f"{time.strftime('%F %T')} {complaint}", file=sys.stderr, flush=True)
        self._knowledge.complaints.clear()


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """Bind aside and rename, so that whoever finds the socket file can connect."""
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.setblocking(False)
        listener.bind(str(aside))
        listener.listen(1024)
        aside.replace(path)
        inode = path.stat().st_ino
        try:
            yield listener
        finally:
            if _still_ours(path, inode):
                path.unlink(missing_ok=True)


def _still_ours(path: Path, inode: int) -> bool:
    try:
        return path.stat().st_ino == inode
    except OSError:
        return False


def main(arguments: list[str]) -> int:
    """Serve on the socket path given, unless another broker does so already (then end with 0)."""
    path = Path(arguments[0])
    make_private_folder(path.parent)
    with Path(f"{path}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        Path(f"{path}.failed").unlink(missing_ok=True)
        Broker(path, idle_s=float(os.environ.get("SM120_BROKER_IDLE_S", "120"))).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
