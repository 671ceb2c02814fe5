"""The pipeline: recipe, plan, fetch, patch, provision, compile, finish. Each stage leaves a record; data flows one way.

What a stage does lives in its own module; here they are only put in order and their records kept.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sm120_wheels import backends, files, measured, patch, paths, recipe
from sm120_wheels.console import note
from sm120_wheels.errors import UnsupportedTargetError
from sm120_wheels.fetch import fetch_source
from sm120_wheels.matrix.names import platform_name
from sm120_wheels.plan import BuildRequest, Plan, make_plan
from sm120_wheels.provision import Provisioned, provision
from sm120_wheels.recipe import PackageVersion
from sm120_wheels.settings import Settings
from sm120_wheels.stages import Record, WorkFolder


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How to build; nothing here changes the result."""

    jobs: int | None = None
    """Compiles at once; None lets the scheduler decide."""
    memory: int | None = None
    """Budget in bytes; None takes what the machine has."""
    settings: Settings = field(default_factory=Settings)
    cuda_source: Literal["auto", "pypi", "system"] = "auto"
    cuda_home: Path | None = None
    host_compiler: Path | None = None
    environment: Path | None = None
    """Interpreter of an environment to use as it is, instead of one made from the locks."""
    keep_work: bool = False


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What a build left."""

    plan: Plan
    wheels: tuple[dict[str, Any], ...]
    """For each wheel: path, sha256, size in bytes, tags."""
    work: Path
    up_to_date: bool
    """Nothing had to be done: an identical build had been finished before."""
    stages: dict[str, Record]

    def to_json(self) -> dict[str, Any]:
        return {
            "identifier": self.plan.identifier,
            "key": self.plan.key,
            "plan": self.plan.to_json(),
            "wheels": list(self.wheels),
            "work": str(self.work),
            "up_to_date": self.up_to_date,
            "stages": self.stages,
        }


def build(request: BuildRequest, options: BuildOptions) -> BuildResult:
    """Build the wheels of a request, going on where an earlier run of the same plan was stopped.

    Raises the errors of the stages; what they finished is kept. Two runs of one plan at a time: the second gets
    BusyError.
    """
    plan = make_plan(request)
    _refuse_other_platform(plan)
    _, pins = recipe.load(plan.recipe).version(plan.version)
    key = _work_key(plan, options)
    work = WorkFolder(root=paths.build_root() / f"{plan.identifier}-{key[:10]}", key=key)
    with (
        files.locked(work.root / ".lock", what=f"the build {plan.identifier}", timeout_s=0),
        files.no_space_is_an_error(work.root),
    ):
        done = work.read("finish")
        if done is not None and _wheels_are_there(done["output"]):
            return _measured(_result(plan, work, _bring_to(paths.dist_root(), done["output"]), up_to_date=True))
        if work.read("compile") is None:
            backends.check_memory(plan, memory=options.memory)
        patched = sources(plan, pins, work, options.settings)
        started = time.monotonic()
        provisioned = toolchain(plan, pins, options)
        work.run(
            "provision",
            provisioned.record,
            still_there=lambda output: bool(output == provisioned.record()),
            spent=time.monotonic() - started,
        )
        compiled = _compile(plan, pins, work, patched["output"], provisioned, options)
        finished = _finish(plan, work, patched["output"], provisioned, compiled["output"])
        if not options.keep_work:
            _drop_bulk(work)
    return _measured(_result(plan, work, finished["output"], up_to_date=False))


def _refuse_other_platform(plan: Plan) -> None:
    if plan.platform != (here := platform_name()):
        raise UnsupportedTargetError(
            f"{plan.identifier} cannot be built here",
            why=f"it is for {plan.platform}; this machine is {here}, and nothing is compiled across platforms",
            hint=f"run the same command on a {plan.platform.removeprefix('linux_')} machine",
        )


def _measured(result: BuildResult) -> BuildResult:
    """Leave what the build cost beside its wheels."""
    measured.write_beside(result.wheels, identifier=result.plan.identifier, key=result.plan.key, stages=result.stages)
    return result


def _work_key(plan: Plan, options: BuildOptions) -> str:
    """The plan's key, unless a toolchain that the plan does not pin was asked for: that one's objects stay apart."""
    given = {
        "cuda_source": "" if options.cuda_source == "auto" else options.cuda_source,
        "cuda_home": str(options.cuda_home or ""),
        "host_compiler": str(options.host_compiler or ""),
        "environment": str(options.environment or ""),
    }
    return files.content_key([plan.key, given]) if any(given.values()) else plan.key


def _bring_to(folder: Path, output: dict[str, Any]) -> dict[str, Any]:
    """Finished wheels in the output folder of today, where an earlier run had another."""
    wheels = []
    for wheel in output["wheels"]:
        target = folder / wheel["filename"]
        if not (target.is_file() and files.sha256_file(target) == wheel["sha256"]):
            with files.atomic_path(target) as temporary:
                shutil.copyfile(wheel["path"], temporary)
        wheels.append({**wheel, "path": str(target)})
    return {"wheels": wheels}


def _wheels_are_there(output: dict[str, Any]) -> bool:
    return all(
        Path(wheel["path"]).is_file() and files.sha256_file(Path(wheel["path"])) == wheel["sha256"]
        for wheel in output["wheels"]
    )


def _result(plan: Plan, work: WorkFolder, finished: dict[str, Any], *, up_to_date: bool) -> BuildResult:
    records = {
        stage: record for stage in ("fetch", "patch", "provision", "compile", "finish") if (record := work.read(stage))
    }
    return BuildResult(
        plan=plan, wheels=tuple(finished["wheels"]), work=work.root, up_to_date=up_to_date, stages=records
    )


def toolchain(plan: Plan, pins: PackageVersion, options: BuildOptions) -> Provisioned:
    """CUDA, the Python environment and libnuma of a build, found or made."""
    return provision(
        plan,
        cache_root=paths.cache_root(),
        offline=options.settings.offline,
        cuda_source=options.cuda_source,
        cuda_home=options.cuda_home,
        host_compiler=options.host_compiler,
        environment=options.environment,
        torch_runtime=pins.torch_runtime,
        cuda_needs=pins.cuda_needs,
        tools=pins.tools,
    )


def sources(plan: Plan, pins: PackageVersion, work: WorkFolder, settings: Settings) -> Record:
    """The first stages: plan, fetch, patch. The patched sources then lie in ``work.sources``."""
    work.run("plan", lambda: plan.to_json(), still_there=lambda _: True)
    fetched = _fetch(plan, pins, work, settings)
    return _patch(plan, pins, work, fetched["output"])


def _fetch(plan: Plan, pins: PackageVersion, work: WorkFolder, settings: Settings) -> Record:
    def fetch() -> Record:
        found = []
        for planned in plan.sources:
            source = fetch_source(
                planned.name,
                pins.sources[planned.name],
                recipe_folder=paths.recipes_root() / plan.recipe,
                cache_root=paths.cache_root(),
                settings=settings,
            )
            found.append(
                {
                    "name": source.name,
                    "folder": str(source.folder),
                    "pin": source.pin,
                    "from": source.came_from,
                    "epoch": source.epoch,
                }
            )
        return {"sources": found}

    def all_there(output: Record) -> bool:
        return all(Path(source["folder"]).is_dir() for source in output["sources"])

    return work.run("fetch", fetch, still_there=all_there)


def _patch(plan: Plan, pins: PackageVersion, work: WorkFolder, fetched: Record) -> Record:
    def patch_all() -> Record:
        shutil.rmtree(work.sources, ignore_errors=True)
        for source in fetched["sources"]:
            into = pins.sources[source["name"]].into or source["name"]
            with files.no_space_is_an_error(work.sources):
                shutil.copytree(source["folder"], work.sources / into, symlinks=True, dirs_exist_ok=True)
        states = []
        by_name = {one.name: one for one in patch.discover(plan.recipe)}
        for planned in plan.patches:
            state = patch.apply(by_name[planned.name], work.sources / planned.source)
            states.append({"name": planned.name, "sha256": planned.sha256, "state": state, "subject": planned.subject})
        epoch = next(source["epoch"] for source in fetched["sources"] if source["name"] == pins.main)
        return {"folder": str(work.sources), "patches": states, "source_date_epoch": epoch}

    return work.run("patch", patch_all, still_there=lambda output: work.sources.is_dir())


def _compile(
    plan: Plan,
    pins: PackageVersion,
    work: WorkFolder,
    patched: Record,
    provisioned: Provisioned,
    options: BuildOptions,
) -> Record:
    def compile_all() -> Record:
        note(f"compiling {plan.identifier}")
        return backends.compile_package(
            plan,
            pins,
            work,
            patched,
            provisioned,
            jobs_wanted=options.jobs,
            memory=options.memory,
            compiler_cache=options.settings.compiler_cache,
            shared_cache=options.settings.shared_cache,
        )

    def raw_there(output: Record) -> bool:
        return all(Path(wheel).is_file() for wheel in output["raw"])

    return work.run("compile", compile_all, still_there=raw_there)


def _finish(plan: Plan, work: WorkFolder, patched: Record, provisioned: Provisioned, compiled: Record) -> Record:
    def finish_all() -> Record:
        raw = [Path(path) for path in compiled["raw"]]
        # some of flashinfer's modules are for another target by upstream's own flags, and may be all that was chosen
        wanted = () if plan.backend == "flashinfer-aot" else plan.targets
        code = backends.machine_code(raw, wanted=wanted)
        wheels = backends.finish_wheels(plan, patched, provisioned, raw, paths.dist_root())
        return {"wheels": wheels, "machine_code": code}

    return work.run("finish", finish_all, still_there=_wheels_are_there)


def _drop_bulk(work: WorkFolder) -> None:
    """Keep records and log; sources, objects and the raw wheel can be made again."""
    for folder in (work.sources, work.compile, work.raw):
        shutil.rmtree(folder, ignore_errors=True)
