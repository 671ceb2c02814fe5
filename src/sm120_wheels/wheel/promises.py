"""What a wheel's name promises and its libraries do not keep: platform tag, abi3 tag, CUDA label; and search paths.

For wheels of others and for gates: it judges and never changes anything. Finishing refuses the same things while our
own wheels are made (``finish.py``). GPU code is the audit's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sm120_wheels.wheel import linkage, tags
from sm120_wheels.wheel.archive import WheelFile, WheelName
from sm120_wheels.wheel.finish import host_libraries, read_build_record
from sm120_wheels.wheel.library import Library
from sm120_wheels.wheel.version import cuda_major

Kind = Literal["platform", "abi3", "cuda", "search path"]


@dataclass(frozen=True, kw_only=True)
class BrokenPromise:
    """One thing that the wheel's name or place promises and a library breaks."""

    kind: Kind
    promise: str
    """The tag or label: ``manylinux_2_28_x86_64``, ``cp310-abi3``, ``cu130``; for search paths, that they travel."""
    why: str
    """A sentence that names the library and what it needs."""


def excluded_of(wheel: WheelFile) -> tuple[str, ...]:
    """What a wheel's libraries may take from elsewhere: libnuma only where our own build record says that it was asked
    for."""
    plan = (read_build_record(wheel) or {}).get("plan")
    return tags.provided_elsewhere(numa=isinstance(plan, dict) and bool(plan.get("numa")))


def broken_promises(
    wheel: WheelFile, folder: Path, *, excluded: tuple[str, ...] = tags.CUDA_AND_TORCH
) -> tuple[BrokenPromise, ...]:
    """Every promise that the wheel breaks, none where it keeps them all. Libraries are unpacked below ``folder``.

    ``excluded``: file name patterns of libraries that other wheels and the driver provide.
    """
    libraries = host_libraries(wheel, wheel.members, folder)
    baseline = tags.abi3_baseline(wheel.filename.tags)
    abi3 = [] if baseline is None else tags.abi3_problems(libraries, baseline=baseline)
    return promises_of(wheel.filename, libraries, abi3, excluded=excluded)


def promises_of(
    name: WheelName,
    libraries: Sequence[Library],
    abi3: Sequence[tags.Abi3Problem],
    *,
    excluded: tuple[str, ...] = tags.CUDA_AND_TORCH,
) -> tuple[BrokenPromise, ...]:
    """The same where the libraries have been read already, and (of an abi3 wheel) looked at by abi3audit."""
    return (
        *_platform(name, libraries, excluded),
        *_abi3(name, abi3),
        *_cuda(name, libraries),
        *_search_paths(libraries),
    )


def _platform(name: WheelName, libraries: Sequence[Library], excluded: tuple[str, ...]) -> list[BrokenPromise]:
    """One of a wheel's platform tags is enough to install it, so each must hold; old spellings count once."""
    found: dict[str, BrokenPromise] = {}
    for tag in sorted({t.platform for t in name.tags}):
        if tag == "any" and libraries:
            why = f"{libraries[0].member} is machine code for {libraries[0].machine}"
            found.setdefault(why, BrokenPromise(kind="platform", promise=tag, why=why))
        for why in tags.platform_problems(libraries, tag, excluded=excluded):
            found.setdefault(why, BrokenPromise(kind="platform", promise=tag, why=why))
    return list(found.values())


def _abi3(name: WheelName, problems: Sequence[tags.Abi3Problem]) -> list[BrokenPromise]:
    baseline = tags.abi3_baseline(name.tags)
    if baseline is None:
        return []
    return [
        BrokenPromise(kind="abi3", promise=f"cp{baseline[0]}{baseline[1]}-abi3", why=f"{p.member}: {p.why}")
        for p in problems
    ]


def _cuda(name: WheelName, libraries: Sequence[Library]) -> list[BrokenPromise]:
    label = cuda_major(str(name.version))
    if label is None:
        return []
    return [
        BrokenPromise(kind="cuda", promise=f"CUDA {label}", why=f"{library.member} needs {', '.join(foreign)}")
        for library in libraries
        if (foreign := linkage.foreign_cuda(library.needed, expected_major=label))
    ]


def _search_paths(libraries: Sequence[Library]) -> list[BrokenPromise]:
    return [
        BrokenPromise(
            kind="search path",
            promise="works on another machine",
            why=f"{library.member} looks for libraries in {linkage.describe(paths)}",
        )
        for library in libraries
        if (paths := linkage.foreign_search_paths(library))
    ]
