"""What the tests of compiles share: a project built with a stand-in compiler, a broker of its own, a cgroup."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sm120_wheels.compile.protocol import connect, encode, socket_path
from sm120_wheels.compile.sampling import alive, start_ticks
from sm120_wheels.compile.session import CompileSession
from tests.support.waiting import until

NINJA = shutil.which("ninja") or "ninja"


@dataclass(kw_only=True)
class Runtime:
    """Where a test's broker lives."""

    folder: Path

    @property
    def socket(self) -> Path:
        return socket_path(self.folder)

    def status(self) -> dict[str, Any] | None:
        try:
            with connect(self.socket, timeout_s=60) as connection:
                connection.send(encode({"state": "status"}))
                return dict(json.loads(connection.recv(1 << 20)))
        except (OSError, ValueError):
            return None

    def broker_pid(self) -> int | None:
        status = self.status()
        return None if status is None else int(status["pid"])

    def stop_broker(self) -> None:
        """End the broker, and wait until it is gone."""
        pid = self.broker_pid()
        if pid is not None:
            ticks = start_ticks(pid)
            with contextlib.suppress(ProcessLookupError):  # idle, it has ended by itself
                os.kill(pid, signal.SIGTERM)
            until(lambda: not alive(pid, ticks), what="the broker ends")


@dataclass(kw_only=True)
class Project:
    """Sources for the stand-in compiler and a build.ninja. ``units``: name → (MiB, milliseconds)."""

    folder: Path
    fakecc: Path
    units: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(
        self, name: str, mb: int, ms: int, *, fail: int = 0, gate: Path | None = None, tail_gate: Path | None = None
    ) -> Path:
        source = self.folder / "csrc" / "k" / name
        source.parent.mkdir(parents=True, exist_ok=True)
        line = f"// mb={mb} ms={ms} fail={fail}" + (f" gate={gate}" if gate else "")
        line += f" tail_gate={tail_gate}" if tail_gate else ""
        source.write_text(line + "\n")
        self.units[name] = (mb, ms)
        return source

    def write(self, launcher: str = "") -> None:
        rule = f"rule cc\n  command = {launcher} {self.fakecc} -c $in -o $out\n"
        edges = "".join(f"build {name}.o: cc csrc/k/{name}\n" for name in self.units)
        (self.folder / "build.ninja").write_text(rule + edges)

    def profile(self, scale: float = 1.0) -> Path:
        path = self.folder / "profile.csv"
        rows = [f"csrc/k/{n},{max(1, round(mb * scale))},{max(ms, 10) / 1000}" for n, (mb, ms) in self.units.items()]
        path.write_text("source,peak_mib,seconds\n" + "\n".join(rows) + "\n")
        return path

    def ninja(
        self, *arguments: str, env: Mapping[str, str] | None = None, preexec: Callable[[], None] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [NINJA, *arguments],
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=preexec,
        )

    def objects(self) -> set[str]:
        return {p.name.removesuffix(".o") for p in self.folder.glob("*.o")}


@dataclass(kw_only=True)
class Cgroup:
    """A memory cgroup with a hard limit. ``enter`` is run in a child before it executes."""

    folder: Path
    kills: Path

    def enter(self) -> None:
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def oom_kills(self) -> int:
        words = dict(line.split()[:2] for line in self.kills.read_text().splitlines())
        return int(words["oom_kill"])


def build(project: Project, session: CompileSession, *arguments: str) -> str:
    """Run ninja to a good end and return what it said."""
    project.write(session.launcher[0])
    process = project.ninja(f"-j{session.ninja_jobs}", *arguments, env=session.environment)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def start(project: Project, session: CompileSession, name: str) -> subprocess.Popen[bytes]:
    """Compile one file of the project as a build tool would, in a process group of its own."""
    source = project.folder / "csrc" / "k" / name
    return subprocess.Popen(
        [*session.launcher, str(project.fakecc), "-c", str(source), "-o", str(project.folder.parent / f"{name}.o")],
        env={**os.environ, **session.environment},
        start_new_session=True,
    )


def recorded(session: CompileSession, text: str) -> bool:
    return session.records.exists() and text in session.records.read_text()
