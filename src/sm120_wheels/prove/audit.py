"""Reads what GPU code a wheel, library or object file carries. It states facts; :mod:`verdict` judges them.

What a wheel's name promises and its libraries do not keep (:mod:`sm120_wheels.wheel.promises`) is found on the way.

Members are read in parallel, the largest first, each in its own process: unpacking and hashing take the time, then
walking the symbol tables. The traps (see :mod:`traps`) are looked for only in the code that one of the targets would
load, since that needs a disassembler.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from sm120_wheels.arch import Arch
from sm120_wheels.elf import Buffer, Elf
from sm120_wheels.errors import UnsupportedTargetError, WheelInvalidError
from sm120_wheels.prove import fatbin, inputs
from sm120_wheels.prove.cubin import Cubin
from sm120_wheels.prove.images import Capability, Image, choose
from sm120_wheels.prove.traps import by_design, find_traps
from sm120_wheels.wheel import library as dynamic
from sm120_wheels.wheel import tags
from sm120_wheels.wheel.archive import parse_filename
from sm120_wheels.wheel.linkage import cuda_majors
from sm120_wheels.wheel.promises import BrokenPromise, promises_of
from sm120_wheels.wheel.version import cuda_release

#: Machine code that is unpacked at the same time while traps are looked for.
_BATCH_BYTES = 512 << 20

#: Pieces of machine code that are unpacked ahead, of up to some 100 MB each.
_AHEAD = 3

_TORCH_LIBRARIES = re.compile(r"^lib(?:torch|c10)[\w-]*\.so")
#: at::, c10::, torch:: and caffe2:: in mangled names: bound to one torch release. aoti_torch_* and torch_*: stable.
_TORCH_CXX = re.compile(r"^_ZNK?(?:St\d+\w+I)?(?:2at|3c10|5torch|6caffe2)")
_TORCH_STABLE = re.compile(r"^(?:aoti_)?torch_\w+$")


@dataclass(frozen=True, kw_only=True)
class Host:
    """What the dynamic linker will ask for."""

    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    versions: dict[str, str]
    """The highest version asked of each family: ``{"GLIBC": "2.17", "GLIBCXX": "3.4.29"}``."""
    cuda_majors: tuple[int, ...]
    """Those that a library in ``needed`` tells; one that several CUDA majors ship tells none."""
    torch_libraries: tuple[str, ...]
    torch_symbols: int
    """Symbols of torch's C++ ABI: bound to the torch release it was built against."""
    torch_stable_symbols: int
    """Symbols of torch's stable C ABI."""
    cxx11_abi: bool | None
    """Whether its C++ symbols are of the new std::string ABI; None where none tells."""


@dataclass(frozen=True, kw_only=True)
class Library:
    path: str
    kind: inputs.Kind
    bytes: int
    packed_bytes: int
    host: Host | None
    images: tuple[Image, ...]
    data: bool = False
    """PTX that is shipped as a source or as data: no loader is known to read it, so it makes no verdict."""

    @property
    def loadable(self) -> tuple[Image, ...]:
        """The images that the runtime would choose from: of an unlinked object, what a linker would read."""
        plain = tuple(i for i in self.images if not i.linkable and i.kind in ("sass", "ptx"))
        return plain or tuple(i for i in self.images if i.kind in ("sass", "ptx"))


@dataclass(frozen=True, kw_only=True)
class Promises:
    """Whether the libraries keep what the wheel's filename promises: platform, abi3, CUDA. ``why``: not run because."""

    state: Literal["passed", "failed", "not run"]
    broken: tuple[BrokenPromise, ...] = ()
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What a worker sends back."""

    library: Library
    linked: dynamic.Library | None
    abi3: tuple[tags.Abi3Problem, ...]


@dataclass(frozen=True, kw_only=True)
class Audit:
    name: str
    version: str
    path: str
    libraries: tuple[Library, ...]
    promises: Promises
    tag_problem: str = ""

    @property
    def gpu_libraries(self) -> tuple[Library, ...]:
        return tuple(lib for lib in self.libraries if lib.images)

    @property
    def cuda_release(self) -> str:
        """The CUDA release that the version names, ``13.0``; empty where it names none."""
        return cuda_release(self.version)

    @property
    def targets(self) -> frozenset[str]:
        """What there is machine code for: ``sm_120a``."""
        return frozenset(i.target for lib in self.libraries for i in lib.images if i.kind == "sass")

    @property
    def compilers(self) -> tuple[str, ...]:
        """Versions of the ptxas that made the machine code, as it noted them: ``13.0.88``."""
        return tuple(sorted({i.compiler for lib in self.libraries for i in lib.images if i.kind == "sass"} - {""}))


def audit(subject: inputs.Subject, targets: Sequence[Capability], *, workers: int = 0) -> Audit:
    """Read a subject. ``targets`` are the compute capabilities for whose code traps are looked for.

    ``workers`` 0 means one for each CPU this process may use. Raises :class:`WheelInvalidError` for what is damaged.
    """
    jobs = [(subject, member) for member in subject.members]
    baseline = tags.abi3_baseline(parse_filename(subject.path).tags) if subject.is_wheel else None
    read = partial(_read, targets=tuple(targets), abi3_baseline=baseline)
    found = inputs.read_members(jobs, read, workers=workers)
    return Audit(
        name=subject.name,
        version=subject.version,
        path=str(subject.path),
        libraries=tuple(sorted((one.library for one in found), key=lambda lib: lib.path)),
        promises=_promises(subject, found),
        tag_problem=subject.tag_problem,
    )


def _promises(subject: inputs.Subject, found: Sequence[_Read]) -> Promises:
    if not subject.is_wheel:
        return Promises(state="not run", why="only a wheel's filename promises anything")
    libraries = sorted((one.linked for one in found if one.linked is not None), key=lambda lib: lib.member)
    try:
        abi3 = [p for one in found for p in one.abi3]
        broken = promises_of(parse_filename(subject.path), libraries, abi3, excluded=subject.excluded)
    except (WheelInvalidError, UnsupportedTargetError) as exc:  # libraries of two machines, or of one without policies
        return Promises(state="not run", why=f"{exc.what}: {exc.why or exc.where}")
    return Promises(state="failed" if broken else "passed", broken=broken)


def _read(
    subject: inputs.Subject,
    member: inputs.Member,
    targets: tuple[Capability, ...],
    abi3_baseline: tuple[int, int] | None,
) -> _Read:
    where = inputs.place(subject, member)
    with inputs.mapped(subject, member) as (buffer, path):
        linked = dynamic.read_library(path, member=member.name, where=where) if member.kind == "host" else None
        abi3 = tags.abi3_problems([linked], baseline=abi3_baseline) if linked and abi3_baseline else []
        images = _images(member, buffer, where, targets)
    library = Library(
        path=member.name,
        kind=member.kind,
        bytes=member.bytes,
        packed_bytes=member.packed_bytes,
        host=host_facts(linked.needed, linked.rpath, linked.versions, linked.undefined) if linked else None,
        images=tuple(images),
        data=member.data,
    )
    return _Read(library=library, linked=linked, abi3=tuple(abi3))


def host_facts(
    needed: Sequence[str], rpath: Sequence[str], versions: dict[str, frozenset[str]], undefined: Iterable[str]
) -> Host:
    """Sum up what a library asks of its surroundings."""
    highest: dict[str, tuple[int, ...]] = {}
    for version in (v for wanted in versions.values() for v in wanted):
        if match := re.fullmatch(r"(GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)", version):
            number = tuple(map(int, match[2].split(".")))
            highest[match[1]] = max(highest.get(match[1], ()), number)
    torch = stable = 0
    cxx11: bool | None = None
    for name in undefined:
        torch += bool(_TORCH_CXX.match(name))
        stable += bool(_TORCH_STABLE.match(name))
        if "__cxx11" in name:
            cxx11 = True
        elif cxx11 is None and "SsRK" in name:  # the old std::string in an argument list
            cxx11 = False
    return Host(
        needed=tuple(needed),
        rpath=tuple(rpath),
        versions={family: ".".join(map(str, number)) for family, number in sorted(highest.items())},
        cuda_majors=tuple(sorted({major for m in map(cuda_majors, needed) if m and len(m) == 1 for major in m})),
        torch_libraries=tuple(n for n in needed if _TORCH_LIBRARIES.match(n)),
        torch_symbols=torch,
        torch_stable_symbols=stable,
        cxx11_abi=cxx11,
    )


def _images(member: inputs.Member, buffer: Buffer, where: str, targets: Sequence[Capability]) -> list[Image]:
    images: list[Image] = []
    opened: dict[int, Callable[[], Cubin]] = {}
    for image, again in _contents(member, buffer, where):
        if again is not None:
            opened[len(images)] = again
        images.append(image)
    wanted = {i for target in targets for i in choose(images, target).values() if i is not None and i in opened}
    for batch in _batches(sorted(wanted), images):
        cubins = [opened[i]() for i in batch]
        for index, reading in zip(batch, find_traps(cubins), strict=True):
            images[index] = replace(images[index], traps=reading.traps, traps_unread=reading.unread)
    _drop_what_is_meant(images, opened)
    return images


def _batches(indices: Sequence[int], images: Sequence[Image]) -> Iterator[list[int]]:
    """Groups of images that are unpacked at the same time: a torch library has 2 GB of code for each architecture."""
    batch: list[int] = []
    size = 0
    for index in indices:
        batch.append(index)
        size += images[index].unpacked_bytes
        if size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _drop_what_is_meant(images: list[Image], opened: dict[int, Callable[[], Cubin]]) -> None:
    """Take out the traps that are no better on any other architecture: they are no guards."""
    suspicious = [i for i, image in enumerate(images) if any(trap.reason != "guard" for trap in image.traps)]
    meant = by_design([(images[i].traps, _others(i, images, opened)) for i in suspicious])
    for index, by_intent in zip(suspicious, meant, strict=True):
        kept = tuple(trap for trap, is_meant in zip(images[index].traps, by_intent, strict=True) if not is_meant)
        images[index] = replace(images[index], traps=kept)


def _others(index: int, images: Sequence[Image], opened: dict[int, Callable[[], Cubin]]) -> Iterator[Cubin]:
    """The code of other architectures in the same container, unpacked one after the other."""
    for i, image in enumerate(images):
        if i in opened and image.container == images[index].container and image.arch != images[index].arch:
            yield opened[i]()


def _contents(member: inputs.Member, buffer: Buffer, where: str) -> Iterable[tuple[Image, Callable[[], Cubin] | None]]:
    """Each image with, for machine code, a way to unpack it once more: it is not kept."""
    if member.kind == "cubin":
        cubin = Cubin(buffer, where)
        yield _cubin_image(cubin, container=0, linkable=False, arch=cubin.arch, size=member.bytes), lambda: cubin
        return
    if member.kind == "ptx":
        text = bytes(memoryview(buffer)).decode("utf-8", "replace")
        yield _ptx_image(text, where, container=0, linkable=False, size=member.bytes), None
        return
    if member.kind == "fatbin":
        entries = list(fatbin.entries(buffer, 0, member.bytes, where=where))
    else:
        entries = fatbin.entries_of_elf(Elf(buffer, where))
    code = [partial(_unpack, entry, buffer, where) for entry in entries if entry.kind == "sass"]
    cubins = zip(code, _ahead(code), strict=True)
    for entry in entries:
        if entry.kind == "sass":
            again, cubin = next(cubins)
            image = _cubin_image(
                cubin,
                container=entry.container,
                linkable=entry.linkable,
                # the entry's flags tell "a" and "f" apart, which not every compiler notes in the cubin
                arch=entry.arch if entry.arch.suffix else cubin.arch,
                size=entry.bytes_in_file,
            )
            yield replace(image, compression=entry.compression, unpacked_bytes=entry.unpacked_bytes), again
        elif entry.kind == "ptx":
            text = bytes(entry.payload(buffer, where)).decode("utf-8", "replace")
            image = _ptx_image(
                text, where, container=entry.container, linkable=entry.linkable, size=entry.bytes_in_file
            )
            yield replace(image, compression=entry.compression, unpacked_bytes=entry.unpacked_bytes), None
        else:
            yield (
                Image(
                    container=entry.container,
                    kind=entry.kind,
                    arch=entry.arch,
                    linkable=entry.linkable,
                    bytes=entry.bytes_in_file,
                    unpacked_bytes=entry.unpacked_bytes,
                    compression=entry.compression,
                    compiler="",
                    kernels=(),
                ),
                None,
            )


def _ahead(jobs: Iterable[Callable[[], Cubin]]) -> Iterator[Cubin]:
    """The answers in order, the next few being worked on in threads: unpacking leaves the interpreter's lock alone."""
    with ThreadPoolExecutor(_AHEAD) as pool:
        waiting: deque[Future[Cubin]] = deque()
        for job in jobs:
            waiting.append(pool.submit(job))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _unpack(entry: fatbin.Entry, buffer: Buffer, where: str) -> Cubin:
    return Cubin(entry.payload(buffer, where), f"{where} ({entry.target} code at byte {entry.offset})")


def _cubin_image(cubin: Cubin, *, container: int, linkable: bool, arch: Arch, size: int) -> Image:
    return Image(
        container=container,
        kind="sass",
        arch=arch,
        linkable=linkable,
        bytes=size,
        unpacked_bytes=size,
        compression="none",
        compiler=cubin.compiler,
        # one string for a name that every architecture has: they cross a process boundary, and are long
        kernels=tuple(map(sys.intern, cubin.kernel_names())),
    )


def _ptx_image(text: str, where: str, *, container: int, linkable: bool, size: int) -> Image:
    match = re.search(r"^\s*\.target\s+sm_(\d+)([af]?)", text, re.MULTILINE)
    if match is None:
        raise WheelInvalidError("PTX without a .target line", where=where)
    version = re.search(r"^\s*\.version\s+([\d.]+)", text, re.MULTILINE)
    number = int(match[1])
    return Image(
        container=container,
        kind="ptx",
        arch=Arch(number // 10, number % 10, match[2]),  # type: ignore[arg-type]
        linkable=linkable,
        bytes=size,
        unpacked_bytes=size,
        compression="none",
        compiler=f"ISA {version[1]}" if version else "",
        kernels=tuple(re.findall(r"^[^/\n]*\.entry\s+([\w$]+)", text, re.MULTILINE)),
    )
