"""The one way in: an unpacked flashinfer sdist and a build environment in, raw wheels out.

May be stopped at any time and called again with the same request: what is finished is kept in the work folder.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sm120_wheels.arch import Arch
from sm120_wheels.compile.flashinfer import listing, ninja, profiles, wheels
from sm120_wheels.compile.flashinfer.listing import Module
from sm120_wheels.compile.flashinfer.profiles import LeftOut
from sm120_wheels.errors import ConfigureError
from sm120_wheels.files import content_key, write_json
from sm120_wheels.wheel.write import ZIP_EPOCH


@dataclass(frozen=True, kw_only=True)
class FlashinferBuildRequest:
    """Everything that a build uses. It never uses the network."""

    source_dir: Path
    """The unpacked and patched sdist. It is not written to."""
    python: Path
    """Interpreter of a virtual environment that holds torch and recipes/locks/flashinfer-<version>."""
    cuda_root: Path
    """A toolkit with nvcc, the headers of cublas, ``lib64`` with unversioned links and ``lib64/stubs/libcuda.so``."""
    arch: Arch
    profile: str | None = None
    """A profile of profiles.toml; with neither this nor ``modules``, its default."""
    modules: tuple[str, ...] = ()
    """Groups, module names or glob patterns, on top of ``profile`` if one is given."""
    version: str
    """Version of shim and provider: upstream's, with our local label (``0.7.4+cu130.torch211.sm120f``)."""
    work_dir: Path
    """For this request alone; another source or toolkit needs another folder."""
    out_dir: Path
    log: Path
    jobs: int
    """Compiles that ninja starts at once."""
    launcher: tuple[str, ...] = ()
    """Put in front of every compile. A change of it compiles everything again, so it must not name a run."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of every program (the launcher's settings)."""
    ldflags: tuple[str, ...] = ()
    """Added to every link."""
    host_compiler: Path | None = None
    """g++ or another C++ compiler for nvcc, C++ sources and links; None for ``c++`` on PATH."""
    source_date_epoch: int = ZIP_EPOCH
    """Time of the files in the wheels, seconds since 1970."""
    on_stage: Callable[[str], None] = lambda stage: None
    """Told what is done now, beside compiling; nothing while compiling."""


@dataclass(frozen=True, kw_only=True)
class FlashinferBuildResult:
    """What came out."""

    wheels: tuple[Path, ...]
    """In the order in which they may be published: flashinfer-python (public version, to be labelled), the providers
    (one for each target, that of the build first), the shim. Shim and providers require each other."""
    modules: tuple[Module, ...]
    """Those built, by name."""
    left_out: tuple[LeftOut, ...]
    """Those of upstream's default build for the target that were not, with the reason."""
    translation_units: int
    """Sources of the modules built."""
    other_targets: tuple[str, ...]
    """Modules built whose machine code, by upstream's own flags, is for another target than the build's; they are in a
    provider of their own."""
    paths_inside: tuple[tuple[str, str], ...]
    """Modules whose library holds a path of this machine, with that path. Empty is right."""


def build(request: FlashinferBuildRequest) -> FlashinferBuildResult:
    """Compile the chosen modules and write the wheels into ``out_dir``.

    Raises SettingError and UnknownComponentError for a profile or module that does not exist, ConfigureError where
    upstream's Python code fails, CompileError with the first failing command and CompilerKilledError.
    """
    known = profiles.load_profiles()
    choice = profiles.choose(known, profile=request.profile, modules=request.modules)
    source, work = request.source_dir.resolve(), request.work_dir.resolve()
    env = listing.environment(
        python=request.python.absolute(),
        cuda_root=request.cuda_root.absolute(),
        arch=request.arch,
        work=work,
        host_compiler=request.host_compiler,
        launcher=request.launcher,
        ldflags=request.ldflags,
        extra=request.environment,
    )
    request.on_stage("listing upstream's modules")
    listed = listing.list_modules(
        source=source,
        work=work,
        python=request.python.absolute(),
        choice=choice,
        env=env,
        log=request.log,
    )
    names = [module.name for module in listed.modules]
    profiles.check_asked(choice, names, groups=known.groups, target=request.arch.sm)
    taken = tuple(sorted((m for m in listed.modules if choice.takes(m.name)), key=lambda m: m.name))
    if not taken:
        raise ConfigureError(f"no module of flashinfer is chosen for {request.arch.sm}", where="--modules")
    libraries = work / "modules"
    request.on_stage("")
    ninja.run_ninja(
        ninja_file=listed.ninja,
        folder=libraries,
        env=env,
        jobs=request.jobs,
        log=request.log,
    )
    request.on_stage("packing flashinfer-python with upstream's backend")
    python_wheel = _python_wheel(request, source=source, work=work, env=env, version=listed.version)
    kernels = wheels.KernelWheels(
        version=request.version,
        public=listed.version,
        commit=wheels.upstream_commit(source),
    )
    request.on_stage("packing the kernel wheels")
    request.out_dir.mkdir(parents=True, exist_ok=True)
    providers = wheels.by_target(taken, arch=request.arch)
    kernel_wheels = [
        wheels.write_provider(
            kernels, provider, libraries=libraries, source=source, out=request.out_dir, epoch=request.source_date_epoch
        )
        for provider in providers
    ]
    shim = wheels.write_shim(kernels, providers, source=source, out=request.out_dir, epoch=request.source_date_epoch)
    private = (source, work, request.cuda_root.absolute(), request.python.absolute().parent.parent)
    return FlashinferBuildResult(
        wheels=(python_wheel, *kernel_wheels, shim),
        modules=taken,
        left_out=(
            *(LeftOut(name=name, why=why) for name, why in listed.missing),
            *profiles.explain(choice, names),
        ),
        translation_units=sum(len(module.sources) for module in taken),
        other_targets=tuple(m.name for m in taken if m.targets and m.targets != (request.arch.sm,)),
        paths_inside=tuple(
            (m.name, path) for m in taken for path in _paths_inside(libraries / m.name / f"{m.name}.so", private)
        ),
    )


def _python_wheel(
    request: FlashinferBuildRequest, *, source: Path, work: Path, env: Mapping[str, str], version: str
) -> Path:
    """Build the Python package, or take the one that an earlier run of this request built."""
    out = work / "python-wheel"
    record = out / "done.json"
    path = out / f"flashinfer_python-{version}-py3-none-any.whl"
    key = content_key([str(source), str(request.python.absolute())])
    if not (record.is_file() and path.is_file() and key in record.read_text(encoding="utf-8")):
        out.mkdir(parents=True, exist_ok=True)
        built = wheels.build_python_wheel(
            source=source,
            work=work,
            out=out,
            python=request.python.absolute(),
            env=env,
            log=request.log,
        )
        if built.name != path.name:
            raise ConfigureError(
                "flashinfer's build backend made another wheel than expected",
                where=str(built),
                why=f"its name should be {path.name}",
            )
        write_json(record, {"key": key})
    return path


def _paths_inside(library: Path, private: tuple[Path, ...]) -> list[str]:
    """Which of these folders' paths stand in the library's bytes."""
    with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return [str(path) for path in private if data.find(str(path).encode() + b"/") >= 0]
