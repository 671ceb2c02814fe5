"""Runs ninja on upstream's files: progress from its counters, and of a failure the one command and its first error."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sm120_wheels.errors import CompileError, CompilerKilledError, Sm120Error
from sm120_wheels.files import no_space
from sm120_wheels.process import describe_status, run

_STATUS = re.compile(r"^\[(\d+)/(\d+)\] ")
_ERROR = re.compile(r"(?:\berror\b\s*:?|\bfatal\b|undefined reference|cannot find -l)", re.IGNORECASE)
#: nvcc says the first of a part that died (cicc, ptxas), gcc the second of cc1plus; 137 is how a shell says SIGKILL.
_KILLED = re.compile(
    r"died due to signal|Killed signal terminated program|\[code=(?:137|-9|143)\]|^Killed$", re.MULTILINE
)
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_SHOWN_ERRORS = 6


@dataclass(kw_only=True)
class _Reader:
    """Picks from ninja's output what belongs to the first failed command."""

    on_progress: Callable[[int, int], None] | None
    on_line: Callable[[str], None] | None
    failed: list[str] = field(default_factory=list)
    _within: bool = False
    _over: bool = False

    def __call__(self, line: str) -> None:
        if self.on_line:
            self.on_line(line)
        status = _STATUS.match(line)
        if status:
            if self.on_progress:
                self.on_progress(int(status.group(1)), int(status.group(2)))
            self._close()
        elif line.startswith("ninja: "):
            self._close()
        elif line.startswith("FAILED: ") and not self._over:
            self._within = True
        if self._within:
            self.failed.append(line)

    def _close(self) -> None:
        if self._within:
            self._within, self._over = False, True


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

    ``on_progress`` gets steps done and steps of this run, links included. Raises :class:`CompileError` with the
    failing command and its first errors, :class:`CompilerKilledError` where the compiler died from a signal,
    :class:`ToolMissingError` where ``env`` has no ninja on its PATH.
    """
    reader = _Reader(on_progress=on_progress, on_line=on_line)
    done = run(
        ["ninja", "-C", folder, "-f", ninja_file, "-j", str(jobs)],
        env={**env, "NINJA_STATUS": "[%f/%t] "},
        log=log,
        on_line=reader,
        check=False,
    )
    if not done.ok:
        raise failure(reader.failed or done.output.splitlines(), status=describe_status(done.returncode), log=log)


def failure(lines: list[str], *, status: str, log: Path) -> Sm120Error:
    """The error for ninja's report of one failed command: ``FAILED: target``, the command, then what it printed."""
    text = "\n".join(lines)
    target = lines[0].split()[-1] if lines and lines[0].startswith("FAILED: ") else ""
    what = f"flashinfer module {Path(target).parent.name}" if target else "flashinfer"
    command = lines[1] if target and len(lines) > 1 else ""
    body = lines[2:] if target else lines
    hint = f"the whole output is in {log}"
    if _NO_SPACE.search(text):
        return no_space(Path(target) if target else log)
    errors = [line for line in body if _ERROR.search(line)][:_SHOWN_ERRORS] or body[-_SHOWN_ERRORS:]
    if _KILLED.search(text):
        return CompilerKilledError(
            f"the compiler was killed while it worked on {what}",
            where=command,
            why="\n".join(errors) or "most often the kernel's out-of-memory killer",
            hint=f"give the build fewer --jobs or a smaller --memory and run again, finished files are kept; {hint}",
        )
    return CompileError(f"{what} does not compile ({status})", where=command, why="\n".join(errors), hint=hint)
