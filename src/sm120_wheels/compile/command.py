"""What a compiler command line says: source, output, targets, threads and include folders.

It reads command lines of nvcc, gcc and clang (behind ccache or sccache too) and the response files they name. It runs
nothing and predicts nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SOURCE_SUFFIXES = frozenset({".cu", ".cc", ".cpp", ".cxx", ".c", ".c++", ".C", ".s", ".S"})
#: Programs whose own processes do not do the work (a server of theirs does).
_PROXIES = frozenset({"sccache", "distcc", "icecc"})
_WRAPPERS = _PROXIES | {"ccache", "sm120-cc-run"}
#: Folders are named by links there, so that a cache sees the same names on every machine (compile/cache/front.py).
_LINKS = "/.sm120-roots/"
_WITH_VALUE = frozenset(
    {"-o", "-I", "-isystem", "-iquote", "-MF", "-MT", "-MQ", "-x", "-D", "-U", "-include", "-Xcompiler", "-ccbin"}
    | {"-Xptxas", "-Xcudafe", "-Xfatbin", "-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code"}
    | {"--threads", "-t", "--split-compile", "-std", "--std", "--compiler-options", "--dependency-output"}
    | {"--options-file", "-optf", "--maxrregcount", "-maxrregcount", "--diag-suppress", "-diag-suppress", "-L", "-l"}
)
_TARGET = re.compile(r"(?:sm|compute|lto)_(\d+[af]?)")
#: Flags that change how much memory or time the same source takes: optimisation, debug information, relocatable code.
_MATTERS = re.compile(
    r"-(?:O\w*|g|G|lineinfo|-device-debug|rdc=.*|-relocatable-device-code=.*|flto.*|dlto|fsanitize=.*)"
)
_RESPONSE_DEPTH = 4


@dataclass(frozen=True, kw_only=True)
class CompileCommand:
    """One compile. ``source`` is absolute, or empty where the command line names none (a link, a version query)."""

    compiler: str
    source: str
    output: str
    targets: tuple[str, ...]
    """GPU targets with machine code or PTX, e.g. ``("120a",)``; empty for host code."""
    threads: int
    """How many targets nvcc compiles at once."""
    include_folders: tuple[str, ...]
    variant: str
    """Eight hex digits of the flags that change the cost of the same source."""
    elsewhere: bool = False
    """A server or another machine compiles: what is seen of it here teaches nothing."""

    @property
    def parallel(self) -> int:
        """Compiler processes at once: never more than there are targets. 0 threads means all targets at once."""
        count = max(1, len(self.targets))
        return count if self.threads == 0 else max(1, min(self.threads, count))


def parse(argv: Sequence[str], cwd: str) -> CompileCommand:
    """Read a command line. Never fails: what is not understood is left out."""
    arguments = list(argv)
    elsewhere = False
    while len(arguments) > 1 and Path(arguments[0]).name in _WRAPPERS:
        elsewhere = elsewhere or Path(arguments[0]).name in _PROXIES
        del arguments[0]
    compiler = arguments[0] if arguments else ""
    source, output, folders, targets, kept = "", "", [], set(), []
    threads = 1
    pending = iter(_expanded(arguments[1:], Path(cwd), depth=0))
    for argument in pending:
        name, value = _split(argument)
        if name in _WITH_VALUE and value is None:
            value = next(pending, "")
        if name == "-o":
            output = _absolute(value or "", cwd)
        elif name in ("-I", "-isystem", "-iquote"):
            folders.append(_absolute(value or "", cwd))
        elif name in ("-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code"):
            targets.update(_targets(value or ""))
        elif name in ("--threads", "-t", "--split-compile"):
            threads = max(threads, int(value)) if value and value.isdigit() and value != "0" else 0
        elif not name.startswith("-") and Path(name).suffix in _SOURCE_SUFFIXES:
            source = _absolute(name, cwd)
        elif _MATTERS.fullmatch(argument):
            kept.append(argument)
    return CompileCommand(
        compiler=compiler,
        source=source,
        output=output,
        targets=tuple(sorted(targets)),
        threads=threads,
        include_folders=tuple(dict.fromkeys(folders)),
        variant=hashlib.sha256("\0".join(sorted(set(kept))).encode()).hexdigest()[:8],
        elsewhere=elsewhere,
    )


def _split(argument: str) -> tuple[str, str | None]:
    """``-I/x`` → (-I, /x); ``--threads=2`` → (--threads, 2); ``-c`` → (-c, None)."""
    for short in ("-isystem", "-iquote", "-I", "-o", "-t"):
        if argument.startswith(short) and len(argument) > len(short) and (short != "-t" or argument[2:].isdigit()):
            return short, argument[len(short) :].lstrip("=")
    if argument.startswith("-") and "=" in argument:
        name, _, value = argument.partition("=")
        return (name, value) if name in _WITH_VALUE else (argument, None)
    return argument, None


def _targets(text: str) -> set[str]:
    """Each target once, whether as machine code or as PTX: ``arch=compute_120a,code=[sm_120a,compute_120a]`` is one."""
    codes = text.partition("code=")[2] or text
    return {match.group(1) for match in _TARGET.finditer(codes)}


def _expanded(arguments: Sequence[str], cwd: Path, depth: int) -> list[str]:
    result: list[str] = []
    pending = iter(arguments)
    for argument in pending:
        file = ""
        if argument.startswith("@"):
            file = argument[1:]
        elif argument in ("--options-file", "-optf"):
            file = next(pending, "")
        elif argument.startswith("--options-file="):
            file = argument.partition("=")[2]
        if not file:
            result.append(argument)
        elif depth < _RESPONSE_DEPTH:
            result.extend(_expanded(_read_response(cwd / file), cwd, depth + 1))
    return result


def _read_response(path: Path) -> list[str]:
    try:
        return shlex.split(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return []  # the compiler will say what is wrong with it


def _absolute(path: str, cwd: str) -> str:
    if not path:
        return ""
    whole = str(Path(cwd, path))
    return os.path.realpath(whole) if _LINKS in whole else whole
