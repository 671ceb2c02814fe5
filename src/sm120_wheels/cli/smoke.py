"""``sm120 smoke``: launches what a wheel registers on a real GPU, against a reference, under a watchdog."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sm120_wheels import console, files, paths, settings
from sm120_wheels.errors import SettingError, SmokeFailedError, SmokeNotRunError, SmokeRefusedError
from sm120_wheels.gpus import Gpu, find_gpus
from sm120_wheels.prove.smoke import packages, surroundings
from sm120_wheels.prove.smoke.consumer import Consumer, install
from sm120_wheels.prove.smoke.installed import find_installed
from sm120_wheels.prove.smoke.overlay import Unpacked, unpack
from sm120_wheels.prove.smoke.progress import Progress
from sm120_wheels.prove.smoke.report import Report, Subject, judge, record, to_terminal
from sm120_wheels.prove.smoke.run import Request, Tested, examine, refusal, smoke
from sm120_wheels.prove.smoke.sanitizer import TOOLS
from sm120_wheels.toolchain.uv import note_downloads

#: Seconds.
_DEADLINES = (0.1, 86_400.0)


def _suite(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[Path, ...]:
    """A name of a suite of ours, or a path."""
    found = []
    for value in values:
        ours = packages.SUITES / value
        path = ours if "/" not in value and ours.is_dir() else Path(value)
        if not value or not path.exists():
            raise SettingError(
                f"--suite {value}: no such suite or folder", hint=f"ours are {', '.join(packages.known_suites())}"
            )
        found.append(path.absolute())
    return tuple(found)


@click.command("smoke")
@click.argument("wheels", metavar="WHEEL...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--installed", multiple=True, metavar="NAME", help="Test a package that is installed in --environment.")
@click.option(
    "--from-index", nargs=2, metavar="URL NAME[==V]", help="Test what a consumer gets: NAME, installed from an index."
)
@click.option(
    "--environment",
    type=click.Path(path_type=Path),
    metavar="PYTHON",
    help="Test with this interpreter's torch; nothing is installed there. Default: a clean environment from locks "
    "(--from-index: from the indexes).",
)
@click.option("--python", default="3.12", show_default=True, metavar="3.X", help="Python of a clean environment.")
@click.option("-k", "keyword", default="", metavar="EXPR", help="Only cases whose name matches, as pytest's -k.")
@click.option("--lf", "last_failed", is_flag=True, help="Only the cases that failed last time.")
@click.option("--suite", "suites", multiple=True, callback=_suite, metavar="NAME|DIR", help="Other cases than its own.")
@click.option("--gpus", "gpu_count", type=click.IntRange(min=1), default=1, show_default=True, help="GPUs to use.")
@click.option("--sanitizer", type=click.Choice(TOOLS), help="Run under compute-sanitizer.")
@click.option("--deadline", type=float, metavar="SECONDS", help="For each case, not its own.")
@click.option("--network", is_flag=True, help="Leave the network to the cases.")
@click.option("--record", "record_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the record here.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page.")
@click.option("--list", "list_only", is_flag=True, help="Show the cases and run none.")
@click.option("--offline/--online", default=None, help="Make the clean environment from the cache alone.")
@click.option("--backend", type=click.Choice(["cuda", "host", "cpu"]), default="cuda", hidden=True)
@click.option("--import", "imports", multiple=True, hidden=True, metavar="MODULE=NAMESPACE")
def command(
    wheels: tuple[Path, ...],
    installed: tuple[str, ...],
    from_index: tuple[str, str] | None,
    environment: Path | None,
    python: str,
    keyword: str,
    last_failed: bool,
    suites: tuple[Path, ...],
    gpu_count: int,
    sanitizer: str | None,
    deadline: float | None,
    network: bool,
    record_file: Path | None,
    junit: Path | None,
    html: Path | None,
    list_only: bool,
    offline: bool | None,
    backend: str,
    imports: tuple[str, ...],
) -> int:
    """Launch the operators of each WHEEL on a GPU and check what they compute.

    Each case runs eagerly and in a CUDA graph, in a worker process that is killed where it hangs. The result goes to
    WHEEL.smoke.json, bound to the wheel's sha256.

    Exit codes: 0 passed, 70 a case failed, 71 nothing was run (no GPU), 72 the wheel has no code for this GPU.
    """
    if not wheels and not installed and not suites and not from_index:
        raise SettingError("nothing to test", hint="give a wheel, --installed NAME, or --suite with --environment")
    if from_index and (wheels or installed):
        raise SettingError("--from-index tests what it installs", hint="leave out wheels and --installed")
    if deadline is not None and not _DEADLINES[0] <= deadline <= _DEADLINES[1]:  # nor NaN
        raise SettingError(f"--deadline {deadline:g}: give {_DEADLINES[0]:g} to {_DEADLINES[1]:g} seconds")
    if installed and environment is None:
        environment = Path(sys.executable)
    request = Request(
        backend=backend,
        suites=suites,
        keyword=keyword,
        last_failed=last_failed,
        deadline=deadline,
        sanitizer=sanitizer or "",
        junit=junit,
        list_only=list_only,
        network=network,
        imports=[_import(text) for text in imports],
    )
    for option, file in {"--record": record_file, "--junit": junit, "--html": html}.items():
        if file is not None and not list_only:
            _check_output(option, file, wheels)
    gpus, why = _gpus(request, gpu_count)
    with contextlib.ExitStack() as stack:
        if from_index:
            if request.backend == "cuda" and not gpus:  # before anything is downloaded
                _check_gpu(request, [], gpus, why, record_file)
            folder = stack.enter_context(files.scratch_folder(paths.cache_root() / "smoke" / "consumer"))
            consumer = _consumer(from_index, python, folder, environment)
            environment = consumer.python
            tested = [_from_index(consumer, gpus)]
        else:
            tested = []
        unpacked = [unpack(wheel, cache_root=paths.cache_root()) for wheel in wheels]
        tested += [examine(wheel, gpus) for wheel in unpacked]
        tested += [find_installed(name, environment, gpus) for name in installed if environment is not None]
        return _run(request, tested, gpus, why, unpacked, environment, python, offline, record_file, html)


def _run(
    request: Request,
    tested: Sequence[Tested],
    gpus: Sequence[Gpu],
    why: str,
    unpacked: Sequence[Unpacked],
    environment: Path | None,
    python: str,
    offline: bool | None,
    record_file: Path | None,
    html: Path | None,
) -> int:
    list_only = request.list_only
    if not list_only:
        _check_gpu(request, tested, gpus, why, record_file)
    around = _surroundings(unpacked, environment, python, offline=offline, list_only=list_only)
    notes = [] if list_only else surroundings.unmet(around, unpacked)
    progress = Progress()
    try:
        report, specs = smoke(
            request,
            tested=tested,
            gpus=gpus,
            surroundings=around,
            notes=notes,
            seen=progress.seen,
            begin=progress.begin,
            doing=progress.doing,
        )
    finally:
        progress.end()
    if list_only:
        for spec in specs:
            click.echo(f"{spec.node}  {', '.join(spec.operators)}  {spec.deadline:g} s")
        return 0
    click.echo(to_terminal(report))
    _write(report, [each.wheel for each in unpacked], record_file, html)
    if request.junit is not None and report.junit:
        files.write_text(request.junit, report.junit)
    return _verdict(report)


def _consumer(from_index: tuple[str, str], python: str, folder: Path, over: Path | None) -> Consumer:
    url, requirement = from_index
    return install(
        url,
        requirement,
        python=python,
        folder=folder,
        cache_root=paths.cache_root(),
        over=over,
        on_line=note_downloads,
    )


def _from_index(consumer: Consumer, gpus: Sequence[Gpu]) -> Tested:
    wheel = consumer.wheel
    return find_installed(
        consumer.name,
        consumer.python,
        gpus,
        sha256=wheel.sha256 if wheel is not None else "",
        wheel=wheel.filename if wheel is not None else "",
    )


def _import(text: str) -> dict[str, Any]:
    module, _, namespace = text.partition("=")
    return {"imports": [module], "parts": [], "namespaces": [namespace] if namespace else [], "root": ""}


def _gpus(request: Request, count: int) -> tuple[list[Gpu], str]:
    if request.backend != "cuda":
        return [], ""
    found, why = find_gpus()
    if 0 < len(found) < count:
        have = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in found)
        raise SettingError(f"--gpus {count}: there are {len(found)}", why=f"usable here: {have}")
    return found[:count], why


def _check_output(option: str, file: Path, wheels: Sequence[Path]) -> None:
    """Now, and not after minutes on a GPU."""
    if file.resolve() in [wheel.resolve() for wheel in wheels]:
        raise SettingError(f"{option} {file}: that is the wheel itself", hint="name another file")
    if file.is_dir():
        raise SettingError(f"{option} {file}: it is a folder", hint="name a file in it")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as exc:
        raise SettingError(f"{option} {file}: nothing can be written there", why=str(exc)) from exc


def _check_gpu(
    request: Request, tested: Sequence[Tested], gpus: Sequence[Gpu], why: str, record_file: Path | None
) -> None:
    """Stop before anything is launched where there is no GPU, or one that a wheel has no code for."""
    if request.backend != "cuda":
        return
    if not gpus:
        reason = f"no GPU: {why}"
        _record_not_run(tested, gpus, reason, record_file)
        raise SmokeNotRunError(
            "the smoke test was not run", why=reason, hint="run it on a machine with an NVIDIA GPU and its driver"
        )
    if refused := refusal(tested, gpus[0]):
        _record_not_run(tested, gpus, refused, record_file)
        raise SmokeRefusedError(
            f"the GPU was refused: no wheel code for {gpus[0].compute}",
            why=refused,
            hint="build the wheel for this GPU (sm120 build --arch …), or test it on a GPU that it is for",
        )


def _record_not_run(tested: Sequence[Tested], gpus: Sequence[Gpu], why: str, record_file: Path | None) -> None:
    """Say so on disk only where asked: a record of another machine that says more must not be lost."""
    if record_file is None or not tested:
        return
    report = Report.nothing(why, gpus=[g.facts() for g in gpus])
    documents = [record(report, Subject.untested(t.name, t.sha256, t.verdict)) for t in tested]
    files.write_json(record_file, documents[0] if len(documents) == 1 else documents)


def _surroundings(
    unpacked: Sequence[Unpacked], environment: Path | None, python: str, *, offline: bool | None, list_only: bool
) -> surroundings.Surroundings:
    if list_only:
        return surroundings.Surroundings(python=Path(sys.executable), version="", origin="given", packages={})
    if environment is not None:
        return surroundings.given(environment, unpacked)
    return surroundings.locked(
        unpacked,
        python=python,
        cache_root=paths.cache_root(),
        offline=settings.resolve(offline=offline).offline,
        on_line=note_downloads,
    )


def _write(report: Report, wheels: Sequence[Path], record_file: Path | None, html: Path | None) -> None:
    documents = [(subject, record(report, subject)) for subject in report.subjects]
    if record_file is not None:
        values = [document for _, document in documents]
        files.write_json(record_file, values[0] if len(values) == 1 else values)
        console.note(f"record: {record_file}")
    elif report.selection:
        console.note(f"no record is written beside the wheel: only some cases were asked for ({report.selection})")
    else:
        places = {wheel.name: wheel for wheel in wheels}
        for subject, document in documents:
            if subject.name in places:
                place = places[subject.name].with_name(subject.name + ".smoke.json")
                if said := _says_more(place, document):
                    console.note(
                        f"record: {place} stays: it says {said}, and this run nothing ({document['reason']}); "
                        "--record FILE keeps this one's"
                    )
                    continue
                files.write_json(place, document)
                console.note(f"record: {place}")
    if html is not None:
        from sm120_wheels.prove.smoke.page import to_html

        files.write_text(html, to_html([document for _, document in documents]))
        console.note(f"page: {html}")


def _says_more(place: Path, document: Mapping[str, Any]) -> str:
    """The state of the record that is there, where it is about the same file and ran, and the new one did not."""
    if document["state"] != "not run" or not place.is_file():
        return ""
    try:
        there = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    if not isinstance(there, dict) or there.get("wheel_sha256") != document.get("wheel_sha256"):
        return ""
    return str(there.get("state", "")) if there.get("state") in ("passed", "failed") else ""


def _verdict(report: Report) -> int:
    state, reason = judge(report, report.results)
    if state == "failed":
        failed = [r for r in report.results if r.state == "failed"]
        raise SmokeFailedError(
            f"the smoke test failed: {len(failed)} of {len(report.results)} cases",
            why="\n".join(f"{r.spec.node}: {r.why[:300]}" for r in failed[:5]),
            hint="--lf runs only these again; --html shows stacks and output",
        )
    if not any(r.state == "passed" for r in report.results):
        raise SmokeNotRunError("the smoke test was not run", why=reason)
    return 0
