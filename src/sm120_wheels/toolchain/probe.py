"""What is true of this machine, gathered once for ``sm120 doctor``. Nothing is judged, installed or downloaded here."""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels import process
from sm120_wheels.arch import Arch
from sm120_wheels.compile import budget
from sm120_wheels.compile.profile import read_profile, shipped_profile
from sm120_wheels.errors import Sm120Error
from sm120_wheels.gpus import Gpu, find_gpus
from sm120_wheels.recipe import load, names
from sm120_wheels.toolchain import numa
from sm120_wheels.toolchain.cuda import index_releases, nvcc_version, system_toolkits
from sm120_wheels.toolchain.hostcc import CompilerLimits, HostCompiler, find_host_compiler, read_limits
from sm120_wheels.toolchain.interpreters import Interpreter, all_interpreters

#: Without a limit, compiles may hold all but the reserve that compile/budget.py keeps for the rest of the machine.
_UNLIMITED = 0.8


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The filesystem that a folder is on, or would be on. In bytes."""

    folder: Path
    free: int
    writable: bool


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """A CUDA toolkit on this machine. ``source`` says what named it, or that it is one of ours."""

    root: Path
    version: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the checks look at. Memory in bytes."""

    machine: str
    cores: int
    memory_total: int
    memory_budget: int
    """What all compiles together may hold if nothing else ran."""
    memory_limited: bool
    """Whether a container's or cgroup's limit makes it less than the machine has."""
    largest_units: dict[str, int]
    """Recipe → the memory that its largest measured translation unit needs."""
    cache: Disk
    build: Disk
    glibc: str
    """``2.36``; empty for another C library."""
    compiler: HostCompiler | None
    compiler_problem: str
    limits: CompilerLimits | None
    """Of the toolkit in question; None where none is here yet to read them from."""
    pythons: tuple[Interpreter, ...]
    toolkits: tuple[Toolkit, ...]
    index_releases: tuple[str, ...]
    numa: Path | None
    """The folder of numa.h."""
    git: str
    gpus: tuple[Gpu, ...]
    gpu_problem: str
    root: bool
    package_manager: str
    """``apt-get``, ``dnf``, ``zypper``, ``apk`` or empty."""


def probe_machine(*, cuda: str, cache_root: Path, build_root: Path) -> Facts:
    """Gather the facts; ``cuda`` is the release (major.minor) whose compiler limits matter."""
    toolkits = (*_own_toolkits(cache_root), *_system_toolkits())
    limits = next((read_limits(t.root / "include") for t in toolkits if _release(t.version) == cuda), None)
    compiler, problem = _compiler()
    memory = budget.measure()
    manager = numa.find_manager()
    libnuma = numa.find_numa(Path("/"))
    gpus, gpu_problem = find_gpus({})
    return Facts(
        machine=platform.machine(),
        cores=memory.cores,
        memory_total=budget.memory_info()[0],
        memory_budget=memory.ceiling,
        memory_limited=memory.ceiling < budget.memory_info()[0] * _UNLIMITED,
        largest_units=_largest_units(),
        cache=_disk(cache_root),
        build=_disk(build_root),
        glibc=platform.libc_ver()[1] if platform.libc_ver()[0] == "glibc" else "",
        compiler=compiler,
        compiler_problem=problem,
        limits=limits,
        pythons=tuple(all_interpreters()),
        toolkits=toolkits,
        index_releases=tuple(index_releases()),
        numa=libnuma[0] if libnuma else None,
        git=_git(),
        gpus=tuple(gpus),
        gpu_problem=gpu_problem,
        root=os.geteuid() == 0,
        package_manager=manager.program if manager else "",
    )


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _own_toolkits(cache_root: Path) -> list[Toolkit]:
    """Toolkits that builds have assembled before, one for each nvcc version."""
    found = {}
    for nvcc in sorted((cache_root / "cuda").glob("[0-9]*.[0-9]*-*/bin/nvcc")):
        version = nvcc_version(nvcc)[1]
        found[version] = Toolkit(root=nvcc.parent.parent, version=version, source="assembled by an earlier build")
    return list(found.values())


def _system_toolkits() -> list[Toolkit]:
    found = []
    for root, source in system_toolkits():
        try:
            found.append(Toolkit(root=root, version=nvcc_version(root / "bin" / "nvcc")[1], source=source))
        except Sm120Error as exc:
            found.append(Toolkit(root=root, version="", source=f"{source}, but it does not run: {exc.why or exc.what}"))
    return found


def _compiler() -> tuple[HostCompiler | None, str]:
    """The compiler that a build would take if nvcc accepted every version, or why there is none."""
    try:
        return find_host_compiler(None, limits=CompilerLimits(gcc=None, clang=None), nvcc_version=""), ""
    except Sm120Error as exc:
        return None, exc.what


def _largest_units() -> dict[str, int]:
    largest = {}
    for name in names():
        recipe = load(name)
        arch = Arch.parse(recipe.architectures.default)
        path = shipped_profile(name, recipe.default_version, f"sm{arch.number}")
        if path is not None:
            largest[name] = max(unit.peak for unit in read_profile(path).units.values())
    return largest


def _disk(folder: Path) -> Disk:
    probe = folder
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    return Disk(folder=folder, free=shutil.disk_usage(probe).free, writable=os.access(probe, os.W_OK | os.X_OK))


def _git() -> str:
    try:
        found = re.search(r"\d+(\.\d+)+", process.run(["git", "--version"], check=False).output)
    except Sm120Error:
        return ""
    return found.group(0) if found else ""
