"""Looks at a process that hangs: its native and Python stacks by py-spy, its Python stacks by faulthandler."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PYSPY_S = 30.0
_FAULTHANDLER_S = 2.0


def find_py_spy() -> Path | None:
    """The py-spy that came with our environment, or one on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    if beside.is_file():
        return beside
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("py-spy") or []:
            place = Path(str(file.locate()))
            if file.name == "py-spy" and place.is_file():
                return place
    found = shutil.which("py-spy")
    return Path(found) if found else None


def stacks_of(pid: int, log: Path) -> str:
    """The stacks of a process; ``log`` is where its stderr goes, which faulthandler writes to."""
    text, why = _py_spy(pid)
    if text:
        return text
    return f"(native stacks not available: {why})\n{_faulthandler(pid, log)}"


def _py_spy(pid: int) -> tuple[str, str]:
    program = find_py_spy()
    if program is None:
        return "", "py-spy is not installed"
    why: Sequence[str] = ()
    for options in (["--native"], []):  # without symbols of a library, --native may fail where plain Python stacks work
        try:
            done = subprocess.run(
                [program, "dump", *options, "--pid", str(pid)],
                capture_output=True,
                timeout=_PYSPY_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            return "", f"py-spy: {exc}"
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.decode("utf-8", "replace").strip(), ""
        why = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return "", "py-spy: " + (why[0] if why else "no answer")


def _faulthandler(pid: int, log: Path) -> str:
    """Have the process write its Python stacks itself: a signal handler in C, which runs even in a native loop."""
    before = log.stat().st_size if log.exists() else 0
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return "the process is gone"
    until = time.monotonic() + _FAULTHANDLER_S
    text = ""
    while time.monotonic() < until:
        with log.open("rb") as stream:
            stream.seek(before)
            new = stream.read().decode("utf-8", "replace")
        if new and new == text:
            break
        text = new
        time.sleep(0.05)
    return text.strip() or "no Python stack either: the process does not even take a signal"
