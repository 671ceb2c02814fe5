"""A whole smoke run: finds out what is to be tested and on what, runs the cases, and gives the report.

Raises nothing for what a case does; raises where the run cannot begin (another run has the GPU, a wheel is damaged).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sm120_wheels import files, paths
from sm120_wheels.compile.isolation import no_network_prefix
from sm120_wheels.errors import SmokeNotRunError
from sm120_wheels.gpus import Gpu
from sm120_wheels.prove import inputs
from sm120_wheels.prove.audit import Audit, audit
from sm120_wheels.prove.smoke import coverage, packages
from sm120_wheels.prove.smoke.engine import Engine
from sm120_wheels.prove.smoke.isolation import worker_environment
from sm120_wheels.prove.smoke.model import CaseResult, CaseSpec
from sm120_wheels.prove.smoke.overlay import Unpacked
from sm120_wheels.prove.smoke.report import Report, Subject
from sm120_wheels.prove.smoke.sanitizer import Sanitizer, find_sanitizer
from sm120_wheels.prove.smoke.surroundings import Surroundings
from sm120_wheels.prove.smoke.workers import Setup
from sm120_wheels.prove.verdict import judge
from sm120_wheels.wheel.version import is_partial


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a run."""

    backend: str = "cuda"
    """``cuda``; ``host`` and ``cpu`` test the harness."""
    suites: Sequence[Path] = ()
    """Folders or files of cases; empty: those of the packages."""
    keyword: str = ""
    last_failed: bool = False
    deadline: float | None = None
    sanitizer: str = ""
    junit: Path | None = None
    list_only: bool = False
    network: bool = False
    """Leave the network to the workers."""
    imports: Sequence[Mapping[str, Any]] = field(default=())
    """Packages to import, for suites that are not of a known package."""


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A wheel, or an installed distribution, with what is known of its package."""

    name: str
    sha256: str
    distribution: str
    version: str
    package: packages.Package | None
    root: Path | None
    subject: inputs.Subject | None
    audit: Audit | None
    verdict: str = ""


def examine(wheel: Unpacked, gpus: Sequence[Gpu]) -> Tested:
    """Audit a wheel for the first of the GPUs, without the search for traps."""
    subject = inputs.subject(str(wheel.wheel))
    found = audit(subject, ())
    return Tested(
        name=wheel.wheel.name,
        sha256=wheel.sha256,
        distribution=wheel.distribution,
        version=wheel.version,
        package=packages.package_of(wheel.distribution),
        root=wheel.root,
        subject=subject,
        audit=found,
        verdict=judge(found, gpus[0].capability).answer if gpus else "",
    )


def refusal(tested: Sequence[Tested], gpu: Gpu) -> str:
    """Why a GPU is refused: a wheel that has GPU code, and none that this GPU could run."""
    for each in tested:
        if each.verdict == "none" and each.audit is not None:
            images = (i for lib in each.audit.gpu_libraries for i in lib.images)
            have = sorted({i.target for i in images if i.kind in ("sass", "ptx")})
            return (
                f"{each.name} has {', '.join(have) or 'no loadable code'}; "
                f"{gpu.name} is {gpu.compute} and needs sm_{gpu.compute.replace('.', '')}"
            )
    return ""


def suite_paths(tested: Sequence[Tested], asked: Sequence[Path]) -> list[Path]:
    """The folders of cases to collect. Raises :class:`SmokeNotRunError` where there are none."""
    if asked:
        return list(asked)
    names = dict.fromkeys(each.package.suite for each in tested if each.package is not None)
    found = [packages.SUITES / name for name in names if any((packages.SUITES / name).glob("test_*.py"))]
    if not found:
        raise SmokeNotRunError(
            f"there are no cases for {', '.join(each.distribution for each in tested) or 'nothing'}",
            hint=f"suites are there for {', '.join(packages.known_suites()) or 'nothing yet'}; --suite names a folder",
        )
    return found


def smoke(
    request: Request,
    *,
    tested: Sequence[Tested],
    gpus: Sequence[Gpu],
    surroundings: Surroundings,
    notes: Sequence[str] = (),
    seen: Callable[[CaseResult], None] = lambda result: None,
    begin: Callable[[int], None] = lambda total: None,
    doing: Callable[[str], None] = lambda text: None,
) -> tuple[Report, list[CaseSpec]]:
    """Run the cases. Gives the report and what was selected; with ``list_only`` nothing is run.

    Raises :class:`BusyError` where another run has the GPU, :class:`SettingError` where a suite cannot be collected,
    :class:`KeyboardInterrupt` where it was stopped.
    """
    began = time.monotonic()
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    suites = suite_paths(tested, request.suites)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(files.scratch_folder(paths.cache_root() / "smoke" / "run"))
        if not request.list_only:
            for gpu in gpus:
                stack.enter_context(gpu_lock(gpu))
        prefix = () if request.network else no_network_prefix()
        sanitizer = _sanitizer(request, scratch, surroundings)
        setup = Setup(
            python=surroundings.python,
            backend=request.backend,
            environment=worker_environment(
                os.environ,
                scratch=scratch,
                visible=",".join(gpu.visible for gpu in gpus) if gpus else None,
                network=not prefix,
            )
            | (dict(sanitizer.environment) if sanitizer is not None else {}),
            packages=_imports(tested, request),
            overlays=[each.root for each in tested if each.root is not None],
            scratch=scratch,
            prefix=prefix,
            wrapper=() if sanitizer is None else sanitizer.wrapper(surroundings.python),
        )
        engine = Engine(
            setup=setup,
            gpus=list(gpus),
            deadline=request.deadline,
            sanitizer=sanitizer,
            left_out=left_out_of(tested),
            on_start=lambda: doing("starting a worker"),
        )
        results: list[CaseResult] = []

        def run_case(spec: CaseSpec) -> CaseResult:
            doing(spec.node.rpartition("/")[2])
            result = engine.run(spec)
            results.append(result)
            return result

        stack.callback(engine.kill)
        specs, junit = _pytest(request, suites, scratch, run_case, seen, begin)
        engine.close()
        if sanitizer is not None and results:
            results[-1] = sanitizer.judge(results[-1])  # what it said when the last worker ended
    hello = engine.hello
    facts = dict(hello.facts) if hello is not None else {}
    report = Report(
        backend=request.backend,
        when=when,
        seconds=time.monotonic() - began,
        gpus=[gpu.facts() for gpu in gpus],
        environment={
            "python": surroundings.version,
            "torch": facts.get("torch") or surroundings.torch,
            "cuda": facts.get("cuda") or "",
            "origin": surroundings.origin,
            "packages": dict(sorted(surroundings.packages.items())),
        },
        isolation={
            "network": "left as it is"
            if request.network
            else "off"
            if prefix
            else "on: no network namespace is allowed here",
            "loopback": bool(facts.get("loopback")),
            "interfaces": facts.get("interfaces", []),
            "compilers": "hidden",
            "jit": "FLASHINFER_DISABLE_JIT=1; compilers that a case starts are refused",
        },
        results=results,
        subjects=[
            _subject(each, hello.operators if hello else (), results, suites, gpus)
            for each in tested or [_only_cases(suites)]
        ],
        selection=_selection(request),
        notes=[*notes, *facts.get("notes", [])],
        workers=engine.started,
        junit=junit,
        start_seconds=hello.seconds if hello is not None else 0.0,
    )
    return report, specs


def left_out_of(tested: Sequence[Tested]) -> Callable[[CaseSpec], str]:
    """Why packages of function libraries that are marked partial lack what a case asks for. Elsewhere a library that is
    missing is a failure."""
    mine = [e for e in tested if e.subject is not None and e.package is not None and e.package.functions]
    if not any(is_partial(e.version) for e in mine):
        return lambda spec: ""
    there = [name for e in mine if e.subject is not None for name in coverage.module_functions(e.subject)]
    return lambda spec: coverage.left_out(spec.operators, there)


@contextlib.contextmanager
def gpu_lock(gpu: Gpu) -> Iterator[None]:
    """Keep a GPU for this run: two at once would measure each other. Raises :class:`BusyError`."""
    name = (gpu.uuid or f"index-{gpu.index}").replace("/", "_")
    root = paths.runtime_root()
    files.make_private_folder(root)
    with files.locked(root / f"smoke-{name}.lock", what=f"GPU {gpu.index} ({gpu.name})", timeout_s=0):
        yield


def _sanitizer(request: Request, scratch: Path, surroundings: Surroundings) -> Sanitizer | None:
    if not request.sanitizer:
        return None
    program = find_sanitizer(surroundings.python)
    if program is None:
        raise SmokeNotRunError(
            f"{request.sanitizer} was not run: compute-sanitizer is not on this machine",
            hint="install the package nvidia-cuda-sanitizer-api, or a CUDA toolkit (CUDA_HOME names it)",
        )
    return Sanitizer(program=program, tool=request.sanitizer, folder=scratch)


def _imports(tested: Sequence[Tested], request: Request) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = [
        {
            "imports": list(each.package.imports),
            "parts": list(each.package.parts),
            "namespaces": list(each.package.namespaces),
            "root": str(each.root or ""),
        }
        for each in tested
        if each.package is not None
    ]
    return [*found, *request.imports]


def _selection(request: Request) -> str:
    parts = [f"-k {request.keyword}" if request.keyword else "", "--lf" if request.last_failed else ""]
    parts += [f"--suite {', '.join(p.name for p in request.suites)}" if request.suites else ""]
    parts += [f"under {request.sanitizer}" if request.sanitizer else ""]
    return ", ".join(part for part in parts if part)


def _only_cases(suites: Sequence[Path]) -> Tested:
    """What stands for the wheel where cases alone were asked for."""
    name = f"cases of {', '.join(path.name for path in suites)}"
    return Tested(name=name, sha256="", distribution="", version="0", package=None, root=None, subject=None, audit=None)


def _subject(
    each: Tested, registered: Sequence[str], results: Sequence[CaseResult], suites: Sequence[Path], gpus: Sequence[Gpu]
) -> Subject:
    package = each.package
    names = [n for n in registered if package is None or n.partition("::")[0] in package.namespaces]
    if package is not None and package.functions and each.subject is not None:
        names += coverage.module_functions(each.subject)
    suite_names = [package.suite] if package is not None else []
    suite_names += [path.name for path in suites if path.name not in suite_names]
    mine = [r for r in results if r.spec.suite in suite_names]
    return Subject(
        name=each.name,
        sha256=each.sha256,
        operators=coverage.operators(names, mine),
        unregistered=coverage.unregistered(names, mine) if names else [],
        kernels=coverage.kernels(each.audit, gpus[0].capability if gpus else None, mine),
        suites=suite_names,
        verdict=each.verdict,
    )


def _pytest(
    request: Request,
    suites: Sequence[Path],
    scratch: Path,
    run_case: Callable[[CaseSpec], CaseResult],
    seen: Callable[[CaseResult], None],
    begin: Callable[[int], None],
) -> tuple[list[CaseSpec], str]:
    from sm120_wheels.prove.smoke import inner

    return inner.run(
        list(suites),
        run_case=run_case,
        seen=seen,
        begin=begin,
        keyword=request.keyword,
        last_failed=request.last_failed,
        list_only=request.list_only,
        junit=request.junit is not None,
        scratch=scratch,
        cache=paths.cache_root() / "smoke" / "pytest",
    )
