"""What the lean build saves, on one machine in one run: upstream's architecture list, sm_120a alone, and lean.

    python -m benchmarks.lean --prepare FOLDER --jobs 16 --threads 7 --whole-alone RECORD --whole-lean RECORD \
        [--sample copy.cu,moe_sum.cu] [-- --cuda-from system --environment PYTHON …]

FOLDER is filled by `sm120 prepare` (what stands behind `--` goes to it) and configured, once `--without-patches lean
--whole-headers` and once as it comes. `--alone` and `--lean` name folders with a build.ninja instead, such as those of
`sm120 build … --keep-work`. Each sampled translation unit is compiled once in each of the three ways, `--jobs` at a
time, into a temporary folder; for upstream's list the -gencode options of `alone` are replaced, and nvcc may compile
`--threads` targets at a time. CPU seconds are user and system time of all processes; peak memory is the sum of resident
sizes of the process tree, five times a second, or the largest process if that is more.

RECORD is the compile-summary.json of a finished build, for figures of whole wheels (CPU and peak of its largest
translation unit; wall needs equal machines); `--wheel-*` give sizes. Upstream's whole wheel is never built here, its
CPU is scaled: the record's units fall into light ones, heavy ones (from 100 CPU seconds on) and host sources; the CPU
that each kind takes in the record of `alone` is multiplied with the sample's ratio of that kind (host sources: 1, no
target concerns them), the sum with the two libraries that upstream compiles the same sources for. Weak in this: the
sample is chosen, not drawn, and the heavy units are few and unlike each other, so the range with the lowest and the
highest ratio of each kind is given as well. Without a heavy unit in the sample (the smallest takes ten minutes of CPU)
these count as if upstream had one target, and the sum is a lower bound. Not counted: flash_ops and flashmla_ops, most
of upstream's wheel.

Nothing is said of what was not given. Last lines: lean over upstream's list where there is a sample and both records,
and lean over sm_120a alone, in CPU seconds: of whole wheels where both records are given, else of the sample.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from sm120_wheels import headers
from sm120_wheels.compile.sampling import tree
from sm120_wheels.files import human_bytes, human_seconds
from sm120_wheels.wheel.reproducible import LAUNCHER

#: What each of the 56 fat binaries of the official wheel's sm100/common_ops holds (0.4.4, x86_64, CUDA 13).
UPSTREAM = "80,89,90,90a,100a,103a,120a"
#: Four light units (two with torch's whole header, two with ATen's) and two heavy ones (kernels up to SM90, of SM100).
SAMPLE = (
    "elementwise/copy.cu,moe/moe_sum_reduce.cu,elementwise/concat_mla.cu,flashinfer/csrc/norm.cu,"
    "gemm/int8_gemm_kernel.cu,expert_specialization/es_sm100_mxfp8_blockscaled.cu"
)
#: CPU seconds of a unit compiled for sm_120a alone, from which on it is a heavy one.
HEAVY = 100
_TARGET = re.compile(r"^(?:-gencode|--generate-code)(?:=|$)")
WAYS = ("upstream's list", "sm_120a alone", "lean")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """CPU and wall seconds, bytes at the peak."""

    cpu_s: float
    wall_s: float
    peak: int


#: Of each translation unit the cost of each way.
Sample = dict[str, dict[str, Cost]]


def command_of(build: Path, name: str) -> tuple[list[str], Path]:
    """The compile of the translation unit whose path ends in ``name``, and the object that it writes."""
    listed = subprocess.run(["ninja", "-C", str(build), "-t", "commands"], check=True, capture_output=True, text=True)
    found = []
    for line in listed.stdout.splitlines():
        if name not in line or " -c " not in line:
            continue
        argv = shlex.split(line)
        source = Path(argv[argv.index("-c") + 1]) if "-c" in argv[:-1] else Path()
        if f"/{source}".endswith(f"/{name}"):
            found.append((argv, Path(argv[argv.index("-o") + 1])))
    if len(found) != 1:
        raise click.UsageError(f"{len(found)} compiles in {build} end in {name}; name one, e.g. elementwise/copy.cu")
    return found[0]


def without_launchers(argv: list[str]) -> list[str]:
    """Without the memory scheduler (it would wait for other compiles), with what else stands before the compiler."""
    return [word for word in argv if Path(word).name != "sm120-launch"]


def for_targets(argv: list[str], targets: list[str], threads: int) -> list[str]:
    """The same compile for other GPU targets, some of them at a time."""
    kept, skip = [], False
    for word in argv:
        if skip or _TARGET.match(word):
            skip = not skip and "=" not in word.partition("arch=")[0]
            continue
        kept.append(word)
    kept = [word for word in kept if not word.startswith("--threads")]
    return [*kept, f"--threads={threads}", *(f"-gencode=arch=compute_{t},code=sm_{t}" for t in targets)]


@contextlib.contextmanager
def most_resident(pid: int) -> Iterator[list[int]]:
    """The most that the processes below ``pid`` had resident, in bytes, in a list of one that grows while they run."""
    peaks, ended = [0], threading.Event()

    def sample() -> None:
        while not ended.wait(0.2):
            peaks[0] = max(peaks[0], tree(pid).resident)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield peaks
    finally:
        ended.set()
        sampler.join()


def compile_once(argv: list[str], build: Path, env: dict[str, str], output: Path | None = None) -> Cost:
    """Run one compile; ends the benchmark where it fails. ``output``: where the object is to stay, if it is."""
    with tempfile.TemporaryDirectory(prefix="sm120-bench-") as where:
        argv = list(argv)
        argv[argv.index("-o") + 1] = str(output or Path(where) / "unit.o")
        for option in ("-MF", "-MT"):
            if option in argv:
                argv[argv.index(option) + 1] = str(Path(where) / "unit.d")
        began = time.monotonic()
        process = subprocess.Popen(argv, cwd=build, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

        with most_resident(process.pid) as peaks:
            assert process.stderr is not None
            said = process.stderr.read().decode("utf-8", "replace")
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            wall = time.monotonic() - began
    if process.returncode:
        raise click.ClickException(f"a compile failed ({shlex.join(argv)[-200:]}):\n{said[-2000:]}")
    return Cost(cpu_s=usage.ru_utime + usage.ru_stime, wall_s=wall, peak=max(*peaks, usage.ru_maxrss * 1024))


def environment(build: Path) -> dict[str, str]:
    """What stable-compile.sh needs; one folder before all includes is taken from the plan beside the build."""
    env = {**os.environ, "SM120_STABLE_BUILD_ROOT": str(build), "SM120_STABLE_NVCC_SEED": "-frandom-seed"}
    plan = build.parent / "records" / "0-plan.json"
    if plan.is_file():
        record: dict[str, Any] = json.loads(plan.read_text(encoding="utf-8"))
        if name := record["output"].get("lean_headers"):
            env["SM120_STABLE_NVCC_FIRST"] = f"-I{headers.folder(name)}"
    return env


def configured(into: Path, options: list[str]) -> Path:
    """A configured build folder of sgl-kernel, nothing compiled; the sources are in the folder ``src`` beside it."""
    prepare = [sys.executable, "-m", "sm120_wheels", "prepare", "sgl-kernel", "--json", "--into", str(into), *options]
    told = json.loads(subprocess.run(prepare, check=True, stdout=subprocess.PIPE, text=True).stdout)
    python, build = Path(told["python"]), into / "compile"
    defines = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CUDA_COMPILER_LAUNCHER": f"/bin/sh;{LAUNCHER}",
        "Python_EXECUTABLE": str(python),
        "SKBUILD_SABI_COMPONENT": "Development.SABIModule",  # this and the version: as scikit-build-core gives them
        "SKBUILD_SABI_VERSION": "3.10",
    }
    command = ["cmake", "-G", "Ninja", "-S", told["project"], "-B", str(build), "-C", told["cache"]]
    command += [f"-D{name}={value}" for name, value in defines.items()]
    env = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    env["CUDACXX"] = f"{told['cuda']}/bin/nvcc"
    done = subprocess.run(command, capture_output=True, env=env, text=True)
    if done.returncode:
        raise click.ClickException(f"cmake failed:\n{done.stderr[-2000:]}")
    return build


def total(costs: list[Cost]) -> Cost:
    """All CPU seconds; the longest and the largest."""
    return Cost(cpu_s=sum(c.cpu_s for c in costs), wall_s=max(c.wall_s for c in costs), peak=max(c.peak for c in costs))


def recorded(file: Path) -> Cost:
    """A finished build's compiles. Raises UsageError where some failed: half a build is no figure."""
    record = json.loads(file.read_text(encoding="utf-8"))
    if record["failed"]:
        raise click.UsageError(f"{file}: {len(record['failed'])} compiles failed")
    units = record["units"]
    return Cost(
        cpu_s=sum(unit["cpu_seconds"] for unit in units),
        wall_s=record["makespan"],
        peak=max(unit["peak_rss"] for unit in units),
    )


def kind(unit: dict[str, Any]) -> str:
    """What a unit of a record for sm_120a alone counts as."""
    if not unit["source"].endswith(".cu"):
        return "host"
    return "heavy" if unit["cpu_seconds"] >= HEAVY else "light"


def scaled(units: list[dict[str, Any]], sample: Sample, libraries: int) -> tuple[float, float, float]:
    """CPU seconds of upstream's list for all units of a record: with the sample's ratios, with the lowest of each kind,
    with the highest. A kind that the sample has none of counts as if there were one target: too little."""
    totals = [0.0, 0.0, 0.0]
    for which in sorted({kind(unit) for unit in units}):
        alike = [unit for unit in units if kind(unit) == which]
        names = [name for name in sample if any(f"/{unit['source']}".endswith(f"/{name}") for unit in alike)]
        ratios = [1.0, 1.0, 1.0]
        if names and which != "host":
            upstream, alone = ([sample[name][way].cpu_s for name in names] for way in WAYS[:2])
            each = [a / b for a, b in zip(upstream, alone, strict=True)]
            ratios = [sum(upstream) / sum(alone), min(each), max(each)]
        basis = f"of {len(names)} compiled here" if names else "counted like one target"
        print(
            f"{which}: {len(alike)} units, upstream's list {ratios[0]:.2f} times sm_120a alone, {basis}",
            file=sys.stderr,
        )
        for i, ratio in enumerate(ratios):
            totals[i] += ratio * libraries * sum(unit["cpu_seconds"] for unit in alike)
    return totals[0], totals[1], totals[2]


def sampled(names: list[str], alone: Path, lean: Path, targets: list[str], *, jobs: int, threads: int) -> Sample:
    """Each unit in the three ways, ``jobs`` compiles at a time, the longest first."""

    def one(task: tuple[str, str]) -> Cost:
        name, way = task
        build = lean if way == WAYS[2] else alone
        argv = without_launchers(command_of(build, name)[0])
        argv = for_targets(argv, targets, threads) if way == WAYS[0] else argv
        cost = compile_once(argv, build, environment(build))
        told = f"{cost.cpu_s:.1f} CPU s, {human_seconds(cost.wall_s)}, {human_bytes(cost.peak)}"
        print(f"{name}, {way}: {told}", file=sys.stderr, flush=True)
        return cost

    tasks = [(name, way) for way in WAYS for name in reversed(names)]
    with ThreadPoolExecutor(jobs) as pool:
        costs = dict(zip(tasks, pool.map(one, tasks), strict=True))
    return {name: {way: costs[name, way] for way in WAYS} for name in names}


def row(what: str, way: str, cost: Cost | None, *, size: str = "", note: str = "") -> str:
    cells = ["", "", ""] if cost is None else [f"{cost.cpu_s:.0f}", human_seconds(cost.wall_s), human_bytes(cost.peak)]
    return "| " + " | ".join([what, way, *cells, size, note]) + " |"


@click.command()
@click.option("--prepare", type=click.Path(path_type=Path), help="Folder to prepare and configure both builds in.")
@click.option("--alone", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Build for sm_120a alone.")
@click.option("--lean", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Lean build.")
@click.option("--sample", default=SAMPLE, show_default=True, help="Translation units to compile in all three ways.")
@click.option("--jobs", default=1, show_default=True, help="Compiles at a time.")
@click.option("--threads", default=1, show_default=True, help="Targets of upstream's list at a time, in each compile.")
@click.option("--targets", default=UPSTREAM, show_default=True, help="Upstream's architecture list.")
@click.option("--libraries", default=2, show_default=True, help="How often upstream compiles the same sources.")
@click.option("--whole-alone", type=click.Path(path_type=Path, exists=True), help="compile-summary.json.")
@click.option("--whole-lean", type=click.Path(path_type=Path, exists=True), help="compile-summary.json.")
@click.option("--wheel-upstream", type=click.Path(path_type=Path, exists=True))
@click.option("--wheel-alone", type=click.Path(path_type=Path, exists=True))
@click.option("--wheel-lean", type=click.Path(path_type=Path, exists=True))
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there as JSON.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(
    prepare: Path | None,
    alone: Path | None,
    lean: Path | None,
    sample: str,
    jobs: int,
    threads: int,
    targets: str,
    libraries: int,
    whole_alone: Path | None,
    whole_lean: Path | None,
    wheel_upstream: Path | None,
    wheel_alone: Path | None,
    wheel_lean: Path | None,
    file: Path | None,
    options: tuple[str, ...],
) -> None:
    if bool(alone) != bool(lean) or (prepare and alone):
        raise click.UsageError("give --prepare, or --alone and --lean, or none of them")
    if prepare:
        what = ["--version", "0.4.4", "--without", "triton-kernels,sparse-attention", *options]
        lean = configured(prepare.absolute() / "lean", what)
        alone = configured(prepare.absolute() / "alone", [*what, "--without-patches", "lean", "--whole-headers"])
    names = [name for name in sample.split(",") if name]
    units: Sample = {}
    if alone and lean:
        units = sampled(names, alone.absolute(), lean.absolute(), targets.split(","), jobs=jobs, threads=threads)
    sums = {way: total([units[name][way] for name in names]) for way in WAYS} if units else {}
    records = {WAYS[1]: whole_alone, WAYS[2]: whole_lean}
    whole = {way: recorded(path) for way, path in records.items() if path}
    guess = scaled(json.loads(whole_alone.read_bytes())["units"], units, libraries) if units and whole_alone else None
    sizes = dict(zip(WAYS, (wheel_upstream, wheel_alone, wheel_lean), strict=True))
    print("| what | way | CPU s | wall | peak memory | wheel | |\n|---|---|--:|--:|--:|--:|---|")
    for way, cost in sums.items():
        print(row(f"sample of {len(names)}", way, cost, note=f"wall and peak of the largest; {jobs} at a time"))
    for way in WAYS:
        wheel = sizes[way]
        size = human_bytes(wheel.stat().st_size) if wheel else ""
        if way in whole:
            print(row("whole", way, whole[way], size=size, note="its own machine's wall; peak of the largest unit"))
        elif way == WAYS[0] and guess:
            middle, low, high = (f"{cpu_s:.0f}" for cpu_s in guess)
            print(f"| whole | {way} | {middle} |  |  | {size} | scaled, {libraries} libraries; {low} to {high} |")
        elif size:
            print(row("whole", way, None, size=size, note="not built in this run"))
    if file is not None:
        measured = {name: {way: asdict(cost) for way, cost in ways.items()} for name, ways in units.items()}
        wholes = {way: asdict(cost) for way, cost in whole.items()}
        values = {"targets": targets, "sample": measured, "whole": wholes, "upstreams_list_scaled": guess}
        file.write_text(json.dumps(values, indent=2) + "\n")
    chosen = whole if len(whole) == 2 else sums
    if not chosen:
        print("nothing to compare: give two records, or builds for a sample")
        return
    if guess and WAYS[2] in whole:
        print(f"lean_over_upstreams_list: {whole[WAYS[2]].cpu_s / guess[0]:.4f}")
    print(f"lean_over_sm120a_alone: {chosen[WAYS[2]].cpu_s / chosen[WAYS[1]].cpu_s:.3f}")


if __name__ == "__main__":
    main()
