"""What launchers, sessions and the broker say to each other, and where they meet.

One packet of a SOCK_SEQPACKET unix socket is one message: fields ``name=value``, each ended by NUL; ``arg`` repeats.
The launcher's side is in launcher.c.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels import paths
from sm120_wheels.compile import sampling

MESSAGE_MAX = 1 << 20
#: Raised with every change of the messages: an old broker is then not found by new launchers.
_NAME = "broker-2"
#: sun_path holds 108 bytes with its NUL; the launcher puts endings behind it only for files.
_SOCKET_MAX = 100


@dataclass(frozen=True, kw_only=True)
class Message:
    fields: dict[str, str]
    arguments: tuple[str, ...]

    def number(self, name: str) -> int:
        """A field as a number; 0 where it is missing or no number."""
        text = self.fields.get(name, "")
        return int(text) if text.lstrip("-").isdigit() else 0


def decode(packet: bytes) -> Message:
    fields: dict[str, str] = {}
    arguments: list[str] = []
    for raw in packet.split(b"\0"):
        name, separator, value = raw.decode("utf-8", "surrogateescape").partition("=")
        if not separator:
            continue
        if name == "arg":
            arguments.append(value)
        else:
            fields[name] = value
    return Message(fields=fields, arguments=tuple(arguments))


def encode(fields: dict[str, str], arguments: tuple[str, ...] = ()) -> bytes:
    parts = [f"{name}={value}" for name, value in fields.items()] + [f"arg={a}" for a in arguments]
    return b"".join(part.encode("utf-8", "surrogateescape") + b"\0" for part in parts)


def owner_text() -> str:
    """This process, as the owner of a build: its number and its start time, which together are never used again."""
    return f"{os.getpid()}.{sampling.start_ticks(os.getpid())}"


def parse_owner(text: str) -> tuple[int, int] | None:
    """(pid, start time in clock ticks), or None for anything else."""
    pid, _, ticks = text.partition(".")
    return (int(pid), int(ticks)) if pid.isdigit() and ticks.isdigit() else None


def socket_path(root: Path | None = None) -> Path:
    """Where this user's broker on this host listens.

    Below the runtime folder, or, where that path is too long for a socket or holds a space, below the temporary
    folder in a folder that only this user can enter.
    """
    base = paths.runtime_root() if root is None else root
    path = base / _NAME
    if len(os.fsencode(path)) <= _SOCKET_MAX and not any(c.isspace() for c in str(path)):
        return path
    digest = hashlib.sha256(os.fsencode(base)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"sm120-{os.getuid()}-{digest}" / _NAME


def connect(path: Path, *, timeout_s: float = 5.0) -> socket.socket:
    """A connection to the broker; OSError when there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(timeout_s)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MESSAGE_MAX)
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other side, as the kernel saw it when it connected (unix(7), SO_PEERCRED)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid
