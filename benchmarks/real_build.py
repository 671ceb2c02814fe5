"""A real build, scheduled by need and by fixed job counts, in one run on one machine.

    python -m benchmarks.real_build BUILD --profile FILE (--memory 40GiB | --limit 24GiB) --static 4-12 \
        [--cores 16] [--only NAME …] [--without NAME …] [--json FILE]

BUILD is a configured folder with a build.ninja (`sm120 build --keep-work` leaves one, `benchmarks.lean --prepare` makes
one); our run puts the launcher before its compiles, the fixed runs take it out. `--only` and `--without` choose among
its translation units by what their paths hold. Each run starts clean, also of what earlier builds measured.

`--memory` is a budget: our run is told it, and a fixed count that used more is no rival. `--limit` is a memory cgroup
with that hard limit and no swap around each run, a fresh one for each (root, v1 or v2): nobody is told anything.
The memory of a run is the sum of resident sizes of ninja's whole process tree, five times a second; in a cgroup its own
peak as well, which counts page cache.

A fixed count is ended as soon as it is over the budget or behind the best so far; where a compile fails, ninja ends
when those that run have. The counts are tried in the order given. The last line is our wall time over the best rival's.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from benchmarks.lean import environment, most_resident
from sm120_wheels.cli.options import Bytes
from sm120_wheels.compile.budget import memory_folders, oom_kills
from sm120_wheels.compile.profile import read_profile, write_profile
from sm120_wheels.compile.session import compile_session
from sm120_wheels.files import human_bytes, human_seconds

_WRAPPER = re.compile(r"(/stable-compile\.sh)[ \t]+(?:\S*/sm120-launch[ \t]+)?")
_CGROUPS = Path("/sys/fs/cgroup")
_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Run:
    """Seconds and bytes. ``oom_kills``: rise of the kernel's count, anywhere on the host. ``ended``: "well", or why
    the run is no rival. ``cgroup_peak``: as the cgroup counted it, with page cache."""

    name: str
    wall_s: float
    peak: int
    oom_kills: int
    ended: str
    cgroup_peak: int | None = None
    bound_s: float | None = None
    """Our run alone: no schedule on these cores within this budget could have been faster."""

    @property
    def ok(self) -> bool:
        return self.ended == "well"


class Counts(click.ParamType[list[int]]):
    """``6``, ``4-8`` or ``8-4``."""

    name = "counts"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if not (isinstance(value, str) and (found := re.fullmatch(r"(\d+)(?:-(\d+))?", value))):
            self.fail("a number or two with a dash", param, ctx)
        first, last = int(found[1]), int(found[2] or found[1])
        return list(range(first, last + 1)) if first <= last else list(range(first, last - 1, -1))


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


def units(build: Path, only: tuple[str, ...], without: tuple[str, ...]) -> dict[str, str]:
    """The chosen sources, each with the object that its compile makes."""
    listed = subprocess.run(["ninja", "-C", str(build), "-t", "compdb"], check=True, capture_output=True, text=True)
    compiles = {c["file"]: c["output"] for c in json.loads(listed.stdout) if _WRAPPER.search(c["command"])}
    chosen = {
        source: made
        for source, made in compiles.items()
        if (not only or any(name in source for name in only)) and not any(name in source for name in without)
    }
    if not chosen:
        raise click.UsageError(f"none of the {len(compiles)} translation units of {build} is chosen")
    return chosen


@contextlib.contextmanager
def limited(limit: int | None) -> Iterator[Path | None]:
    """This process in a new memory cgroup, and what it starts."""
    if limit is None:
        yield None
        return
    v1 = (_CGROUPS / "memory" / "memory.limit_in_bytes").exists()
    top = _CGROUPS / "memory" if v1 else _CGROUPS
    if not v1:
        (top / "cgroup.subtree_control").write_text("+memory")
    before = next(iter(memory_folders()), top)
    folder = top / f"sm120-bench-{os.getpid()}-{next(_numbers)}"
    folder.mkdir()
    try:
        (folder / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(limit))
        swap = folder / ("memory.memsw.limit_in_bytes" if v1 else "memory.swap.max")
        if swap.exists():
            swap.write_text(str(limit) if v1 else "0")
        (folder / "cgroup.procs").write_text(str(os.getpid()))
        yield folder
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):  # a broker stays for a while
            folder.rmdir()


def counted(folder: Path | None) -> int | None:
    """The peak of a cgroup in bytes."""
    files = [folder / "memory.peak", folder / "memory.max_usage_in_bytes"] if folder is not None else []
    return next((int(file.read_text()) for file in files if file.exists()), None)


@dataclass(frozen=True, kw_only=True)
class Build:
    """What is built in each run: ``objects`` of ``folder``'s build.ninja. Bytes; ``where``: for what a run leaves."""

    folder: Path
    objects: list[str]
    profile: Path
    memory: int | None
    limit: int | None
    cores: int | None
    where: Path
    summary: Path | None

    def ninja(self, file: str, jobs: int, env: dict[str, str], name: str, *, rival_of: float | None = None) -> Run:
        """Run ninja. ``rival_of``: the best wall time so far; without one it runs to its end."""
        command = ["ninja", "-C", str(self.folder), "-f", file]
        subprocess.run([*command, "-t", "clean"], check=True, stdout=subprocess.DEVNULL)
        scratch = self.where / f"tmp-{next(_numbers)}"
        scratch.mkdir()
        env = {**env, "TMPDIR": str(scratch)}
        before, began, ended = oom_kills(), time.monotonic(), "well"
        process = subprocess.Popen([*command, f"-j{jobs}", *self.objects], env=env, stdout=subprocess.DEVNULL)
        with most_resident(process.pid) as peaks:
            while process.poll() is None:
                time.sleep(0.1)
                if rival_of is None:
                    continue
                if self.memory is not None and peaks[0] > self.memory:
                    ended = "over the budget"
                elif time.monotonic() - began > rival_of:
                    ended = "behind"
                if ended != "well":
                    process.send_signal(signal.SIGINT)
                    process.wait()
            wall = time.monotonic() - began
        if process.returncode and ended == "well":
            ended = "FAILED"
        if ended == "well" and self.memory is not None and peaks[0] > self.memory:
            ended = "over the budget"
        return Run(name=name, wall_s=round(wall, 1), peak=peaks[0], oom_kills=oom_kills() - before, ended=ended)

    def ours(self) -> Run:
        os.environ["SM120_CACHE_DIR"] = str(self.where / "cache")
        os.environ["SM120_RUNTIME_DIR"] = str(self.where / "run")
        with (
            limited(self.limit) as group,
            compile_session(
                package="bench",
                work_dir=self.where / "work",
                profile=self.profile,
                budget=self.memory,
                cores=self.cores,
            ) as session,
        ):
            print(f"budget: {human_bytes(session.budget.memory)} ({session.budget.bound_by})", file=sys.stderr)
            (self.folder / "ours.ninja").write_text(behind(manifest(self.folder), session.launcher[0]))
            env = {**environment(self.folder), **session.environment}
            run = self.ninja("ours.ninja", session.ninja_jobs, env, "ours")
            run = replace(run, cgroup_peak=counted(group))
        if self.summary is not None:
            self.summary.write_text(json.dumps(session.summary.to_json(), indent=2) + "\n")
        for line in session.summary.lines():
            print(line, file=sys.stderr)
        return replace(run, bound_s=round(session.summary.lower_bound, 1))

    def fixed(self, jobs: int, best: float) -> Run:
        with limited(self.limit) as group:
            run = self.ninja("static.ninja", jobs, environment(self.folder), f"ninja -j{jobs}", rival_of=best)
            return replace(run, cgroup_peak=counted(group))


def say(run: Run) -> None:
    inside = f" ({human_bytes(run.cgroup_peak)} counted by the cgroup)" if run.cgroup_peak is not None else ""
    print(
        f"{run.name}: {human_seconds(run.wall_s)}, peak {human_bytes(run.peak)}{inside}, {run.oom_kills} OOM kills, "
        f"{run.ended}",
        file=sys.stderr,
        flush=True,
    )


def report(runs: list[Run]) -> None:
    print("| run | wall | peak memory | the cgroup's peak | OOM kills | ended |\n|---|--:|--:|--:|--:|---|")
    for run in runs:
        wall = human_seconds(run.wall_s) if run.ok else f"(ended at {human_seconds(run.wall_s)})"
        inside = human_bytes(run.cgroup_peak) if run.cgroup_peak is not None else ""
        cells = [run.name, wall, human_bytes(run.peak), inside, str(run.oom_kills), run.ended]
        print("| " + " | ".join(cells) + " |")
    print(f"no schedule could beat {runs[0].bound_s} s (cores, budget, longest file of our run)")
    if not runs[0].ok:
        raise click.ClickException(f"our run ended: {runs[0].ended}")
    rivals = [run.wall_s for run in runs[1:] if run.ok]
    if not rivals:
        print("no fixed job count stayed within the memory" if runs[1:] else "no fixed job count was tried")
        return
    print(f"ours_over_best_static: {runs[0].wall_s / min(rivals):.3f}")


@click.command()
@click.argument("build", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--profile", type=click.Path(path_type=Path, exists=True), required=True, help="Measured files (CSV).")
@click.option("--memory", type=Bytes(), help="The budget.")
@click.option("--limit", type=Bytes(), help="The hard limit of a memory cgroup around each run.")
@click.option("--cores", type=int, help="Most compiles at once in our run. Default: the cores.")
@click.option("--static", multiple=True, type=Counts(), help="Fixed job counts. Repeatable.")
@click.option("--only", multiple=True, help="Part of a source's path. Default: all. Repeatable.")
@click.option("--without", multiple=True, help="Part of a source's path to leave out. Repeatable.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the runs there as JSON.")
@click.option("--summary", type=click.Path(path_type=Path), help="Write our run's record there, for `sm120 profile`.")
def main(
    build: Path,
    profile: Path,
    memory: int | None,
    limit: int | None,
    cores: int | None,
    static: tuple[list[int], ...],
    only: tuple[str, ...],
    without: tuple[str, ...],
    file: Path | None,
    summary: Path | None,
) -> None:
    if memory is None and limit is None:
        raise click.UsageError("give --memory or --limit")
    build = build.absolute()
    (build / "static.ninja").write_text(behind(manifest(build)))
    chosen = units(build, only, without)
    known = read_profile(profile)
    needs = {unit.source: unit for source in chosen if (unit := known.find(source)) is not None}
    print(f"{len(chosen)} translation units, {len(needs)} of them in the profile", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="sm120-bench-") as where:
        narrowed = Path(where) / "profile.csv"
        write_profile(narrowed, needs.values(), comment="The chosen files.")
        work = Build(
            folder=build,
            objects=list(chosen.values()),
            profile=narrowed,
            memory=memory,
            limit=limit,
            cores=cores,
            where=Path(where),
            summary=summary,
        )
        runs: list[Run] = []
        best = float("inf")
        for jobs in [None, *itertools.chain(*static)]:
            run = work.ours() if jobs is None else work.fixed(jobs, best)
            best = min(best, run.wall_s) if jobs is not None and run.ok else best
            runs.append(run)
            say(run)
            if file is not None:
                file.write_text(json.dumps([asdict(run) for run in runs], indent=2) + "\n")
    report(runs)


if __name__ == "__main__":
    main()
