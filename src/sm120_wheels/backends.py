"""From a plan to a backend's request, and from raw wheels to finished ones: the only place that knows both sides."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from packaging.version import Version

from sm120_wheels import headers, paths
from sm120_wheels.arch import Arch
from sm120_wheels.compile import budget, cmake, flashinfer, progress
from sm120_wheels.compile.cache import setup as cache
from sm120_wheels.compile.cache.ccache import Places
from sm120_wheels.compile.cache.choice import Choice
from sm120_wheels.compile.cache.shared import SharedCache
from sm120_wheels.compile.isolation import no_network_prefix
from sm120_wheels.compile.profile import check_fits, read_profile
from sm120_wheels.compile.session import CompileSession, compile_session
from sm120_wheels.console import note
from sm120_wheels.errors import AuditFailedError
from sm120_wheels.plan import Plan
from sm120_wheels.prove import inputs
from sm120_wheels.prove.audit import audit
from sm120_wheels.provision import Provisioned
from sm120_wheels.recipe import PackageVersion
from sm120_wheels.stages import Record, WorkFolder
from sm120_wheels.wheel.finish import FinishRequest, finish
from sm120_wheels.wheel.reproducible import Reproducible, reproducible_build
from sm120_wheels.wheel.sbom import AppliedPatch, Source, Tool
from sm120_wheels.wheel.tags import provided_elsewhere


def compile_package(
    plan: Plan,
    pins: PackageVersion,
    work: WorkFolder,
    patched: Record,
    provisioned: Provisioned,
    *,
    jobs_wanted: int | None,
    memory: int | None,
    compiler_cache: Choice = "auto",
    shared_cache: SharedCache | None = None,
) -> Record:
    """Run the plan's backend and measure it: wall and CPU seconds, peak memory of the whole process tree in bytes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (
        progress.display() as tell,
        compile_session(
            package=f"{plan.recipe}-{plan.version}{'' if _is_lean(plan) or not pins.lean_headers else '-whole'}",
            work_dir=work.root / "scheduler",
            profile=profile_path(plan),
            budget=memory,
            cores=jobs_wanted,
            on_progress=tell,
        ) as session,
        cache.compiler_cache(
            session,
            _places(plan, pins, work, provisioned),
            choice=compiler_cache,
            shared_cache=shared_cache,
            work_dir=work.root / "scheduler",
            tell=note,
            jobs=jobs_wanted,
        ),
    ):
        if plan.backend == "flashinfer-aot":
            raw, modules = _flashinfer(plan, pins, work, patched, provisioned, session)
        else:
            raw, modules = [_cmake(plan, pins, work, patched, provisioned, session)], {}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "raw": [str(path) for path in raw],
        **modules,
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "network": "none (own network namespace)" if no_network_prefix() else "not isolated",
        "scheduler": session.summary.to_json(),
    }


def check_memory(plan: Plan, *, memory: int | None) -> None:
    """Refuse, before anything is downloaded, a plan with a file that this machine's memory can never hold.

    Raises :class:`InsufficientMemoryError`. ``memory``: the user's limit in bytes.
    """
    profile = profile_path(plan)
    if profile is not None:
        check_fits(read_profile(profile), ceiling=budget.measure(cap=memory).ceiling)


def _is_lean(plan: Plan) -> bool:
    """What the same file takes differs up to three times; so neither profile nor measurements serve for both."""
    return plan.lean_headers is not None and not plan.without_patches


def profile_path(plan: Plan) -> Path | None:
    """The measured profile that ships with the recipe for this target: this version's, else the nearest older one's,
    else the oldest; None where there is none. Sources that a version does not have do no harm. A build without lean
    patches or lean headers takes up to three times as much, and has a profile of its own (``…-whole.csv``), where that
    was measured."""
    targets = "+".join(arch.number for arch in plan.targets)
    folder = paths.recipes_root() / plan.recipe / "profiles"
    kinds = ("",) if _is_lean(plan) else ("-whole", "")
    measured = next((files for kind in kinds if (files := list(folder.glob(f"*-sm{targets}{kind}.csv")))), [])
    found = {Version(file.name.partition("-sm")[0]): file for file in measured}
    older = [version for version in found if version <= Version(plan.version)]
    return found[max(older) if older else min(found)] if found else None


def _cmake(
    plan: Plan,
    pins: PackageVersion,
    work: WorkFolder,
    patched: Record,
    provisioned: Provisioned,
    session: CompileSession,
) -> Path:
    defines = cmake_defines(plan, pins, work, provisioned)
    stable = _stable(work.sources, work, patched, provisioned, lean_headers=plan.lean_headers)
    request = cmake.CmakeBuild(
        project=work.sources / pins.main / pins.directory,
        python=provisioned.environment.python,
        bin=provisioned.environment.bin,
        cuda_root=provisioned.cuda.root,
        host_compiler=provisioned.cuda.host_compiler.path,
        torch_dir=provisioned.torch_dir,
        defines={**stable.cmake_defines, **defines},
        environment={
            **plan.environment,
            **session.environment,
            **stable.environment,
            "LDFLAGS": " ".join(stable.ldflags),
        },
        launcher=(*stable.launcher, *session.launcher),
        jobs=session.ninja_jobs,
        build_dir=work.compile,
        out_dir=work.raw,
        log=work.log,
    )
    return cmake.build(request)


def cmake_defines(plan: Plan, pins: PackageVersion, work: WorkFolder, provisioned: Provisioned) -> dict[str, str]:
    """What a plan gives to CMake: its own definitions, where the sources lie that CMake would fetch, libnuma."""
    defines = dict(plan.defines)
    for planned in plan.sources:
        if planned.fetchcontent:
            into = pins.sources[planned.name].into or planned.name
            defines[f"FETCHCONTENT_SOURCE_DIR_{planned.fetchcontent.upper()}"] = str(work.sources / into)
    return defines | (provisioned.numa.cmake_defines() if provisioned.numa else {})


def _flashinfer(
    plan: Plan,
    pins: PackageVersion,
    work: WorkFolder,
    patched: Record,
    provisioned: Provisioned,
    session: CompileSession,
) -> tuple[list[Path], Record]:
    """The three raw wheels, and which modules they hold."""
    source = work.sources / pins.main
    stable = _stable(source, work, patched, provisioned, lean_headers=plan.lean_headers)
    built = flashinfer.build(
        flashinfer.FlashinferBuildRequest(
            source_dir=source,
            python=provisioned.environment.python,
            cuda_root=provisioned.cuda.root,
            arch=plan.targets[0],
            profile=plan.profile,
            modules=plan.modules,
            version=plan.wheel_version,
            work_dir=work.compile,
            out_dir=work.raw,
            log=work.log,
            jobs=session.ninja_jobs,
            launcher=(*stable.launcher, *session.launcher),
            environment={**plan.environment, **session.environment, **stable.environment},
            ldflags=stable.ldflags,
            host_compiler=provisioned.cuda.host_compiler.path,
            source_date_epoch=patched["source_date_epoch"],
            on_stage=partial(setattr, session, "stage"),
        )
    )
    return list(built.wheels), {
        "modules": [module.name for module in built.modules],
        "translation_units": built.translation_units,
        "left_out": [asdict(item) for item in built.left_out],
        "other_targets": list(built.other_targets),
        "paths_inside": [list(pair) for pair in built.paths_inside],
    }


def _places(plan: Plan, pins: PackageVersion, work: WorkFolder, provisioned: Provisioned) -> Places:
    """What a compiler cache must call the same on every machine."""
    sources = work.sources / pins.main if plan.backend == "flashinfer-aot" else work.sources
    version = provisioned.environment.version.rpartition(".")[0]
    python_headers = provisioned.environment.python.resolve().parent.parent / "include" / f"python{version}"
    lean = headers.folder(plan.lean_headers) if plan.lean_headers else None
    numa = provisioned.numa
    return Places(
        build_root=work.compile,
        roots={
            sources: "src",
            provisioned.cuda.root: "cuda",
            provisioned.environment.root: "environment",
            **({python_headers: "python"} if python_headers.is_dir() else {}),
            **({lean: "headers"} if lean else {}),
            # the system's lies where every machine has it
            **({numa.include_dir: "numa"} if numa and numa.origin == "unpacked" else {}),
        },
        header_folders=(sources, *((lean,) if lean else ())),
        cuda_root=provisioned.cuda.root,
        host_compiler=provisioned.cuda.host_compiler.path,
    )


def _stable(
    sources: Path, work: WorkFolder, patched: Record, provisioned: Provisioned, *, lean_headers: str | None
) -> Reproducible:
    lean = headers.folder(lean_headers) if lean_headers else None
    return reproducible_build(
        source_root=sources,
        build_root=work.compile,
        source_date_epoch=patched["source_date_epoch"],
        others={
            provisioned.cuda.root: "cuda",
            provisioned.environment.root: "environment",
            **({lean: "headers"} if lean else {}),
        },
        before_includes=(lean,) if lean else (),
        nvcc=version_pair(provisioned.cuda.version),
    )


def version_pair(version: str) -> tuple[int, int]:
    """``(13, 0)`` of ``13.0.88``."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def finish_wheels(
    plan: Plan, patched: Record, provisioned: Provisioned, raw: Sequence[Path], out_dir: Path
) -> list[dict[str, Any]]:
    """Finish every raw wheel into the output folder; gives path, sha256, size and tags of each."""
    main = next(source for source in plan.sources if source.name == plan.main)
    finished = []
    for wheel in raw:
        result = finish(
            FinishRequest(
                raw=wheel,
                out_dir=out_dir,
                version=plan.wheel_version,
                source_date_epoch=patched["source_date_epoch"],
                # flashinfer takes every requirement of its shim for a provider. Providers do not link torch, but an
                # index has one for each CUDA, and the torch is what an installer can choose among them by.
                requires_dist=() if wheel.name.startswith("flashinfer_jit_cache-") else (plan.requires_torch,),
                python_tag=None if plan.backend == "flashinfer-aot" else plan.python_tag,
                excluded_libraries=provided_elsewhere(numa=plan.numa),
                expected_cuda_major=int(plan.cuda.split(".")[0]),
                sources=tuple(
                    Source(
                        name=source.name,
                        url=source.url,
                        revision=source.pin,
                        licence=source.licence,
                        kind="upstream" if source is main else "third-party",
                    )
                    for source in plan.sources
                ),
                patches=tuple(
                    AppliedPatch(name=one["name"], sha256=one["sha256"], description=one["subject"])
                    for one in patched["patches"]
                    if one["state"] == "applied"
                ),
                toolchain=_tools(provisioned),
                build_record=build_record(plan, provisioned),
                left_out=tuple(component.name for component in plan.components if component.partial),
            )
        )
        finished.append(
            {
                "path": str(result.path),
                "filename": result.filename,
                "sha256": result.sha256,
                "size": result.size,
                "tags": list(result.tags),
                "platform_because": list(result.platform_because),
            }
        )
    return finished


def machine_code(wheels: Sequence[Path], *, wanted: Sequence[Arch]) -> list[str]:
    """Targets that wheels have machine code for, read from them.

    Raises :class:`AuditFailedError` where there is some, and none for a target that was ``wanted``: a build can drop an
    architecture without a word.
    """
    found = sorted({target for wheel in wheels for target in audit(inputs.subject(str(wheel)), ()).targets})
    missing = [arch.sm for arch in wanted if arch.sm not in found]
    if found and missing:
        raise AuditFailedError(
            f"the build made no machine code for {' and '.join(missing)}",
            where=", ".join(map(str, wheels)),
            why=f"it was asked for, and there is code for {', '.join(found)}",
            hint="a patch or an option of the package sets the architectures itself",
        )
    return found


def build_record(plan: Plan, provisioned: Provisioned) -> dict[str, Any]:
    """What goes into the wheel: the plan and the toolchain, without a path or a time of this machine."""
    return {"plan": asdict(plan) | {"partial": plan.partial}, "toolchain": provisioned.record()}


def _tools(provisioned: Provisioned) -> tuple[Tool, ...]:
    packages = provisioned.environment.packages
    compiler = provisioned.cuda.host_compiler
    return (
        Tool(name="nvcc", version=provisioned.cuda.version),
        Tool(name=compiler.kind, version=compiler.version),
        *(
            Tool(name=name, version=packages[name])
            for name in ("cmake", "ninja", "scikit-build-core")
            if name in packages
        ),
    )
