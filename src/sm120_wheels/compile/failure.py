"""Find out of a long build log what failed first: the command, its first errors, and whether it was killed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sm120_wheels.errors import CompileError, CompilerKilledError, ConfigureError, NoSpaceError, Sm120Error

_ERROR_LINE = re.compile(
    r"(\berror\b\s*[:#]|\): error|fatal error|undefined reference|ptxas (fatal|error)|cannot find -l)"
)
_KILLED = re.compile(r"\bKilled\b|died due to signal 9|signal 9\b|Killed signal terminated program|SIGKILL")
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first thing that went wrong in a build."""

    kind: str
    """``configure``, ``compile``, ``killed``, ``space`` or ``unknown``."""
    target: str
    command: str
    errors: tuple[str, ...]


def first_failure(lines: Iterable[str]) -> Failure:
    """Read a log of CMake and ninja. A failing edge of ninja counts before a CMake error, which it may cause."""
    text = list(lines)
    for position, line in enumerate(text):
        if match := re.match(r"\s*FAILED: (?:\[code=-?\d+\] )?(\S+)", line):
            return _edge(match.group(1), text[position + 1 :])
    for position, line in enumerate(text):
        if line.lstrip().startswith("CMake Error"):
            block = [entry.rstrip() for entry in text[position : position + _SHOWN]]
            over = (n for n, entry in enumerate(block) if (n > 2 and not entry.strip()) or entry.startswith("-- "))
            end = next(over, len(block))
            return Failure(
                kind="configure", target="", command="cmake", errors=tuple(e for e in block[:end] if e.strip())
            )
    kind = "space" if any(_NO_SPACE.search(line) for line in text) else "unknown"
    kind = "killed" if kind == "unknown" and any(_KILLED.search(line) for line in text[-40:]) else kind
    return Failure(kind=kind, target="", command="", errors=tuple(line.rstrip() for line in text[-_SHOWN:]))


def _edge(target: str, following: list[str]) -> Failure:
    command = following[0].strip() if following else ""
    output = []
    for line in following[1:]:
        # ninja prints the output of one edge whole; the next status line or its own summary ends it.
        if re.match(r"(\[\d+/\d+\]|ninja: |\s*FAILED: )", line):
            break
        output.append(line.rstrip())
    # gcc and nvcc word the death of one of their parts as an error of their own.
    errors = [line for line in output if _ERROR_LINE.search(line) and not _KILLED.search(line)]
    shown = tuple((errors or output)[:_SHOWN])
    kind = "compile"
    if any(_NO_SPACE.search(line) for line in output):
        kind = "space"
    elif any(_KILLED.search(line) for line in output) and all(_KILLED.search(line) for line in errors):
        kind = "killed"  # g++ and nvcc call it an error too; with any other error, that one comes first
    return Failure(kind=kind, target=target, command=command, errors=shown)


def as_error(failure: Failure, *, log: str) -> Sm120Error:
    """The failure as the error that a user sees. ``log`` is the path of the whole log."""
    why = "\n".join(failure.errors) or "nothing was printed"
    where = _short(failure.command) or log
    see = f"the whole log: {log}"
    if failure.kind == "configure":
        return ConfigureError("CMake cannot configure the package", where=log, why=why, hint=see)
    if failure.kind == "killed":
        return CompilerKilledError(
            f"a compiler was killed{f' on {failure.target}' if failure.target else ''}",
            where=where,
            why=f"{why}\nmost often the kernel's out-of-memory killer (dmesg tells)",
            hint=f"run again with a smaller --jobs or --memory; what is compiled is kept; {see}",
        )
    if failure.kind == "space":
        return NoSpaceError("no disk space left while compiling", where=where, why=why, hint=f"free some room; {see}")
    if failure.kind == "unknown":
        return CompileError("the build failed", where=log, why=why, hint=see)
    return CompileError(f"{failure.target} does not compile", where=where, why=why, hint=see)


def _short(command: str, limit: int = 400) -> str:
    return command if len(command) <= limit else f"{command[: limit // 2]} … {command[-limit // 2 :]}"
