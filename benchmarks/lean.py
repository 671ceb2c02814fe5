"""What the lean build saves, on one machine in one run: upstream's architecture list, sm_120a alone, and lean.

    python benchmarks/lean.py --alone BUILD --lean BUILD --sample copy.cu,moe_sum.cu [--whole-alone RECORD …]

BUILD is a configured folder with a build.ninja (`sm120 build … --keep-work` leaves one): the one of `--alone` from a
build `--without-patches lean --whole-headers`, the one of `--lean` from a build without these options. Each sampled
translation unit is compiled once in each of the three ways, one after the other, into a temporary folder; for
upstream's list the -gencode options of `alone` are replaced. CPU seconds are user and system time of all processes;
peak memory is the sum of resident sizes of the process tree, five times a second, or the largest process if that is
more.

RECORD is the compile-summary.json of a finished build, for figures of whole wheels (CPU and peak of its largest
translation unit; wall needs equal machines); `--wheel-*` give sizes. Upstream's whole wheel is never built here: its
CPU is the sample's ratio times the record of `alone`, times the two libraries that upstream compiles the same sources
for, and the table says "scaled". Nothing is said of what was not given. The last line is lean over sm_120a alone, in
CPU seconds: of whole wheels where both records are given, else of the sample.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from sm120_wheels.compile.sampling import tree
from sm120_wheels.files import human_bytes, human_seconds

#: What sgl-kernel 0.4.4's CMakeLists.txt compiles for on x86_64 with CUDA 13, seven targets.
UPSTREAM = "80,89,90,90a,100a,103a,120a"
_TARGET = re.compile(r"^(?:-gencode|--generate-code)(?:=|$)")
WAYS = ("upstream's list", "sm_120a alone", "lean")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """CPU and wall seconds, bytes at the peak."""

    cpu_s: float
    wall_s: float
    peak: int


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


def for_targets(argv: list[str], targets: list[str]) -> list[str]:
    """The same compile for other GPU targets."""
    kept, skip = [], False
    for word in argv:
        if skip or _TARGET.match(word):
            skip = not skip and "=" not in word.partition("arch=")[0]
            continue
        kept.append(word)
    return [*kept, *(f"-gencode=arch=compute_{t},code=sm_{t}" for t in targets)]


def compile_once(argv: list[str], build: Path, env: dict[str, str]) -> Cost:
    """Run one compile; ends the benchmark where it fails."""
    peak, ended = 0, threading.Event()
    with tempfile.TemporaryDirectory(prefix="sm120-bench-") as where:
        argv = list(argv)
        argv[argv.index("-o") + 1] = str(Path(where) / "unit.o")
        for option in ("-MF", "-MT"):
            if option in argv:
                argv[argv.index(option) + 1] = str(Path(where) / "unit.d")
        began = time.monotonic()
        process = subprocess.Popen(argv, cwd=build, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

        def sample() -> None:
            nonlocal peak
            while not ended.wait(0.2):
                peak = max(peak, tree(process.pid).resident)

        sampler = threading.Thread(target=sample)
        sampler.start()
        assert process.stderr is not None
        said = process.stderr.read().decode("utf-8", "replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - began
        ended.set()
        sampler.join()
    if process.returncode:
        raise click.ClickException(f"a compile failed ({shlex.join(argv)[-200:]}):\n{said[-2000:]}")
    return Cost(cpu_s=usage.ru_utime + usage.ru_stime, wall_s=wall, peak=max(peak, usage.ru_maxrss * 1024))


def environment(build: Path) -> dict[str, str]:
    """What stable-compile.sh needs; one folder before all includes is taken from the plan beside the build."""
    env = {**os.environ, "SM120_STABLE_BUILD_ROOT": str(build), "SM120_STABLE_NVCC_SEED": "-frandom-seed"}
    plan = build.parent / "records" / "0-plan.json"
    if plan.is_file():
        record: dict[str, Any] = json.loads(plan.read_text(encoding="utf-8"))
        if name := record["output"].get("lean_headers"):
            from sm120_wheels import headers

            env["SM120_STABLE_NVCC_FIRST"] = f"-I{headers.folder(name)}"
    return env


def total(costs: list[Cost]) -> Cost:
    return Cost(cpu_s=sum(c.cpu_s for c in costs), wall_s=sum(c.wall_s for c in costs), peak=max(c.peak for c in costs))


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


def sampled(names: list[str], alone: Path, lean: Path, targets: list[str]) -> dict[str, Cost]:
    """The three ways side by side, one unit after the other."""
    costs: dict[str, list[Cost]] = {way: [] for way in WAYS}
    for name in names:
        plain, _ = command_of(alone, name)
        leaner, _ = command_of(lean, name)
        runs = {
            WAYS[0]: (for_targets(without_launchers(plain), targets), alone),
            WAYS[1]: (without_launchers(plain), alone),
            WAYS[2]: (without_launchers(leaner), lean),
        }
        for way, (argv, build) in runs.items():
            cost = compile_once(argv, build, environment(build))
            costs[way].append(cost)
            print(
                f"{name}, {way}: {cost.cpu_s:.1f} CPU s, {human_seconds(cost.wall_s)}, {human_bytes(cost.peak)}",
                file=sys.stderr,
                flush=True,
            )
    return {way: total(of_way) for way, of_way in costs.items()}


def row(what: str, way: str, cost: Cost | None, *, size: str = "", note: str = "") -> str:
    cells = ["", "", ""] if cost is None else [f"{cost.cpu_s:.0f}", human_seconds(cost.wall_s), human_bytes(cost.peak)]
    return "| " + " | ".join([what, way, *cells, size, note]) + " |"


@click.command()
@click.option("--alone", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Build for sm_120a alone.")
@click.option("--lean", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Lean build.")
@click.option("--sample", default="", help="Translation units to compile in all three ways, with commas.")
@click.option("--targets", default=UPSTREAM, show_default=True, help="Upstream's architecture list.")
@click.option("--libraries", default=2, show_default=True, help="How often upstream compiles the same sources.")
@click.option("--whole-alone", type=click.Path(path_type=Path, exists=True), help="compile-summary.json.")
@click.option("--whole-lean", type=click.Path(path_type=Path, exists=True), help="compile-summary.json.")
@click.option("--wheel-upstream", type=click.Path(path_type=Path, exists=True))
@click.option("--wheel-alone", type=click.Path(path_type=Path, exists=True))
@click.option("--wheel-lean", type=click.Path(path_type=Path, exists=True))
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there as JSON.")
def main(
    alone: Path | None,
    lean: Path | None,
    sample: str,
    targets: str,
    libraries: int,
    whole_alone: Path | None,
    whole_lean: Path | None,
    wheel_upstream: Path | None,
    wheel_alone: Path | None,
    wheel_lean: Path | None,
    file: Path | None,
) -> None:
    names = [name for name in sample.split(",") if name]
    if bool(names) != bool(alone and lean):
        raise click.UsageError("--sample needs both --alone and --lean, and they need --sample")
    units: dict[str, Cost] = {}
    if names and alone and lean:
        units = sampled(names, alone.absolute(), lean.absolute(), targets.split(","))
    records = {WAYS[1]: whole_alone, WAYS[2]: whole_lean}
    whole = {way: recorded(path) for way, path in records.items() if path}
    sizes = dict(zip(WAYS, (wheel_upstream, wheel_alone, wheel_lean), strict=True))
    print("| what | way | CPU s | wall | peak memory | wheel | |\n|---|---|--:|--:|--:|--:|---|")
    for way, cost in units.items():
        print(row(f"sample of {len(names)}", way, cost, note="one after the other"))
    for way in WAYS:
        wheel = sizes[way]
        size = human_bytes(wheel.stat().st_size) if wheel else ""
        if way in whole:
            print(row("whole", way, whole[way], size=size, note="its own machine's wall; peak of the largest unit"))
        elif way == WAYS[0] and units and WAYS[1] in whole:
            factor = units[way].cpu_s / units[WAYS[1]].cpu_s * libraries
            scaled = whole[WAYS[1]].cpu_s * factor
            print(f"| whole | {way} | {scaled:.0f} |  |  | {size} | scaled: sample's ratio × {libraries} libraries |")
        elif size:
            print(row("whole", way, None, size=size, note="not built in this run"))
    if file is not None:
        values = {"sample": units, "whole": whole}
        plain = {kind: {way: asdict(cost) for way, cost in costs.items()} for kind, costs in values.items()}
        file.write_text(json.dumps({"names": names, "targets": targets, **plain}, indent=2) + "\n")
    chosen = whole if len(whole) == 2 else units
    if not chosen:
        print("nothing to compare: give two records, or a sample")
        return
    print(f"lean_over_sm120a_alone: {chosen[WAYS[2]].cpu_s / chosen[WAYS[1]].cpu_s:.3f}")


if __name__ == "__main__":
    main()
