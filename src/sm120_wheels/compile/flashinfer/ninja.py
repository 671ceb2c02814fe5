"""Runs ninja on upstream's files, with progress from its counters; compile/failure.py reads its failures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from sm120_wheels.compile.failure import as_error, first_failure
from sm120_wheels.compile.isolation import no_network_prefix
from sm120_wheels.process import run

_STATUS = re.compile(r"^\[(\d+)/(\d+)\] ")


def run_ninja(
    *,
    ninja_file: Path,
    folder: Path,
    env: Mapping[str, str],
    jobs: int,
    log: Path,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Build everything in ``ninja_file``; what an earlier run finished (its log lies in ``folder``) is not repeated.

    ``on_progress`` gets steps done and steps of this run, links included. Raises CompileError with the failing command
    and its first errors, CompilerKilledError where the compiler died from a signal, NoSpaceError, and
    ToolMissingError where ``env`` has no ninja on its PATH.
    """
    # first_failure must see this run alone: the log may hold the failure of an earlier one.
    start = log.stat().st_size if log.exists() else 0

    def read(line: str) -> None:
        if on_line:
            on_line(line)
        if on_progress and (status := _STATUS.match(line)):
            on_progress(int(status.group(1)), int(status.group(2)))

    done = run(
        [*no_network_prefix(), "ninja", "-C", folder, "-f", ninja_file, "-j", str(jobs)],
        env={**env, "NINJA_STATUS": "[%f/%t] "},
        log=log,
        on_line=read,
        check=False,
    )
    if not done.ok:
        with log.open("rb") as stream:
            stream.seek(start)
            lines = stream.read().decode("utf-8", "replace").splitlines()
        raise as_error(first_failure(lines), log=str(log))
