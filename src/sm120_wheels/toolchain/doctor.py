"""Judge a machine's facts: each check passed, failed, not needed or not run, with the command that mends a failure.

Every check is a function of :class:`~sm120_wheels.toolchain.probe.Facts`; nothing is looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sm120_wheels.compile.budget import GIB, MIB
from sm120_wheels.files import human_bytes
from sm120_wheels.gpus import LEAST_DRIVER
from sm120_wheels.toolchain.cuda import SYSTEM_ONLY
from sm120_wheels.toolchain.hostcc import accepts, refused
from sm120_wheels.toolchain.probe import Disk, Facts

State = Literal["passed", "failed", "not needed", "not run"]

#: A translation unit that includes all of torch's headers peaks at 2.6 GiB with nvcc 13.0 (measured over sgl-kernel).
LEAST_MEMORY = 2700 * MIB
#: Toolkit with libraries (1.7 GB), torch (1.2 GB) and their downloads; measured with CUDA 13.0 and torch 2.11.
CACHE_BYTES = 6 * 10**9
#: Sources, objects and wheels of the largest recipe, with room to spare.
BUILD_BYTES = 10 * 10**9
#: The oldest glibc that nvcc 13 and torch's wheels start on (manylinux_2_28).
LEAST_GLIBC = (2, 28)

_PACKAGES: dict[str, dict[str, str]] = {
    "apt-get": {"c++": "g++", "git": "git", "numa": "libnuma-dev", "python": "python3-dev", "install": "install -y"},
    "dnf": {
        "c++": "gcc-c++",
        "git": "git",
        "numa": "numactl-devel",
        "python": "python3-devel",
        "install": "install -y",
    },
    "zypper": {
        "c++": "gcc-c++",
        "git": "git",
        "numa": "libnuma-devel",
        "python": "python3-devel",
        "install": "install",
    },
    "apk": {"c++": "g++", "git": "git", "numa": "numactl-dev", "python": "python3-dev", "install": "add"},
}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the doctor's answer."""

    name: str
    state: State
    detail: str
    mend: str = ""
    """A command, or what to do; only with ``failed``."""


def examine(facts: Facts, *, cuda: str) -> list[Check]:
    """All checks for building with CUDA ``cuda`` (major.minor), in the order in which a build would meet them."""
    return [
        check_machine(facts),
        check_cores(facts),
        check_memory(facts),
        *check_recipes_memory(facts),
        check_disk("disk for the cache", facts.cache, needed=CACHE_BYTES, variable="SM120_CACHE_DIR"),
        check_disk("disk for builds", facts.build, needed=BUILD_BYTES, variable="SM120_BUILD_DIR"),
        check_glibc(facts),
        check_git(facts),
        check_python(facts),
        check_cuda(facts, cuda=cuda),
        check_compiler(facts, cuda=cuda),
        check_numa(facts),
        Check(name="CMake and ninja", state="not needed", detail="each build gets its locked versions from the index"),
        check_gpu(facts, cuda=cuda),
    ]


def failed(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if check.state == "failed"]


def install_command(facts: Facts, thing: str) -> str:
    """``sudo apt-get install -y g++``, right for this machine's package manager and user."""
    sudo = "" if facts.root else "sudo "
    if facts.package_manager not in _PACKAGES:
        return f"install {_PACKAGES['apt-get'][thing]} (Debian, Ubuntu) or {_PACKAGES['dnf'][thing]} (Fedora, RHEL)"
    words = _PACKAGES[facts.package_manager]
    return f"{sudo}{facts.package_manager} {words['install']} {words[thing]}"


def check_machine(facts: Facts) -> Check:
    if facts.machine in ("x86_64", "aarch64"):
        return Check(name="machine", state="passed", detail=facts.machine)
    return Check(
        name="machine",
        state="failed",
        detail=f"{facts.machine}: CUDA compiles on x86_64 and aarch64 only",
        mend="build on another machine",
    )


def check_cores(facts: Facts) -> Check:
    return Check(name="cores", state="passed", detail=f"{facts.cores} for compiles")


def check_memory(facts: Facts) -> Check:
    """Whether one translation unit with torch's headers fits."""
    detail = f"{facts.memory_budget / GIB:.1f} GiB for compiles, of {facts.memory_total / GIB:.1f} GiB"
    detail += " (a cgroup or container limits it)" if facts.memory_limited else ""
    if facts.memory_budget >= LEAST_MEMORY:
        return Check(name="memory", state="passed", detail=detail)
    return Check(
        name="memory",
        state="failed",
        detail=f"{detail}; a translation unit with torch's headers takes {LEAST_MEMORY / GIB:.1f} GiB",
        mend="give the machine, container or cgroup more memory",
    )


def check_recipes_memory(facts: Facts) -> list[Check]:
    """For each recipe that was measured, whether its largest translation unit fits."""
    checks = []
    for recipe, need in sorted(facts.largest_units.items()):
        fits = need <= facts.memory_budget
        checks.append(
            Check(
                name=f"memory for {recipe}",
                state="passed" if fits else "failed",
                detail=f"its largest translation unit takes {need / GIB:.1f} GiB",
                mend="" if fits else "give the machine, container or cgroup more memory, or build on another machine",
            )
        )
    return checks


def check_disk(name: str, disk: Disk, *, needed: int, variable: str) -> Check:
    detail = f"{human_bytes(disk.free)} free at {disk.folder}"
    if not disk.writable:
        return Check(
            name=name, state="failed", detail=f"{disk.folder} is not writable", mend=f"set {variable} to another folder"
        )
    if disk.free < needed:
        return Check(
            name=name,
            state="failed",
            detail=f"{detail}; {human_bytes(needed)} wanted",
            mend=f"free some room, or set {variable} to a folder on a larger disk",
        )
    return Check(name=name, state="passed", detail=detail)


def check_glibc(facts: Facts) -> Check:
    least = ".".join(map(str, LEAST_GLIBC))
    found = re.fullmatch(r"(\d+)\.(\d+).*", facts.glibc)
    if found and (int(found.group(1)), int(found.group(2))) >= LEAST_GLIBC:
        return Check(name="glibc", state="passed", detail=facts.glibc)
    return Check(
        name="glibc",
        state="failed",
        detail=f"{facts.glibc or 'none (another C library)'}; nvcc and torch need glibc {least}",
        mend="build in a container of a newer distribution that uses glibc",
    )


def check_git(facts: Facts) -> Check:
    if facts.git:
        return Check(name="git", state="passed", detail=facts.git)
    return Check(name="git", state="failed", detail="not installed", mend=install_command(facts, "git"))


def check_python(facts: Facts) -> Check:
    """Whether there is a Python with headers; the detail lists all of 3.10 and later."""
    usable = [python for python in facts.pythons if tuple(map(int, python.minor.split("."))) >= (3, 10)]
    words = [f"{python.version}{'' if python.has_headers else ' (no headers)'}" for python in usable]
    if any(python.has_headers for python in usable):
        return Check(name="Python", state="passed", detail=", ".join(words))
    return Check(
        name="Python",
        state="failed",
        detail=f"no Python 3.10 or later with its headers (found: {', '.join(words) or 'none'})",
        mend=install_command(facts, "python"),
    )


def check_cuda(facts: Facts, *, cuda: str) -> Check:
    """Where CUDA ``cuda`` would come from."""
    here = [f"{t.version or '?'} in {t.root} ({t.source})" for t in facts.toolkits]
    found = "; found here: " + "; ".join(here) if here else "; none found here"
    matching = [t for t in facts.toolkits if t.version.startswith(f"{cuda}.")]
    if cuda in facts.index_releases:
        return Check(
            name=f"CUDA {cuda}", state="passed", detail=f"the package index has it, locked; no toolkit needed{found}"
        )
    if matching:
        return Check(name=f"CUDA {cuda}", state="passed", detail=f"{matching[0].version} in {matching[0].root}")
    dashed = cuda.replace(".", "-")
    return Check(
        name=f"CUDA {cuda}",
        state="failed",
        detail=("the package index lacks its nvcc" if cuda in SYSTEM_ONLY else "no lock for it") + found,
        mend=f"install NVIDIA's package cuda-toolkit-{dashed} or set CUDA_HOME; or build with CUDA"
        f" {facts.index_releases[0] if facts.index_releases else '13.0'}, which needs none",
    )


def check_compiler(facts: Facts, *, cuda: str) -> Check:
    if facts.compiler is None:
        return Check(
            name="C++ compiler", state="failed", detail=facts.compiler_problem, mend=install_command(facts, "c++")
        )
    compiler = facts.compiler
    detail = f"{compiler.kind} {compiler.version} ({compiler.path}, from {compiler.chosen_by})"
    if facts.limits is None:
        return Check(
            name="C++ compiler",
            state="not run",
            detail=f"{detail}; not compared with nvcc {cuda}'s limit, which the first build brings here",
        )
    if not accepts(facts.limits, compiler):
        error = refused(compiler, facts.limits, cuda)
        return Check(name="C++ compiler", state="failed", detail=f"{detail}: {error.why}", mend=error.hint)
    newest = facts.limits.newest(compiler.kind)
    return Check(name="C++ compiler", state="passed", detail=f"{detail}; nvcc {cuda} accepts up to {newest}")


def check_numa(facts: Facts) -> Check:
    if facts.numa is not None:
        return Check(name="libnuma", state="passed", detail=f"numa.h in {facts.numa}")
    if not facts.package_manager:
        return Check(
            name="libnuma",
            state="failed",
            detail="no numa.h, and no package manager that we know",
            mend=install_command(facts, "numa"),
        )
    if facts.package_manager == "zypper" and not facts.root:
        return Check(
            name="libnuma", state="failed", detail="no numa.h; zypper needs root", mend=install_command(facts, "numa")
        )
    way = "installs it" if facts.root else "unpacks it for itself, without root,"
    return Check(
        name="libnuma",
        state="not needed",
        detail=f"not here; a build that links it {way} with {facts.package_manager}",
    )


def check_gpu(facts: Facts, *, cuda: str) -> Check:
    """A GPU is for smoke tests only; a driver too old for this CUDA cannot run what is built."""
    if not facts.gpus:
        return Check(
            name="GPU and driver",
            state="not needed",
            detail=f"none found ({facts.gpu_problem}); builds need none, GPU smoke tests do",
        )
    words = [f"{gpu.name} (compute capability {gpu.compute}, driver {gpu.driver or 'unknown'})" for gpu in facts.gpus]
    least = LEAST_DRIVER.get(int(cuda.split(".")[0]), 0)
    drivers = {gpu.driver for gpu in facts.gpus}
    if "" in drivers:
        return Check(
            name="GPU and driver", state="not run", detail=f"{'; '.join(words)}: nvidia-smi, which tells it, is missing"
        )
    if any(int(driver.split(".")[0]) < least for driver in drivers):
        return Check(
            name="GPU and driver",
            state="failed",
            detail=f"{'; '.join(words)}: CUDA {cuda} needs driver {least} or later to run",
            mend=f"update the NVIDIA driver to {least} or later (builds work without)",
        )
    return Check(name="GPU and driver", state="passed", detail="; ".join(words))
