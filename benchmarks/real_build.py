"""A real build, scheduled by need and by fixed job counts, in one run on one machine.

    python benchmarks/real_build.py BUILD --profile FILE --memory 20GiB --static 1 --static 2 [--targets NAME ...]

BUILD is a configured folder with a build.ninja (`sm120 build --keep-work` leaves one, `benchmarks.lean --prepare` makes
one); our run puts the launcher before its compiles, the fixed runs take it out. Each run starts clean, also of what
earlier builds measured. The memory of a run is the sum of resident sizes of ninja's whole process tree, sampled
five times a second. A fixed count that used more than the budget is no rival, and neither is one that failed. The last
line is our wall time over the best rival's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.lean import environment, most_resident
from sm120_wheels.cli.options import Bytes
from sm120_wheels.compile.budget import oom_kills
from sm120_wheels.compile.session import compile_session
from sm120_wheels.files import human_bytes, human_seconds

_WRAPPER = re.compile(r"(/stable-compile\.sh)[ \t]+(?:\S*/sm120-launch[ \t]+)?")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Seconds and bytes. ``oom_kills``: rise of the kernel's count, anywhere on the host."""

    name: str
    wall_s: float
    peak: int
    oom_kills: int
    ok: bool
    efficiency: float | None = None


def manifest(build: Path) -> str:
    """The build file with CMake's rules, where the launcher stands, in place of their include line."""
    text = (build / "build.ninja").read_text()
    rules = build / "CMakeFiles" / "rules.ninja"
    return text.replace("include CMakeFiles/rules.ninja", rules.read_text()) if rules.is_file() else text


def behind(text: str, launcher: str = "") -> str:
    """The build file with that launcher, or none, before each compile. Raises UsageError where it has no compile."""
    found, count = _WRAPPER.subn(rf"\1 {launcher} " if launcher else r"\1 ", text)
    if not count:
        raise click.UsageError("no compile of the build file stands behind stable-compile.sh")
    return found


def ninja(build: Path, file: str, jobs: int, targets: tuple[str, ...], env: dict[str, str], name: str) -> Run:
    subprocess.run(["ninja", "-C", str(build), "-f", file, "-t", "clean"], check=True, stdout=subprocess.DEVNULL)
    before, began = oom_kills(), time.monotonic()
    process = subprocess.Popen(
        ["ninja", "-C", str(build), "-f", file, f"-j{jobs}", "-k0", *targets], env=env, stdout=subprocess.DEVNULL
    )

    with most_resident(process.pid) as peaks:
        code = process.wait()
        wall = time.monotonic() - began
    run = Run(name=name, wall_s=round(wall, 1), peak=peaks[0], oom_kills=oom_kills() - before, ok=code == 0)
    print(
        f"{name}: {human_seconds(run.wall_s)}, peak {human_bytes(run.peak)}, {run.oom_kills} OOM kills, "
        f"{'ok' if run.ok else 'FAILED'}",
        file=sys.stderr,
        flush=True,
    )
    return run


def ours(
    build: Path, profile: Path | None, memory: int, cores: int | None, targets: tuple[str, ...], where: Path
) -> Run:
    os.environ["SM120_CACHE_DIR"] = str(where / "cache")
    os.environ["SM120_RUNTIME_DIR"] = str(where / "run")
    with compile_session(
        package="bench", work_dir=where / "work", profile=profile, budget=memory, cores=cores
    ) as session:
        (build / "ours.ninja").write_text(behind(manifest(build), session.launcher[0]))
        env = {**environment(build), **session.environment}
        run = ninja(build, "ours.ninja", session.ninja_jobs, targets, env, "ours")
    for line in session.summary.lines():
        print(line, file=sys.stderr)
    return Run(**{**asdict(run), "efficiency": session.summary.efficiency})


@click.command()
@click.argument("build", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--profile", type=click.Path(path_type=Path, exists=True), help="Measured files (CSV).")
@click.option("--memory", type=Bytes(), required=True, help="The budget.")
@click.option("--cores", type=int, help="Most compiles at once. Default: the cores.")
@click.option("--static", multiple=True, type=int, required=True, help="A fixed job count to compare. Repeatable.")
@click.option("--targets", multiple=True, help="Targets of ninja. Default: all. Repeatable.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the runs there as JSON.")
def main(
    build: Path,
    profile: Path | None,
    memory: int,
    cores: int | None,
    static: tuple[int, ...],
    targets: tuple[str, ...],
    file: Path | None,
) -> None:
    build = build.absolute()
    (build / "static.ninja").write_text(behind(manifest(build)))
    with tempfile.TemporaryDirectory(prefix="sm120-bench-") as where:
        runs = [ours(build, profile, memory, cores, targets, Path(where))]
    for jobs in static:
        runs.append(ninja(build, "static.ninja", jobs, targets, environment(build), f"ninja -j{jobs}"))
        if file is not None:
            file.write_text(json.dumps([asdict(run) for run in runs], indent=2) + "\n")
    print("| run | wall | peak memory | within the budget | OOM kills | ended well |\n|---|--:|--:|---|--:|---|")
    for run in runs:
        cells = [human_seconds(run.wall_s), human_bytes(run.peak), "yes" if run.peak <= memory else "no"]
        print("| " + " | ".join([run.name, *cells, str(run.oom_kills), "yes" if run.ok else "no"]) + " |")
    rivals = [run.wall_s for run in runs[1:] if run.ok and run.peak <= memory]
    if not rivals:
        print("no fixed job count stayed within the budget")
        return
    print(f"ours_over_best_static: {runs[0].wall_s / min(rivals):.3f}")


if __name__ == "__main__":
    main()
