"""Decide everything about a build before anything is downloaded: pins, patches, toolchain, components, names, key.

``make_plan`` is a pure function of the request, the recipe, the patches and the locks; its content key changes exactly
when the result could.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sm120_wheels import __version__, files, headers, patch, paths, recipe
from sm120_wheels.arch import Arch
from sm120_wheels.errors import (
    RecipeInvalidError,
    UnknownArchError,
    UnknownComponentError,
    UnsupportedTargetError,
    near_misses,
)
from sm120_wheels.fetch import folder_pin
from sm120_wheels.matrix import names
from sm120_wheels.pairing import choose_pairing, choose_python
from sm120_wheels.pinned_files import lock_files, recipe_files
from sm120_wheels.recipe import PackageVersion, Recipe
from sm120_wheels.wheel.version import local_version

#: Modules that a build of the flashinfer-aot backend takes when nothing is asked for.
_DEFAULT_PROFILE = "minimal"


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What a user asks for; None means the recipe's default."""

    recipe: str
    version: str | None = None
    cuda: str | None = None
    torch: str | None = None
    archs: tuple[str, ...] = ()
    python: str | None = None
    without: tuple[str, ...] = ()
    profile: str | None = None
    """Module profile of the flashinfer-aot backend."""
    modules: tuple[str, ...] = ()
    """Modules by name, for the flashinfer-aot backend; replaces ``profile``."""
    without_patches: tuple[str, ...] = ()
    """Groups of patches to leave out."""
    whole_headers: bool = False
    """Compile with the libraries' own headers, not the recipe's lean ones."""
    platform: str | None = None
    """``linux_aarch64``; None is this machine's. Another one's can be planned, not built."""


@dataclass(frozen=True, kw_only=True)
class PlannedComponent:
    name: str
    built: bool
    why: str
    """Why it is left out; empty where it is built."""
    partial: bool
    """Whether a wheel without it lacks something that the target could run."""


@dataclass(frozen=True, kw_only=True)
class PlannedSource:
    name: str
    kind: str
    url: str
    pin: str
    fetchcontent: str | None
    licence: str
    paths: tuple[str, ...]
    into: str | None


@dataclass(frozen=True, kw_only=True)
class PlannedPatch:
    name: str
    subject: str
    source: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A build, decided. All of it but ``key`` and ``identifier`` goes into the key."""

    recipe: str
    version: str
    distribution: str
    import_name: str
    backend: str
    archs: tuple[str, ...]
    cuda: str
    torch: str
    python: str
    python_tag: str
    platform: str
    wheel_version: str
    components: tuple[PlannedComponent, ...]
    main: str
    """Name of the source that holds the package."""
    directory: str
    """Folder in it that holds pyproject.toml."""
    sources: tuple[PlannedSource, ...]
    patches: tuple[PlannedPatch, ...]
    without_patches: tuple[str, ...]
    """Groups of patches that were left out."""
    lean_headers: str | None
    """Set of lean headers that CUDA sources are compiled with; None: the libraries' own."""
    lean_headers_sha256: str | None
    locks: dict[str, str]
    recipe_files: dict[str, str]
    """sha256 of the data files beside recipe.toml that shape the wheel (module profiles, package templates)."""
    defines: dict[str, str]
    environment: dict[str, str]
    requires_torch: str
    torch_runtime: bool
    numa: bool
    profile: str | None
    modules: tuple[str, ...]
    tool_version: str
    identifier: str = field(default="")
    key: str = field(default="")

    @property
    def partial(self) -> bool:
        """Whether something that the target could run was left out."""
        return any(component.partial for component in self.components)

    @property
    def targets(self) -> tuple[Arch, ...]:
        return tuple(Arch.parse(name) for name in self.archs)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "partial": self.partial}


def make_plan(
    request: BuildRequest,
    *,
    recipes_root: Path | None = None,
    patches_root: Path | None = None,
    running_python: str | None = None,
) -> Plan:
    """Decide a build. Raises the 1x errors of errors.py, each with near misses, and the 3x for bad patches."""
    root = recipes_root or paths.recipes_root()
    package = recipe.load(request.recipe, root)
    number, pins = package.version(request.version)
    archs = _archs(request, package)
    pairing = choose_pairing(request.cuda, request.torch, package=package, number=number, pins=pins, archs=archs)
    python = choose_python(request.python, pairing, running_python or f"3.{sys.version_info.minor}")
    components = _components(request, package, number, pins, archs)
    built = {component.name for component in components if component.built}
    chosen = patch.select(
        patch.discover(package.name, patches_root), number, package.versions, without=request.without_patches
    )
    lean_headers = None if request.whole_headers else pins.lean_headers
    sources = tuple(
        _source(name, source, root / package.name)
        for name, source in pins.sources.items()
        if not source.components or built & set(source.components)
    )
    of_sources = {source.name for source in sources}
    for one in chosen:
        if one.source and one.source not in pins.sources:
            raise RecipeInvalidError(
                f"the patch {one.name} is for an unknown source {one.source!r}",
                where=str(one.path),
                hint=near_misses(one.source, pins.sources),
            )
    tag = _python_tag(package, pins, python, built)
    wheel_version = local_version(
        upstream=number,
        cuda=pairing.cuda,
        torch=pairing.torch,
        archs=archs,
        partial=any(component.partial for component in components),
    )
    undecided = Plan(
        recipe=package.name,
        version=number,
        distribution=pins.distribution,
        import_name=pins.import_name,
        backend=package.backend,
        archs=tuple(str(arch) for arch in archs),
        cuda=pairing.cuda,
        torch=pairing.torch,
        python=python,
        python_tag=tag,
        platform=_platform(request),
        wheel_version=wheel_version,
        components=components,
        main=pins.main,
        directory=pins.directory,
        sources=sources,
        patches=tuple(
            PlannedPatch(name=p.name, subject=p.subject, source=p.source or pins.main, sha256=p.sha256)
            for p in chosen
            if (p.source or pins.main) in of_sources
        ),
        without_patches=tuple(sorted(set(request.without_patches))),
        lean_headers=lean_headers,
        lean_headers_sha256=headers.digest(lean_headers) if lean_headers else None,
        locks=lock_files(pins, pairing, root),
        recipe_files=recipe_files(root / package.name, package, pins),
        defines=_defines(package, pins, components, archs),
        environment=dict(pins.environment),
        requires_torch=f"torch{pins.torch_requires.format(torch=pairing.torch)}",
        torch_runtime=pins.torch_runtime,
        numa=pins.numa,
        profile=None if request.modules else (request.profile or (_DEFAULT_PROFILE if _is_aot(package) else None)),
        modules=request.modules,
        tool_version=__version__,
    )
    if (request.profile or request.modules) and not _is_aot(package):
        raise UnknownComponentError(
            f"{package.name} has no module profiles",
            why="--profile and --modules choose among flashinfer's ahead-of-time modules",
            hint="leave them out; --without leaves out a component",
        )
    values = asdict(undecided)
    return Plan(
        **{
            **{name: getattr(undecided, name) for name in values},
            "identifier": names.build_identifier(
                distribution=pins.distribution,
                version=number,
                cuda=pairing.cuda,
                torch=pairing.torch,
                python_tag=tag.replace("-", "_"),
                archs=archs,
                platform=undecided.platform,
            ),
            "key": files.content_key(values),
        }
    )


def _is_aot(package: Recipe) -> bool:
    return package.backend == "flashinfer-aot"


def _archs(request: BuildRequest, package: Recipe) -> tuple[Arch, ...]:
    chosen: list[Arch] = []
    for text in request.archs or (package.architectures.default,):
        arch = Arch.parse(text)
        if reason := package.architectures.refused.get(str(arch)):
            raise UnsupportedTargetError(
                f"{package.name} cannot be built for {arch}", why=reason, hint=_try_archs(package)
            )
        if str(arch) not in package.architectures.supported:
            raise UnknownArchError(
                f"{package.name} is not built for {arch}",
                where=f"recipes/{package.name}/recipe.toml, key architectures.supported",
                hint=near_misses(text, package.architectures.supported),
            )
        if arch not in chosen:
            chosen.append(arch)
    if len(chosen) > 1 and _is_aot(package):
        raise UnsupportedTargetError(
            f"{package.name} is built for one target at a time, not for {' and '.join(map(str, chosen))}",
            why="a provider wheel is for one target, and upstream's runtime looks for it by that name",
            hint="build each by itself; 12.0f runs on 12.0 and on 12.1",
        )
    return tuple(sorted(chosen))


def _platform(request: BuildRequest) -> str:
    if request.platform is None:
        return names.platform_name()
    if request.platform not in names.PLATFORMS:
        raise UnsupportedTargetError(
            f"nothing is built for the platform {request.platform!r}",
            hint=near_misses(request.platform, names.PLATFORMS),
        )
    return request.platform


def _try_archs(package: Recipe) -> str:
    return f"--arch {package.architectures.default}; supported: {', '.join(package.architectures.supported)}"


def _components(
    request: BuildRequest, package: Recipe, number: str, pins: PackageVersion, archs: Sequence[Arch]
) -> tuple[PlannedComponent, ...]:
    for name in request.without:
        if name not in pins.components:
            raise UnknownComponentError(
                f"{package.name} {number} has no component {name!r}",
                hint=near_misses(name, pins.components),
            )
    planned = []
    for name in pins.components:
        needs = package.components[name].architectures
        why, partial = "", False
        if needs and not {str(arch) for arch in archs} & set(needs):
            why = f"holds code for {', '.join(needs)} only"
        elif name in request.without:
            why, partial = "left out by --without", True
        elif name in pins.unavailable:
            why, partial = pins.unavailable[name], True
        planned.append(PlannedComponent(name=name, built=not why, why=why, partial=partial))
    if _is_aot(package) and (request.modules or request.profile != "full"):
        # Two profiles make two different wheels; only the whole one may carry the plain version.
        chosen = "--modules" if request.modules else f"profile {request.profile or _DEFAULT_PROFILE}"
        why = f"{chosen} takes only the modules that it names"
        planned.append(PlannedComponent(name="other-modules", built=False, why=why, partial=True))
    return tuple(planned)


def _python_tag(package: Recipe, pins: PackageVersion, python: str, built: set[str]) -> str:
    if _is_aot(package):
        return "py3-none"
    if pins.abi3 and not any(package.components[name].one_python for name in built):
        return f"cp{pins.abi3.replace('.', '')}-abi3"
    return f"cp{python.replace('.', '')}-cp{python.replace('.', '')}"


def _source(name: str, source: recipe.Source, folder: Path) -> PlannedSource:
    kind = next(k for k in ("git", "archive", "pypi", "folder") if getattr(source, k))
    if source.folder and not (folder / source.folder).is_dir():
        raise RecipeInvalidError(
            f"there is no folder {source.folder} beside the recipe",
            where=f"{folder / 'recipe.toml'}, key sources.{name}.folder",
            hint="name the folder that holds the source",
        )
    return PlannedSource(
        name=name,
        kind=kind,
        url=source.url,
        pin=folder_pin(folder / source.folder) if source.folder else source.pin,
        fetchcontent=source.fetchcontent,
        licence=source.licence,
        paths=source.paths,
        into=source.into,
    )


def _defines(
    package: Recipe, pins: PackageVersion, components: Sequence[PlannedComponent], archs: Sequence[Arch]
) -> dict[str, str]:
    values = dict(pins.defines)
    for arch in archs:
        values.update(pins.defines_for.get(str(arch), {}))
    for component in components:
        known = package.components.get(component.name)
        if known and (define := known.define):
            values[define] = "ON" if component.built else "OFF"
    numbers = [arch.number for arch in archs]
    return {
        name: value.replace("{archs}", ";".join(numbers)).replace(
            "{archs_real}", ";".join(f"{n}-real" for n in numbers)
        )
        for name, value in values.items()
    }
