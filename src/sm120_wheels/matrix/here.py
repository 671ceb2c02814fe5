"""Which jobs this machine can build, and why it cannot build the others.

Looking at the machine (``look``) is kept apart from deciding (``obstacles``). Only a build itself finds out the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from sm120_wheels.errors import Sm120Error
from sm120_wheels.matrix.jobs import Job
from sm120_wheels.matrix.names import platform_name
from sm120_wheels.toolchain.cuda import index_releases, nvcc_version, system_toolkits
from sm120_wheels.toolchain.interpreters import all_interpreters


@dataclass(frozen=True, kw_only=True)
class Here:
    """What a machine has for builds."""

    platform: str
    pythons: tuple[str, ...]
    """Minor versions with headers, ``3.12``."""
    index_cuda: tuple[str, ...]
    """CUDA releases that our locks bring from the package index."""
    system_cuda: tuple[str, ...]
    """CUDA releases that are installed."""


def look() -> Here:
    """This machine."""
    system = []
    for root, _ in system_toolkits():
        try:
            system.append(nvcc_version(root / "bin" / "nvcc")[0])
        except Sm120Error:
            continue  # an nvcc that does not run is no toolkit; `sm120 doctor` tells about it
    return Here(
        platform=platform_name(),
        pythons=tuple(sorted({i.minor for i in all_interpreters() if i.has_headers}, key=_numbers)),
        index_cuda=tuple(index_releases()),
        system_cuda=tuple(dict.fromkeys(system)),
    )


def obstacles(job: Job, here: Here) -> list[str]:
    """Why this machine cannot build a job; nothing where it can."""
    found = []
    if job.platform != here.platform:
        found.append(f"is built on {job.platform}; this machine is {here.platform}")
    if job.cuda not in (*here.index_cuda, *here.system_cuda):
        have = f"here: {', '.join(here.system_cuda)}" if here.system_cuda else "there is none here"
        found.append(f"CUDA {job.cuda} is not on the package index and comes from the system or an image; {have}")
    if not python_for(job, here):
        found.append(f"needs Python {' or '.join(job.pythons)} with headers; here: {', '.join(here.pythons) or 'none'}")
    return found


def python_for(job: Job, here: Here) -> str | None:
    """The Python to build a job with here: the job's own, else the lowest that gives the same wheel."""
    order = [job.python, *job.pythons]
    return next((python for python in order if python in here.pythons), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
