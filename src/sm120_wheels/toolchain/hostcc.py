"""The host C++ compiler: which one, its version, and whether a given nvcc accepts it.

The limits are read from the toolkit's own ``crt/host_config.h``, so they are right for every CUDA version.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sm120_wheels import process
from sm120_wheels.errors import HostCompilerError, Sm120Error

#: The newest gcc major looked for as g++-N when the default one is too new.
_NEWEST_GCC = 20


@dataclass(frozen=True, kw_only=True)
class HostCompiler:
    """A C++ compiler that was started and asked."""

    path: Path
    kind: Literal["gcc", "clang"]
    version: str
    """``12.2.0``."""
    chosen_by: str
    """What named it: ``--host-compiler``, an environment variable, or ``PATH``."""

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


@dataclass(frozen=True, kw_only=True)
class CompilerLimits:
    """The newest major versions that an nvcc accepts; None where its header names no limit."""

    gcc: int | None
    clang: int | None

    def newest(self, kind: Literal["gcc", "clang"]) -> int | None:
        return self.gcc if kind == "gcc" else self.clang


def read_limits(include_dir: Path) -> CompilerLimits:
    """The limits of a toolkit, from the messages in its ``crt/host_config.h``."""
    header = include_dir / "crt" / "host_config.h"
    text = header.read_text(encoding="utf-8", errors="replace") if header.is_file() else ""
    return parse_limits(text)


def parse_limits(text: str) -> CompilerLimits:
    """Read ``gcc versions later than 15 are not supported`` and ``clang version must be less than 21``."""
    gcc = re.search(r"gcc versions later than (\d+)", text)
    clang = re.search(r"unsupported clang version! clang version must be less than (\d+)", text)
    return CompilerLimits(gcc=int(gcc.group(1)) if gcc else None, clang=int(clang.group(1)) - 1 if clang else None)


def probe_compiler(path: Path, *, chosen_by: str) -> HostCompiler | None:
    """Start a compiler and ask for its predefined macros; None where it is not a working gcc or clang for C++."""
    try:
        finished = process.run([path, "-dM", "-E", "-x", "c++", "/dev/null"], check=False)
    except Sm120Error:
        return None
    macros = dict(re.findall(r"^#define (\w+) (.*)$", finished.output, re.M))
    if not finished.ok or "__GNUC__" not in macros:
        return None
    prefix = "__clang_{}__" if "__clang_major__" in macros else "__GNUC{}__"
    parts = ("major", "minor", "patchlevel") if "__clang_major__" in macros else ("", "_MINOR", "_PATCHLEVEL")
    version = ".".join(macros.get(prefix.format(part), "0") for part in parts)
    return HostCompiler(
        path=path, kind="clang" if "__clang_major__" in macros else "gcc", version=version, chosen_by=chosen_by
    )


def accepts(limits: CompilerLimits, compiler: HostCompiler) -> bool:
    """Whether an nvcc with these limits takes this compiler."""
    newest = limits.newest(compiler.kind)
    return newest is None or compiler.major <= newest


def find_host_compiler(
    explicit: Path | None, *, limits: CompilerLimits, nvcc_version: str, environ: Mapping[str, str] | None = None
) -> HostCompiler:
    """The compiler that nvcc, CMake and torch shall all use.

    The one asked for (option, then ``NVCC_CCBIN``, ``CUDAHOSTCXX``, ``CXX``) must be accepted by this nvcc. Where
    nobody asked, g++ on PATH, or if that is too new the newest g++-N beside it that is accepted. Raises
    :class:`HostCompilerError`.
    """
    environ = os.environ if environ is None else environ
    search = environ.get("PATH", os.defpath)
    asked = _asked(explicit, environ, search)
    if asked is not None:
        if not accepts(limits, asked):
            raise refused(asked, limits, nvcc_version)
        return asked
    default: HostCompiler | None = None
    names = ["g++", "c++", *(f"g++-{major}" for major in range(limits.gcc or _NEWEST_GCC, 8, -1)), "clang++"]
    for name in names:
        found = shutil.which(name, path=search)
        compiler = probe_compiler(Path(found), chosen_by="PATH") if found else None
        if compiler is not None and accepts(limits, compiler):
            return compiler
        default = default or compiler
    if default is not None:
        raise refused(default, limits, nvcc_version)
    raise HostCompilerError(
        "there is no C++ compiler on this machine",
        why="looked on PATH for g++, c++, g++-N and clang++",
        hint="install one: apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora, RHEL)",
    )


def _asked(explicit: Path | None, environ: Mapping[str, str], search: str) -> HostCompiler | None:
    named = [("--host-compiler", str(explicit) if explicit else "")]
    named += [(name, environ.get(name, "")) for name in ("NVCC_CCBIN", "CUDAHOSTCXX", "CXX")]
    for source, value in named:
        if not value:
            continue
        # CXX may hold a launcher and options ("ccache g++ -m64"): the compiler is its last word that is a program.
        words = [w for w in (shutil.which(word, path=search) for word in value.split() if word[0] != "-") if w]
        found = words[-1] if words else None
        compiler = probe_compiler(Path(found), chosen_by=source) if found else None
        if compiler is None:
            raise HostCompilerError(
                f"{value} is not a working C++ compiler", where=source, hint="name a g++ or clang++, or unset it"
            )
        return compiler
    return None


def refused(compiler: HostCompiler, limits: CompilerLimits, nvcc_version: str) -> HostCompilerError:
    """The error for a compiler that is newer than this nvcc accepts."""
    newest = limits.newest(compiler.kind)
    package = f"g++-{newest}" if compiler.kind == "gcc" else f"clang-{newest}"
    program = f"g++-{newest}" if compiler.kind == "gcc" else f"clang++-{newest}"
    mend = f"apt-get install {package}"
    mend += f" (Debian, Ubuntu) or dnf install gcc{newest}-c++ (Fedora)" if compiler.kind == "gcc" else ""
    return HostCompilerError(
        f"{compiler.kind} {compiler.version} is too new for nvcc {nvcc_version}",
        where=f"{compiler.path} (from {compiler.chosen_by})",
        why=f"this nvcc accepts {compiler.kind} up to {newest} (its crt/host_config.h says so)",
        hint=f"{mend}, then pass --host-compiler {program} or set CXX={program}",
    )
