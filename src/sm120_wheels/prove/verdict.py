"""Judges an audit for one GPU: which kernels run, which do not and why, and what the wheel carries in vain.

Every kernel of every translation unit gets one class for the target:

- ``native``: machine code compiled for exactly this compute capability;
- ``family``: machine code of a lower minor of the same major, which the GPU executes;
- ``ptx``: only PTX, which the driver compiles when the kernel is first used;
- ``trap``: code for the target, but an arch-guard trap (see :mod:`traps`);
- ``absent``: nothing that the GPU could run, though other architectures have it.

The verdict is ``runs`` where every kernel of the libraries that the package would load is native, family or ptx;
``part`` where some are and some are not; ``none`` where none is; ``no-cuda`` where there is no GPU code at all;
``unread`` where it would be ``runs``, but some of that code could not be searched for traps, so it is not known.
Two things do not lower it: what the allow-list names, and a trap that has a twin, the same kernel for another range
of architectures (``…_sm75`` beside ``…_sm80``) that works: such libraries pick the right one when they run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sm120_wheels.arch import Arch
from sm120_wheels.prove.allow import AllowList
from sm120_wheels.prove.audit import Audit, Library
from sm120_wheels.prove.images import Capability, Image, choose
from sm120_wheels.prove.traps import Reason, Trap
from sm120_wheels.wheel import version
from sm120_wheels.wheel.linkage import cuda_majors, foreign_cuda

Class = Literal["native", "family", "ptx", "trap", "absent"]
Answer = Literal["runs", "unread", "part", "none", "no-cuda"]

CLASSES: tuple[Class, ...] = ("native", "family", "ptx", "trap", "absent")

#: Exit codes of ``sm120 audit --target``: facts about the wheel, not failures of the audit (that is 61).
EXIT_CODES: dict[Answer, int] = {"runs": 0, "unread": 64, "part": 65, "none": 66, "no-cuda": 67}


@dataclass(frozen=True, kw_only=True)
class TrapFound:
    kernel: str
    reason: Reason
    message: str
    allowed: str
    """Why the allow-list permits it; empty where it does not."""
    twin: str
    """The kernel that works in its place; empty where there is none."""

    @property
    def counts(self) -> bool:
        return not self.allowed and not self.twin


@dataclass(frozen=True, kw_only=True)
class LibraryVerdict:
    path: str
    skipped: str
    """Why the package would not load this library on the target; empty where it would."""
    counts: dict[Class, int]
    absent: tuple[str, ...]
    """Kernels without code, by mangled name."""
    absence_allowed: str
    traps: tuple[TrapFound, ...]
    unread: str
    """Why traps were not looked for in all of it; empty where they were."""
    dead: dict[str, int]
    """Bytes that the target can never run: ``{"sm_90a": 1234}``."""
    data: bool
    """Shipped, but nobody is known to load it: it counts for nothing."""

    @property
    def runnable(self) -> int:
        return self.counts["native"] + self.counts["family"] + self.counts["ptx"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    target: str
    answer: Answer
    libraries: tuple[LibraryVerdict, ...]

    @property
    def loaded(self) -> tuple[LibraryVerdict, ...]:
        return tuple(lib for lib in self.libraries if not lib.skipped and not lib.data)

    @property
    def dead_bytes(self) -> int:
        return sum(sum(lib.dead.values()) for lib in self.libraries)

    @property
    def new_traps(self) -> tuple[tuple[str, TrapFound], ...]:
        return tuple((lib.path, t) for lib in self.loaded for t in lib.traps if t.counts)

    def total(self, kind: Class) -> int:
        return sum(lib.counts[kind] for lib in self.loaded)


def judge(audit: Audit, target: Capability, allow: AllowList | None = None) -> Verdict:
    """The verdict for a GPU of that compute capability."""
    allow = allow or AllowList()
    name = f"{target[0]}.{target[1]}"
    skipped = loader_skips([lib.path for lib in audit.libraries], target)
    libraries = tuple(
        _judge_library(lib, target, name, allow, skipped.get(lib.path, "")) for lib in audit.gpu_libraries
    )
    return Verdict(target=name, answer=_answer(libraries), libraries=libraries)


def _answer(libraries: Sequence[LibraryVerdict]) -> Answer:
    counted = [lib for lib in libraries if not lib.data]
    if not any(sum(lib.counts.values()) for lib in counted):
        return "no-cuda"
    loaded = [lib for lib in counted if not lib.skipped]
    if not any(lib.runnable for lib in loaded):
        return "none"
    lacking = any((lib.absent and not lib.absence_allowed) or any(t.counts for t in lib.traps) for lib in loaded)
    if lacking:
        return "part"
    return "unread" if any(lib.unread for lib in loaded) else "runs"


def _judge_library(library: Library, target: Capability, name: str, allow: AllowList, skipped: str) -> LibraryVerdict:
    chosen = choose(library.images, target)
    picked = {index for index in chosen.values() if index is not None}
    counts: Counter[Class] = Counter()
    absent: list[str] = []
    traps: list[Trap] = []
    live: set[str] = set()
    unread = ""
    for container, index in chosen.items():
        every = {k for i in library.images if i.container == container for k in i.kernels}
        image = None if index is None else library.images[index]
        there = set() if image is None else set(image.kernels)
        absent += sorted(every - there)
        counts["absent"] += len(every - there)
        if image is None:
            continue
        if image.kind == "sass" and image.traps_unread:
            unread = image.traps_unread
        trapped = {t.kernel for t in image.traps}
        traps += image.traps
        kind: Class = "ptx" if image.kind == "ptx" else "native" if image.arch.capability == target else "family"
        # a Counter over the image's list, not its set: nothing forbids two kernels of one (local) name
        counts[kind] += sum(k not in trapped for k in image.kernels)
        counts["trap"] += sum(k in trapped for k in image.kernels)
        live |= there - trapped
    dead: Counter[str] = Counter()
    for index, image in enumerate(library.images):
        if (skipped or index not in picked) and not library.data:
            dead[image.target + (" (for linking)" if image.linkable else "")] += image.bytes
    if skipped:
        dead["host code"] += library.bytes - sum(i.bytes for i in library.images)
    return LibraryVerdict(
        path=library.path,
        skipped=skipped,
        counts={c: counts[c] for c in CLASSES},
        absent=tuple(absent),
        absence_allowed=allow.allows_absence(library.path, name) if absent else "",
        traps=_found(traps, name, allow, live),
        unread=unread,
        dead=dict(sorted(dead.items())),
        data=library.data,
    )


_VARIANT = re.compile(r"sm_?\d{2,3}(?=[^0-9]|$)", re.IGNORECASE)


def _found(traps: Sequence[Trap], target: str, allow: AllowList, live: Iterable[str]) -> tuple[TrapFound, ...]:
    wanted = {_VARIANT.sub("sm*", t.kernel) for t in traps if _VARIANT.search(t.kernel)}
    twins: dict[str, str] = {}
    for kernel in sorted(live) if wanted else ():
        family = _VARIANT.sub("sm*", kernel)
        if family in wanted:
            twins.setdefault(family, kernel)
    return tuple(
        TrapFound(
            kernel=trap.kernel,
            reason=trap.reason,
            message=trap.message,
            allowed=allow.allows_trap(trap, target),
            twin=twins.get(_VARIANT.sub("sm*", trap.kernel), "") if _VARIANT.search(trap.kernel) else "",
        )
        for trap in sorted(traps, key=lambda t: t.kernel)
    )


def loader_skips(paths: Sequence[str], target: Capability) -> dict[str, str]:
    """The libraries that their package would not load on the target, with the reason.

    Known: sgl_kernel keeps two builds of the same ops and loads ``sm90/`` on compute capability 9.0 exactly and
    ``sm100/`` on all others (its load_utils.py). Where the wanted folder is missing, nothing else is loaded either.
    """
    skips = {}
    for path in paths:
        match = re.search(r"(?:^|/)sgl_kernel/(sm90|sm100)/common_ops\.", path) or re.match(
            r"(sm90|sm100)/common_ops\.", path
        )
        if match:
            wanted = "sm90" if target == (9, 0) else "sm100"
            if match[1] != wanted:
                skips[path] = f"sgl_kernel loads {wanted}/ on compute capability {target[0]}.{target[1]}"
    return skips


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Something that must not be: the audit ends with exit code 61."""

    what: str
    why: str


def failures(
    audit: Audit,
    verdicts: Sequence[Verdict],
    *,
    expect: Sequence[Arch] = (),
    allow: AllowList | None = None,
    cuda_major: int | None = None,
    strict: bool = False,
) -> list[Failure]:
    """What is wrong with the wheel, beyond what it runs on.

    ``expect``: architectures that were asked of the build, each of which every library must have in every
    translation unit (but for libraries whose absence is allowed). ``allow``: where given, traps it does not name are
    failures. ``cuda_major``: overrides the one that the wheel's version names. ``strict``: what the filename promises
    and the libraries do not keep is a failure too (CUDA's major is one in any case), and so are traps not looked for.
    """
    found = [f for arch in expect for f in _dropped(audit, arch, allow or AllowList())]
    label = cuda_major or version.cuda_major(audit.version)
    if label is not None:
        found += _other_cuda(audit, label)
    if strict:
        found += [
            Failure(what=f"{lib.path}: traps were not looked for on {verdict.target}", why=lib.unread)
            for verdict in verdicts
            for lib in verdict.loaded
            if lib.unread
        ]
        found += [
            Failure(what=f"the wheel promises {p.promise} and does not keep it", why=p.why)
            for p in audit.promises.broken
            if p.kind != "cuda"
        ]
        found += _other_compilers(audit)
        if audit.promises.state == "not run":
            found.append(Failure(what="what the wheel's name promises was not looked at", why=audit.promises.why))
    if allow is not None:
        for verdict in verdicts:
            for path, trap in verdict.new_traps:
                found.append(
                    Failure(
                        what=f"{path}: a kernel is a trap on {verdict.target} and not on the list of known ones",
                        why=f"{trap.kernel}\n{trap.reason}: {trap.message or 'no message'}",
                    )
                )
    return found


def _other_cuda(audit: Audit, label: int) -> list[Failure]:
    found = []
    for lib in audit.libraries:
        if names := foreign_cuda(lib.host.needed if lib.host else (), expected_major=label):
            theirs = sorted({major for name in names for major in cuda_majors(name) or ()})
            what = f"{lib.path} needs CUDA {' or '.join(map(str, theirs))}, the wheel is labelled CUDA {label}"
            found.append(Failure(what=what, why=f"NEEDED: {', '.join(names)}"))
    return found


def _other_compilers(audit: Audit) -> list[Failure]:
    """Machine code of another CUDA release than the label's. The runtime linked in leaves no other trace of it."""
    others = [c for c in audit.compilers if c.rpartition(".")[0] != audit.cuda_release]
    if not audit.cuda_release or not others:
        return []
    what = f"the wheel is labelled CUDA {audit.cuda_release}, and has machine code of ptxas {', '.join(others)}"
    libraries = [lib.path for lib in audit.libraries if any(i.compiler in others for i in lib.images)]
    return [Failure(what=what, why=f"in {', '.join(libraries)}")]


def _dropped(audit: Audit, arch: Arch, allow: AllowList) -> list[Failure]:
    libraries = [lib for lib in audit.gpu_libraries if not lib.data]
    if not libraries:
        return [Failure(what=f"{arch.sm} was asked for and there is no GPU code at all", why=audit.path)]
    found = []
    for lib in libraries:
        if allow.allows_absence(lib.path, f"{arch.major}.{arch.minor}"):
            continue
        units: dict[int, list[Image]] = {}
        for image in lib.loadable:
            if image.kernels:
                units.setdefault(image.container, []).append(image)
        missing = [u for u in units.values() if not any(i.kind == "sass" and i.arch == arch for i in u)]
        if missing:
            have = sorted({i.target for u in missing for i in u})
            found.append(
                Failure(
                    what=f"{lib.path}: {arch.sm} was asked for and is missing "
                    f"in {len(missing)} of {len(units)} translation units",
                    why=f"they have {', '.join(have)}, e.g. kernel {missing[0][0].kernels[0]}",
                )
            )
    return found
