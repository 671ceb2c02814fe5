"""Turns the wheel that a build backend made into ours: version, tags, requirements, SBOM, build record.

It repacks and never renames: filename, METADATA, dist-info folder and RECORD agree afterwards, and the same raw content
gives the same bytes. It refuses what would break for whoever installs the wheel (an extension that does not honour
abi3, another CUDA major, search paths of the build machine), and never copies a library into it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.tags import Tag
from packaging.version import InvalidVersion, Version

from sm120_wheels.errors import WheelInvalidError
from sm120_wheels.wheel import linkage, tags
from sm120_wheels.wheel.archive import WheelFile, WheelName, open_wheel
from sm120_wheels.wheel.library import Library, is_host_elf, read_library
from sm120_wheels.wheel.metadata import edit_metadata, edit_wheel
from sm120_wheels.wheel.version import is_partial
from sm120_wheels.wheel.write import Member, from_bytes, write_archive

if TYPE_CHECKING:
    from sm120_wheels.wheel.sbom import AppliedPatch, Source, Tool

#: Where the SBOM lies below dist-info (PEP 770), and the build record.
SBOM = "sboms/sm120.cdx.json"
BUILD_RECORD = "sm120/build.json"


@dataclass(frozen=True, kw_only=True)
class FinishRequest:
    """Everything that finishing needs to know."""

    raw: Path
    """The wheel made by the backend; left as it is."""
    out_dir: Path
    version: str
    """With the local label: ``0.4.4+cu130.torch211.sm120a`` (see ``version.local_version``)."""
    source_date_epoch: int
    """Seconds since 1970 for every timestamp; best the upstream commit's time."""
    requires_dist: tuple[str, ...] = ()
    python_tag: str | None = None
    """Interpreter and ABI, ``cp312-cp312``, in place of the backend's: where a module holds to one Python's ABI."""
    excluded_libraries: tuple[str, ...] = tags.CUDA_AND_TORCH
    """File name patterns of libraries that others provide at run time."""
    expected_cuda_major: int | None = None
    """None for a wheel without CUDA: nothing is checked then."""
    sources: tuple[Source, ...] = ()
    patches: tuple[AppliedPatch, ...] = ()
    toolchain: tuple[Tool, ...] = ()
    build_record: Mapping[str, Any] = field(default_factory=dict)
    """JSON for ``sm120/build.json``. It must hold no path and no time of this machine, or two builds differ."""
    left_out: tuple[str, ...] = ()
    """Components that were not built; not empty exactly where the label says ``partial``."""


@dataclass(frozen=True, kw_only=True)
class FinishedWheel:
    """A wheel in the output folder."""

    path: Path
    filename: str
    sha256: str
    size: int
    """Bytes."""
    record_sha256: str
    """Digest of RECORD: the same wherever the same members were packed, also with another zlib."""
    distribution: str
    version: str
    tags: tuple[str, ...]
    platform_because: tuple[str, ...]
    """What keeps the wheel from an older platform tag; empty where there is none."""


def finish(request: FinishRequest) -> FinishedWheel:
    """Finish a wheel. Raises :class:`WheelInvalidError` naming the file inside the wheel and what to do."""
    version = _checked_version(request)
    request.out_dir.mkdir(parents=True, exist_ok=True)
    with (
        open_wheel(request.raw) as wheel,
        tempfile.TemporaryDirectory(prefix=".finish-", dir=request.out_dir) as work,
    ):
        libraries = host_libraries(wheel, wheel.members, Path(work))
        _refuse_bad_links(libraries, request)
        name = _retagged(wheel.filename, request.python_tag)
        _refuse_broken_abi3(libraries, name, request.raw)
        platform = _platform(libraries, name, request)
        finished_tags = {f"{t.interpreter}-{t.abi}-{p}" for t in name.tags for p in platform.tags}
        dist_info = f"{_escaped_name(wheel)}-{version}.dist-info"
        filename = f"{_escaped_name(wheel)}-{version}{_build_part(name)}-{_tag_part(name, platform)}.whl"
        members = [
            *_kept_members(wheel, dist_info),
            *_made_members(wheel, request, version, finished_tags, dist_info, has_code=bool(libraries)),
        ]
        written = write_archive(
            request.out_dir / filename, members, dist_info=dist_info, source_date_epoch=request.source_date_epoch
        )
        return FinishedWheel(
            path=request.out_dir / filename,
            filename=filename,
            sha256=written.sha256,
            size=written.size,
            record_sha256=written.record_sha256,
            distribution=wheel.filename.distribution,
            version=version,
            tags=tuple(sorted(finished_tags)),
            platform_because=platform.because,
        )


def read_build_record(wheel: WheelFile) -> dict[str, Any] | None:
    """The build record of a wheel of ours; None for anybody else's."""
    member = f"{wheel.dist_info}/{BUILD_RECORD}"
    if member not in wheel.members:
        return None
    try:
        record = json.loads(wheel.read(member))
    except ValueError as exc:
        raise WheelInvalidError(
            f"{wheel.path.name} has a build record that cannot be read", where=member, why=str(exc)
        ) from exc
    if not isinstance(record, dict):
        raise WheelInvalidError(f"{wheel.path.name} has a build record that is not an object", where=member)
    return record


def host_libraries(wheel: WheelFile, names: Iterable[str], folder: Path) -> list[Library]:
    """Unpack and read the libraries and programs with a dynamic section among the named members, below ``folder``."""
    found = []
    for name in names:
        with wheel.open(name) as stream:
            head = stream.read(20)
        if is_host_elf(head):
            library = read_library(wheel.extract(name, folder), member=name)
            found += [library] if library else []
    return found


def _checked_version(request: FinishRequest) -> str:
    try:
        version = str(Version(request.version))
    except InvalidVersion as exc:
        raise WheelInvalidError(f"{request.version!r} is not a version", why=str(exc), hint="see PEP 440") from exc
    if is_partial(version) != bool(request.left_out):
        raise WheelInvalidError(
            "the version's label and the components left out disagree",
            where=version,
            why=f"left out: {', '.join(request.left_out) or 'nothing'}",
            hint="a wheel is labelled 'partial' exactly where components were left out",
        )
    return version


def _refuse_bad_links(libraries: Iterable[Library], request: FinishRequest) -> None:
    for library in libraries:
        if paths := linkage.foreign_search_paths(library):
            raise WheelInvalidError(
                f"{library.member} looks for libraries in folders of the build machine",
                where=f"{request.raw}: {library.member}",
                why=f"RPATH or RUNPATH: {linkage.describe(paths)}",
                hint="configure with CMAKE_SKIP_RPATH=ON or an $ORIGIN-relative CMAKE_INSTALL_RPATH and "
                "CMAKE_BUILD_WITH_INSTALL_RPATH=ON; drop -Wl,-rpath from the link flags",
            )
        if request.expected_cuda_major is None:
            continue
        if foreign := linkage.foreign_cuda(library.needed, expected_major=request.expected_cuda_major):
            raise WheelInvalidError(
                f"{library.member} is linked to another CUDA than the wheel's label says",
                where=f"{request.raw}: {library.member}",
                why=f"it needs {', '.join(foreign)}; the wheel is for CUDA {request.expected_cuda_major}",
                hint="build with the toolkit and the torch of that CUDA; look for a second toolkit in the link line",
            )


def _refuse_broken_abi3(libraries: list[Library], name: WheelName, raw: Path) -> None:
    baseline = tags.abi3_baseline(name.tags)
    if baseline is None:
        return
    if problems := tags.abi3_problems(libraries, baseline=baseline):
        first = problems[0]
        raise WheelInvalidError(
            f"{first.member} does not honour the wheel's abi3 tag",
            where=f"{raw}: {first.member}",
            why="\n".join(f"{p.member}: {p.why}" for p in problems),
            hint=f"build it with the limited API of Python {baseline[0]}.{baseline[1]} (USE_SABI), leave it out, "
            "or give up the abi3 tag",
        )


def _retagged(name: WheelName, python_tag: str | None) -> WheelName:
    if python_tag is None:
        return name
    interpreter, abi = python_tag.split("-")
    return replace(name, tags=frozenset(Tag(interpreter, abi, tag.platform) for tag in name.tags))


def _platform(libraries: list[Library], name: WheelName, request: FinishRequest) -> tags.PlatformDecision:
    if not libraries:
        return tags.PlatformDecision(tags=tuple(sorted({t.platform for t in name.tags})))
    return tags.decide_platform(libraries, excluded=request.excluded_libraries)


def _escaped_name(wheel: WheelFile) -> str:
    """The distribution's name as filenames write it: normalised, with underscores."""
    return wheel.filename.distribution.replace("-", "_")


def _build_part(name: WheelName) -> str:
    return f"-{name.build[0]}{name.build[1]}" if name.build else ""


def _tag_part(name: WheelName, platform: tags.PlatformDecision) -> str:
    """The compressed tag set of the filename; tags that are no full product cannot be written there."""
    parts = (
        sorted({t.interpreter for t in name.tags}, key=_natural),
        sorted({t.abi for t in name.tags}),
        sorted(platform.tags),
    )
    assert len(name.tags) == len(parts[0]) * len(parts[1]) * len({t.platform for t in name.tags}), (
        "came from a filename"
    )
    return "-".join(".".join(p) for p in parts)


def _natural(interpreter: str) -> tuple[int, str]:
    return len(interpreter), interpreter


def _kept_members(wheel: WheelFile, dist_info: str) -> Iterable[Member]:
    old_data = f"{wheel.dist_info.removesuffix('.dist-info')}.data/"
    made_anew = {f"{wheel.dist_info}/{n}" for n in ("METADATA", "WHEEL", "RECORD", "RECORD.jws", "RECORD.p7s")}
    for name in wheel.members:
        if name in made_anew:
            continue
        new = name
        if name.startswith(f"{wheel.dist_info}/"):
            new = dist_info + name.removeprefix(wheel.dist_info)
        elif name.startswith(old_data):
            new = f"{dist_info.removesuffix('.dist-info')}.data/{name.removeprefix(old_data)}"
        yield Member(
            name=new, size=wheel.size(name), chunks=partial(wheel.chunks, name), executable=wheel.executable(name)
        )


def _made_members(
    wheel: WheelFile, request: FinishRequest, version: str, all_tags: set[str], dist_info: str, *, has_code: bool
) -> Iterable[Member]:
    metadata = edit_metadata(wheel.metadata_text, version=version, requires_dist=request.requires_dist)
    yield from_bytes(f"{dist_info}/METADATA", metadata.encode())
    # machine code belongs into platlib whatever the backend thought
    wheel_text = edit_wheel(wheel.wheel_text, tags=all_tags, purelib=False if has_code else None)
    yield from_bytes(f"{dist_info}/WHEEL", wheel_text.encode())
    from sm120_wheels.wheel.sbom import make_sbom  # half a second to import, and who only reads wheels needs none

    sbom = make_sbom(
        distribution=wheel.filename.distribution,
        version=version,
        sources=request.sources,
        patches=request.patches,
        toolchain=request.toolchain,
        source_date_epoch=request.source_date_epoch,
    )
    yield from_bytes(f"{dist_info}/{SBOM}", sbom.encode())
    record = {**request.build_record, "left_out": sorted(request.left_out)}
    yield from_bytes(
        f"{dist_info}/{BUILD_RECORD}",
        (json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode(),
    )
