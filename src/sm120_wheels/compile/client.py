"""What the broker remembers of one connection: a launcher, or somebody who asks for the status."""

from __future__ import annotations

import enum
import errno
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sm120_wheels.compile.command import CompileCommand, parse
from sm120_wheels.compile.envelope import Envelope
from sm120_wheels.compile.knowledge import Origin
from sm120_wheels.compile.predict import Prediction
from sm120_wheels.compile.task import Tail


class Stage(enum.Enum):
    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    #: The launcher is dead, parts of its compile are not.
    LINGERING = "lingering"
    DONE = "done"


@dataclass(kw_only=True)
class Client:
    """Times in seconds of the monotonic clock, those ending in ``_at`` since the epoch; memory in bytes."""

    connection: socket.socket
    pid: int
    folders: tuple[Path, ...]
    stage: Stage = Stage.NEW
    uid: str = ""
    command: CompileCommand = field(default_factory=lambda: parse((), "/"))
    origin: Origin = field(default_factory=Origin)
    prediction: Prediction = field(
        default_factory=lambda: Prediction(memory=0, expected=0, seconds=0.0, basis="default")
    )
    records: str = ""
    owner: tuple[int, int] | None = None
    """The process of the build that it belongs to, and its start time in clock ticks; None where it said nothing."""
    memory_cap: int | None = None
    cores_cap: int | None = None
    attempt: int = 0
    arrived: float = 0.0
    arrived_at: float = 0.0
    waiting_since: float = 0.0
    started: float = 0.0
    lost: float = 0.0
    claim: int = 0
    """What it waits for; the prediction's memory, or more after a kill."""
    reserved: int = 0
    used: int = 0
    envelope: Envelope = field(default_factory=Envelope)
    kills_before: int = 0
    group: int | None = None
    processes: dict[int, int] = field(default_factory=dict)
    resumed: bool = False
    """It ran before this broker did: what it held before is not known."""
    failed: bool = False
    """Its file did not compile."""

    @property
    def tail(self) -> Tail | None:
        """What is reserved for it past its peak. A compile that was killed once, or that ran under another broker,
        holds all until it ends."""
        return None if self.attempt or self.resumed else self.prediction.tail

    def send(self, packet: bytes) -> None:
        """Say something, without waiting. What cannot be said is dropped: a lost peer is noticed when it is read
        from."""
        try:
            self.connection.send(packet)
        except BlockingIOError:
            return  # a full buffer means that it does not read; a ping or a status is not worth waiting for
        except OSError as exc:
            if exc.errno not in (errno.EPIPE, errno.ECONNRESET, errno.EBADF, errno.EMSGSIZE):
                raise

    def summary(self, now: float, *, held: int | None = None) -> dict[str, Any]:
        """``held``: what is reserved for it now, for one that runs."""
        return {
            "uid": self.uid,
            "source": self.command.source or self.command.output or self.command.compiler,
            "package": self.origin.package,
            "session": self.origin.session,
            "pid": self.pid,
            "stage": self.stage.value,
            "attempt": self.attempt,
            "needs": self.claim if held is None else held,
            "used": self.used,
            "expected_s": round(self.prediction.seconds, 1),
            "tail": asdict(self.tail) if self.tail else None,
            "basis": self.prediction.basis,
            "for_s": round(now - (self.arrived if self.stage is Stage.WAITING else self.started), 1),
        }
