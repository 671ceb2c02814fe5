"""The way of compiles to a shared store: a Unix socket that speaks enough Redis for ccache, served by the build's
process.

Configure and compile have no network (``isolation.py``), but a Unix socket by path reaches through. So one thread here
answers, and only here are the store's address, its credentials and its time limits. What the build sees is a socket.

A store that fails twice with no success in between is not asked again in this build: every lookup is then a miss at
once. Entries are stored in the background, so a compile never waits for a write. Each carries a digest, or a signature
where there is a key; one that does not match is a miss.
"""

from __future__ import annotations

import hashlib
import hmac
import queue
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sm120_wheels.compile.cache.shared import Credentials, SharedCache
from sm120_wheels.compile.cache.stats import SharedReport
from sm120_wheels.compile.cache.stores import Store, StoreError, open_store

_MAGIC = b"sm120-entry-1\n"
_DIGEST_BYTES = 32
#: The longest that the first question may take, seconds: name lookup and connecting included.
_PROBE_S = 0.9
#: Entries that wait to be stored, bytes; what comes beyond is dropped.
_MOST_WAITING = 512 * 2**20
#: How long the end of a build waits for entries that are still to be stored, seconds.
_FLUSH_S = 30.0
_WRITERS = 4
#: Failures without a success in between after which a store is lost. One is an accident.
_STRIKES = 2


def seal(key: str, data: bytes, secret: bytes | None) -> bytes:
    return _MAGIC + _tag(key, data, secret) + data


def unseal(key: str, sealed: bytes, secret: bytes | None) -> bytes | None:
    """The data, or None where it is not what was stored under this key."""
    head = len(_MAGIC) + _DIGEST_BYTES
    if len(sealed) < head or not sealed.startswith(_MAGIC):
        return None
    data = sealed[head:]
    return data if hmac.compare_digest(sealed[len(_MAGIC) : head], _tag(key, data, secret)) else None


def _tag(key: str, data: bytes, secret: bytes | None) -> bytes:
    text = len(key.encode()).to_bytes(4, "big") + key.encode()
    if secret is None:
        return hashlib.sha256(text + data).digest()
    return hmac.new(secret, text + data, hashlib.sha256).digest()


class Gateway:
    """Lookups and writes with their counts; thread-safe. ``lost`` is called once, with the cause."""

    def __init__(
        self, store: Store, shared: SharedCache, credentials: Credentials, lost: Callable[[str], None]
    ) -> None:
        self._store, self._shared, self._credentials, self._lost = store, shared, credentials, lost
        self._report = SharedReport(where=shared.address, state="used")
        self._lock = threading.Lock()
        self._waiting = 0
        self._strikes = 0
        self._closed = False
        self._queue: queue.Queue[tuple[str, bytes] | None] = queue.Queue()
        self._writers = [threading.Thread(target=self._write, daemon=True) for _ in range(_WRITERS)]
        for writer in self._writers:
            writer.start()

    @property
    def report(self) -> SharedReport:
        with self._lock:
            return self._report

    def get(self, key: str) -> bytes | None:
        if self.report.state != "used":
            return None
        try:
            sealed = self._store.get(key)
        except StoreError as exc:
            self._failed(str(exc))
            return None
        data = None if sealed is None else unseal(key, sealed, self._credentials.signing)
        with self._lock:
            self._strikes = 0
            now = self._report
            if data is not None:
                self._report = replace(now, hits=now.hits + 1, bytes_read=now.bytes_read + len(data))
            else:
                self._report = replace(now, misses=now.misses + 1, damaged=now.damaged + (sealed is not None))
        return data

    def put(self, key: str, data: bytes) -> None:
        """Returns at once."""
        if self._shared.read_only:
            return
        with self._lock:
            if self._report.state != "used" or self._waiting + len(data) > _MOST_WAITING:
                self._report = replace(self._report, dropped=self._report.dropped + 1)
                return
            self._waiting += len(data)
        self._queue.put((key, data))

    def close(self, *, wait_s: float = _FLUSH_S) -> None:
        """Store what waits, for so long. What is left then is dropped; closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        until = time.monotonic() + wait_s
        for _ in self._writers:
            self._queue.put(None)
        for writer in self._writers:
            writer.join(timeout=max(0.0, until - time.monotonic()))
        with self._lock:
            left = sum(item is not None for item in list(self._queue.queue))
            self._report = replace(self._report, dropped=self._report.dropped + left)

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            key, data = item
            stored = False
            if self.report.state == "used":
                try:
                    self._store.put(key, seal(key, data, self._credentials.signing))
                    stored = True
                except StoreError as exc:
                    self._failed(str(exc))
            with self._lock:
                self._strikes = 0 if stored else self._strikes
                self._waiting -= len(data)
                now = self._report
                self._report = replace(
                    now,
                    stored=now.stored + stored,
                    dropped=now.dropped + (not stored),
                    bytes_written=now.bytes_written + (len(data) if stored else 0),
                )

    def _failed(self, why: str) -> None:
        with self._lock:
            self._strikes += 1
            # at its end a build does not wait for a second failure
            if (self._strikes < _STRIKES and not self._closed) or self._report.state != "used":
                return
            self._report = replace(self._report, state="lost", why=why)
        self._lost(why)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 512
    gateway: Gateway


class _Handler(socketserver.StreamRequestHandler):
    """One connection: requests are arrays of strings (RESP2)."""

    server: _Server

    def handle(self) -> None:
        # no time limit: between a lookup and what is stored lies the compile
        try:
            while (words := self._read()) is not None:
                self.wfile.write(self._answer(words))
        except (OSError, ValueError):
            return  # the client hung up, or speaks something else: it takes that as a failed cache

    def _read(self) -> list[bytes] | None:
        line = self.rfile.readline(64)
        if not line:
            return None
        if not line.startswith(b"*"):
            raise ValueError("no array")
        words = []
        for _ in range(min(int(line[1:]), 16)):
            length = int(self.rfile.readline(64)[1:])
            words.append(self.rfile.read(length + 2)[:length])
        return words

    def _answer(self, words: list[bytes]) -> bytes:
        command, arguments = words[0].upper(), words[1:]
        gateway = self.server.gateway
        if command == b"GET" and len(arguments) == 1:
            data = gateway.get(arguments[0].decode())
            return b"$-1\r\n" if data is None else b"$%d\r\n%s\r\n" % (len(data), data)
        if command == b"SET" and len(arguments) >= 2:
            gateway.put(arguments[0].decode(), arguments[1])
            return b"+OK\r\n"
        if command in (b"EXISTS", b"DEL"):
            return b":0\r\n"  # then ccache writes what it has; it never removes on its own
        if command in (b"PING", b"SELECT", b"AUTH"):
            return b"+OK\r\n"
        return b"-ERR not a command of this gateway\r\n"


def reachable(store: Store) -> str | None:
    """None where the store answers, else why it cannot be used. Takes less than a second, name lookup included."""
    answers: queue.Queue[str | None] = queue.Queue()

    def ask() -> None:
        try:
            store.probe()
            answers.put(None)
        except StoreError as exc:
            answers.put(str(exc))

    # a daemon: a name server that does not answer must not hold up the end of the program either
    threading.Thread(target=ask, daemon=True).start()
    try:
        return answers.get(timeout=_PROBE_S)
    except queue.Empty:
        return "no answer in time"


@contextmanager
def served(
    shared: SharedCache, credentials: Credentials, *, socket: Path, tell: Callable[[str], None]
) -> Iterator[Gateway | SharedReport]:
    """A gateway at ``socket``, or, where the store cannot be reached, the report that says why. ``tell`` gets one
    sentence where the store is not reached or is lost."""
    store = open_store(shared, credentials)
    why = reachable(store)
    if why is not None:
        store.close()
        tell(f"the shared cache {shared.address} cannot be used ({why}): only the local one is")
        yield SharedReport(where=shared.address, state="unreachable", why=why)
        return
    gateway = Gateway(
        store, shared, credentials, lambda why: tell(f"the shared cache {shared.address} was lost ({why})")
    )
    socket.unlink(missing_ok=True)
    server = _Server(str(socket), _Handler)
    server.gateway = gateway
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield gateway
    finally:
        server.shutdown()
        server.server_close()
        socket.unlink(missing_ok=True)
        gateway.close()
        store.close()
