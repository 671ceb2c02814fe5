"""Runs ninja on upstream's files; compile/failure.py reads its failures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sm120_wheels.compile.failure import as_error, first_failure
from sm120_wheels.compile.isolation import no_network_prefix
from sm120_wheels.process import run


def run_ninja(
    *,
    ninja_file: Path,
    folder: Path,
    env: Mapping[str, str],
    jobs: int,
    log: Path,
) -> None:
    """Build everything in ``ninja_file``; what an earlier run finished (its log lies in ``folder``) is not repeated.

    Raises CompileError with the failing command and its first errors, CompilerKilledError where the compiler died from
    a signal, NoSpaceError, and ToolMissingError where ``env`` has no ninja on its PATH.
    """
    # first_failure must see this run alone: the log may hold the failure of an earlier one.
    start = log.stat().st_size if log.exists() else 0

    done = run(
        [*no_network_prefix(), "ninja", "-C", folder, "-f", ninja_file, "-j", str(jobs)],
        env={**env, "NINJA_STATUS": "[%f/%t] "},
        log=log,
        check=False,
    )
    if not done.ok:
        with log.open("rb") as stream:
            stream.seek(start)
            lines = stream.read().decode("utf-8", "replace").splitlines()
        raise as_error(first_failure(lines), log=str(log))
