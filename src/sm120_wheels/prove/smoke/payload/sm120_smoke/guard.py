"""Sees what a case must not do: start a compiler, compile at run time, use the network.

Python's audit events tell of every program that Python starts; what native code starts shows in the resource use of
the process's children, and NVRTC in the libraries that are mapped. A compiler is refused as if it were not installed,
and noted, so that a library which swallows the error still costs the case.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shlex
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sm120_smoke import nvrtc

_COMPILERS = re.compile(
    r"^(?:[\w.+]+-)*(?:nvcc|cicc|ptxas|nvlink|fatbinary|cudafe\+\+|bin2c|ninja|make|cmake|gcc|g\+\+|cc|c\+\+|cc1plus"
    r"|clang|clang\+\+|icpx|tileiras)(?:-[\d.]+)?$"
)
_ASKING = frozenset({"--version", "-V", "--help", "-dumpversion", "-dumpmachine", "-dumpfullversion"})
_STARTS = frozenset({"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.spawn"})
#: NVRTC opens this library of its own when it compiles, and not before.
_NVRTC = "libnvrtc-builtins"
_PTX_JIT = "libnvidia-ptxjitcompiler"


class Guard:
    """What was attempted since :meth:`begin`. One for each process: audit hooks cannot be taken away."""

    def __init__(self) -> None:
        self.attempts: list[str] = []
        self.notes: list[str] = []
        self.active = False
        self._children = (0, 0)
        self._started = 0
        self._refused = 0
        self._mapped: frozenset[str] = frozenset()
        self._always = False
        self._door = nvrtc.Door()
        sys.addaudithook(self._hook)

    def begin(self) -> None:
        self.attempts, self.notes, self._started = [], [], 0
        self._children, self._mapped, self._refused = _children(), mapped_compilers(), self._door.attempts
        self._door.close()
        self.active = True

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """What runs in the block is not the wheel's: torch itself compiles some functions by NVRTC."""
        self._look()
        self._door.open()
        try:
            yield
        finally:
            self._mapped = mapped_compilers()
            self._door.close()

    def end(self) -> list[str]:
        """Stop, and say what was attempted."""
        self.active = False
        self._door.open()
        if not self._started and _children() != self._children:
            self.attempts.append("a program was started by native code (child processes used CPU time)")
        self._look()
        return self.attempts

    def _look(self) -> None:
        new = mapped_compilers() - self._mapped
        self._mapped |= new
        if self._door.attempts > self._refused:
            self._refused = self._door.attempts
            self.attempts.append("NVRTC compiled at run time (it was refused)")
        if _NVRTC in new:
            self.attempts.append(f"NVRTC compiled at run time ({_NVRTC} was loaded)")
        if _PTX_JIT in new:
            self.notes.append(f"the driver compiled PTX ({_PTX_JIT} was loaded)")

    def settle(self) -> str:
        """After everything is imported: a note where NVRTC cannot be watched, because importing loaded it already."""
        self._always = _NVRTC in mapped_compilers()
        why = self._door.find() if self._always else ""
        return f"NVRTC cannot be watched: importing the packages loads {_NVRTC}, and {why}" if why else ""

    @property
    def blind(self) -> bool:
        """Whether a case loaded NVRTC: what it compiles from here on would not be seen, in a new process it would."""
        return _NVRTC in self._mapped and not self._always

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "socket.connect":
            self._connect(arguments)
        if event not in _STARTS:
            return
        self._started += 1
        words = _words(event, arguments)
        compilers = [w for w in words if _COMPILERS.match(w.rpartition("/")[2])]
        if not compilers:
            return
        compiler = compilers[0]
        given = [w for w in words[words.index(compiler) :] if w not in compilers]
        if not given or not _ASKING.issuperset(given):
            self.attempts.append(f"it started a compiler: {' '.join(words)[:300]}")
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), compiler)

    def _connect(self, arguments: tuple[Any, ...]) -> None:
        address = arguments[1] if len(arguments) > 1 else ""
        if isinstance(address, tuple) and address and str(address[0]) not in ("127.0.0.1", "::1", "localhost"):
            self.attempts.append(f"it used the network: {address[0]}")


def _words(event: str, arguments: tuple[Any, ...]) -> list[str]:
    """The program and its arguments, a shell's line taken apart."""
    given: list[Any] = []
    for argument in arguments[1:3] if event == "os.spawn" else arguments[:2]:
        given += list(argument) if isinstance(argument, (list, tuple)) else [argument]
    texts = [os.fsdecode(g) if isinstance(g, (str, bytes, os.PathLike)) else str(g) for g in given if g is not None]
    words: list[str] = []
    for text in texts:
        try:
            words += shlex.split(text) if " " in text else [text]
        except ValueError:
            words += text.split()
    return words


def _children() -> tuple[int, int]:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_minflt, used.ru_nvcsw


def mapped_compilers() -> frozenset[str]:
    """Which of the run-time compilers this process has mapped."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    return frozenset(name for name in (_NVRTC, _PTX_JIT) if name in text)


def loopback_up() -> bool:
    """Bring the loopback interface up (a new network namespace has it down). False where that is not allowed."""
    import fcntl
    import struct

    get_flags, set_flags, up = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP: linux/sockios.h, net/if.h
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            answer = fcntl.ioctl(s, get_flags, struct.pack("16sh14x", b"lo", 0))
            flags = struct.unpack("16sh14x", answer)[1]
            if not flags & up:
                fcntl.ioctl(s, set_flags, struct.pack("16sh14x", b"lo", flags | up))
    except OSError:
        return False
    return True


def interfaces() -> Iterable[str]:
    """The network interfaces this process sees."""
    return sorted(name for _, name in socket.if_nameindex())
