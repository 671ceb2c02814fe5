"""The broker: one small process for each user and host that says which compile may start.

    python -m sm120_wheels.compile.broker SOCKET

It listens to launchers and keeps the clock; who is admitted is ``admission``'s. A launcher's death closes its
socket, which
frees what it held as soon as nothing of its compile is left. The broker ends by itself when nobody has been connected
for a while. It does not compile anything.
"""

from __future__ import annotations

import contextlib
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

from sm120_wheels.compile import budget
from sm120_wheels.compile.admission import Admission
from sm120_wheels.compile.client import Client, Stage
from sm120_wheels.compile.protocol import MESSAGE_MAX, decode, peer
from sm120_wheels.files import make_private_folder

_MEASURE_S = 0.5
_SAVE_S = 5.0
_PING_S = 20.0
_RECORD_S = 1.0
_REST_S = 3.0
#: A build tool starts its launchers one after another. The first may not take the cores from larger ones a moment
#: behind them, so new arrivals are heard out: until none came for the quiet time, at most for the longest.
_GATHER_QUIET_S = 0.008
_GATHER_LONGEST_S = 0.5
#: Launchers that wait for a new broker look for it every tenth of a second.
_YOUNG_S = 1.0
_GATHER_QUIET_YOUNG_S = 0.15


class Gathering:
    """Whether the arrivals of this moment have all been heard. Times of ``time.monotonic``."""

    def __init__(self, now: float) -> None:
        self._born = self._last = now
        self._since: float | None = None

    def arrived(self, now: float) -> None:
        self._last = now
        self._since = self._since or now

    def left(self, now: float) -> float | None:
        """Seconds until the arrivals count as heard; None when nothing is being waited for."""
        if self._since is None:
            return None
        quiet = _GATHER_QUIET_YOUNG_S if now - self._born < _YOUNG_S else _GATHER_QUIET_S
        left = min(self._last + quiet, self._since + _GATHER_LONGEST_S) - now
        if left > 0:
            return left
        self._since = None
        return None


class Broker:
    """The loop. All times are seconds of ``time.monotonic``."""

    def __init__(self, path: Path, *, idle_s: float = 120.0) -> None:
        self._path = path
        self._idle_s = idle_s
        self._selector = selectors.DefaultSelector()
        self._admission = Admission()
        now = time.monotonic()
        self._gathering = Gathering(now)
        self._sampled = self._measured = self._saved = self._pinged = self._recorded = self._busy = now
        self._rested = False
        self._stop = False
        self._wake = -1

    def serve(self) -> None:
        """Listen until idle or told to stop by SIGTERM."""
        knowledge = self._admission.knowledge
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
            knowledge.on_footprint = lambda: os.eventfd_write(wake, 1)
            while not self._stop:
                for key, _ in self._selector.select(self._timeout()):
                    if isinstance(key.data, Client):
                        self._hear(key.data)
                    elif key.data is None:
                        self._accept(listener)
                    else:
                        os.eventfd_read(wake)
                        self._admission.predict_pending(time.monotonic())
                now = time.monotonic()
                self._tick(now)
                if not self._admission.clients and now - self._busy > self._idle_s:
                    break
                if not _still_ours(self._path, inode):
                    break  # the socket file is gone: nobody new can find us, so the next launcher starts another
            knowledge.on_footprint = lambda: None
            knowledge.rest()

    def _on_stop(self, signum: int, frame: object) -> None:
        self._stop = True
        os.eventfd_write(self._wake, 1)

    def _timeout(self) -> float:
        gathering = self._gathering.left(time.monotonic())
        if gathering is not None:
            return gathering
        if any(c.stage in (Stage.RUNNING, Stage.LINGERING) for c in self._admission.clients.values()):
            return self._admission.sample_gap
        return _MEASURE_S if self._admission.policy.waiting else min(2.0, max(0.05, self._idle_s))

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
                self._admission.clients[id(client)] = client
                self._selector.register(connection, selectors.EVENT_READ, client)

    def _hear(self, client: Client) -> None:
        try:
            packet = client.connection.recv(MESSAGE_MAX)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(client.connection)
            client.connection.close()
            self._admission.lost(client)
            return
        message = decode(packet)
        now = time.monotonic()
        self._busy, self._rested = now, False
        state = message.fields.get("state", "")
        if state in ("waiting", "running", "ended") and client.stage is Stage.NEW:
            if not message.fields.get("uid"):
                return  # no launcher: what the one who connected runs would be taken for a compile
            self._admission.introduce(client, message)
            now = time.monotonic()
        if state == "waiting":
            self._gathering.arrived(now)
            self._admission.waits(client, now)
        elif state == "running":
            self._admission.resume(client, message, now)
        elif state == "ended":
            self._admission.ended(client, message, now)
        elif state == "status":
            client.send(json.dumps(self._admission.status(now)).encode())
        elif state == "stop":
            self._stop = True

    def _tick(self, now: float) -> None:
        admission = self._admission
        if now - self._sampled >= admission.sample_gap * 0.9:
            self._sampled = now
            admission.sample(now)
        if now - self._measured >= _MEASURE_S:
            self._measured = now
            admission.measure()
            admission.end_orphans()
            admission.stop_failed(now)
        if now - self._saved >= _SAVE_S:
            self._saved = now
            admission.knowledge.save()
            admission.complain()
        if now - self._pinged >= _PING_S:
            self._pinged = now
            for client in list(admission.clients.values()):
                if client.stage in (Stage.WAITING, Stage.RUNNING):
                    client.send(b"ping")
        if self._gathering.left(now) is None:
            admission.admit(now)
        if now - self._recorded >= _RECORD_S:
            self._recorded = now
            admission.record_sample()
        if not admission.clients and not self._rested and now - self._busy > min(_REST_S, self._idle_s / 2):
            self._rested = True
            admission.rest()


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
