"""``sm120 simulate``: how long a build would take on another machine, by the scheduler's own policy and a profile."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from packaging.version import Version
from rich.table import Table

from sm120_wheels import console, paths
from sm120_wheels.cli.options import Bytes, json_option
from sm120_wheels.compile.budget import measure
from sm120_wheels.compile.predict import claimed
from sm120_wheels.compile.profile import Profile, check_fits, read_profile
from sm120_wheels.compile.simulate import BASELINES, fixed_jobs, simulate
from sm120_wheels.compile.simulate_machines import Link, Machines, repeated, simulate_machines
from sm120_wheels.compile.task import lower_bound
from sm120_wheels.errors import SettingError
from sm120_wheels.files import human_bytes, human_seconds
from sm120_wheels.recipe import load
from sm120_wheels.report import columns

#: Assumptions for several builders, from one measured file, sgl-kernel's copy.cu (docs/evidence/caches.md): which part
#: of nvcc's time stays on the client (preprocessing, fatbinary); what is sent, MB: three texts of 2 MB compressed.
LOCAL_SHARE = 0.08
SENT_MB = 6.0
#: The rest of a transfer, seconds. Not measured: a guess for a local network.
ROUND_TRIP_S = 0.2


@dataclass(frozen=True, kw_only=True)
class FixedJobs:
    jobs: int
    makespan_s: float
    peak: int
    over_budget: bool


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """One machine. Seconds and bytes. ``efficiency``: lower bound over makespan."""

    cores: int
    memory: int
    makespan_s: float
    lower_bound_s: float
    efficiency: float
    peak: int
    fixed: dict[str, FixedJobs]


def simulated(profile: Profile, *, cores: int, memory: int, window: int | None = None) -> Simulated:
    """Raises :class:`InsufficientMemoryError` where the largest file cannot fit in ``memory`` (bytes)."""
    check_fits(profile, ceiling=memory)
    true = sorted(profile.tasks(), key=lambda t: t.key)
    predicted = [claimed(t) for t in true]
    truth = {t.key: t for t in true}
    outcome = simulate(predicted, cores=cores, budget=memory, truth=truth, window=window)
    bound = lower_bound(true, cores=cores, budget=memory)
    fixed = {}
    for name, count in BASELINES.items():
        jobs = count(cores, memory, max(t.memory for t in true))
        ran = fixed_jobs(true, jobs=jobs)
        fixed[name] = FixedJobs(
            jobs=jobs, makespan_s=round(ran.makespan, 1), peak=ran.peak, over_budget=ran.peak > memory
        )
    return Simulated(
        cores=cores,
        memory=memory,
        makespan_s=round(outcome.makespan, 1),
        lower_bound_s=round(bound, 1),
        efficiency=round(bound / outcome.makespan, 4) if outcome.makespan else 1.0,
        peak=outcome.peak,
        fixed=fixed,
    )


@dataclass(frozen=True, kw_only=True)
class SimulatedMachines:
    """Several builders and a client. Seconds and bytes; ``cores`` and ``memory`` are each builder's."""

    machines: int
    cores: int
    memory: int
    files: int
    local_share: float
    link_bytes_per_s: float
    sent_bytes_each: int
    makespan_s: float
    lower_bound_s: float
    one_machine_s: float
    peak: int
    files_each: tuple[int, ...]
    safe_jobs: int
    """With so many under way no builder can run out of memory, whichever files it is given."""


def simulated_machines(
    profile: Profile, *, machines: int, cores: int, memory: int, files: int | None, local_share: float, link: Link
) -> SimulatedMachines:
    """Raises :class:`InsufficientMemoryError` where the largest file cannot fit on a builder (``memory`` in bytes)."""
    check_fits(profile, ceiling=memory)
    measured = sorted(profile.tasks(), key=lambda t: t.key)
    true = [replace(task, tail=None) for task in (repeated(measured, files) if files else measured)]
    predicted = [claimed(t) for t in true]
    truth = {t.key: t for t in true}

    def run(count: int) -> Machines:
        return simulate_machines(
            predicted,
            machines=count,
            cores=cores,
            budget=memory,
            client_cores=cores,
            local_share=local_share,
            link=link,
            truth=truth,
        )

    outcome = run(machines)
    alone = simulate(predicted, cores=cores, budget=memory, truth=truth)
    return SimulatedMachines(
        machines=machines,
        cores=cores,
        memory=memory,
        files=len(true),
        local_share=local_share,
        link_bytes_per_s=link.bytes_per_s,
        sent_bytes_each=link.bytes_each,
        makespan_s=round(outcome.makespan, 1),
        lower_bound_s=round(outcome.lower_bound, 1),
        one_machine_s=round(alone.makespan, 1),
        peak=outcome.peak,
        files_each=outcome.files_each,
        safe_jobs=machines * min(cores, memory // max(task.memory for task in predicted)),
    )


def find_profile(recipe: str, version: str | None, arch: str | None) -> Path:
    """The recipe's profile for a version and architecture; the latest version's where none is asked for. Those of
    builds without lean patches (``…-whole.csv``) are taken with --profile only."""
    name = load(recipe).name
    folder = paths.recipes_root() / name / "profiles"
    found = {tuple(p.stem.rsplit("-", 1)): p for p in folder.glob("*.csv") if not p.stem.endswith("-whole")}
    matching = [key for key in found if key[0] == (version or key[0]) and key[1] == (_profile_arch(arch) or key[1])]
    if not matching:
        raise SettingError(
            f"no compile profile of {name} for what was asked",
            where=str(folder),
            why=f"it has {', '.join(sorted(p.stem for p in found.values()))}" if found else "it has none",
            hint="give one with --profile FILE, or build once: what is measured is kept",
        )
    return found[max(matching, key=lambda key: (Version(key[0]), key[1]))]


def _profile_arch(arch: str | None) -> str:
    return f"sm{arch.replace('.', '')}" if arch else ""


@click.command("simulate")
@click.argument("recipe", required=False)
@click.option("--version", metavar="X.Y.Z", help="Upstream version whose profile is used. Default: the latest.")
@click.option("--arch", metavar="ARCH", help="GPU target whose profile is used, e.g. 12.0a.")
@click.option("--profile", "file", type=click.Path(path_type=Path), metavar="FILE", help="A profile of your own (CSV).")
@click.option(
    "--cores", type=click.IntRange(1), multiple=True, metavar="N", help="Repeatable. Default: this machine's."
)
@click.option(
    "--memory", type=Bytes(), multiple=True, metavar="SIZE", help="For compiles. Repeatable. Default: free here."
)
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="How many compiles the build tool asks for at once.")
@click.option(
    "--machines", type=click.IntRange(1), metavar="N", help="Compile on N builders of these cores and this memory."
)
@click.option("--files", type=click.IntRange(1), metavar="N", help="As if there were N files: the profile's, repeated.")
@click.option(
    "--local-share",
    type=click.FloatRange(0, 1),
    default=LOCAL_SHARE,
    show_default=True,
    help="With --machines: the part of a compile that stays on the client.",
)
@click.option(
    "--sent",
    type=float,
    default=SENT_MB,
    show_default=True,
    metavar="MB",
    help="With --machines: what is sent to a builder for each file.",
)
@click.option(
    "--network",
    type=click.FloatRange(min=1),
    default=1000.0,
    show_default=True,
    metavar="MBIT",
    help="With --machines: speed of the client's link.",
)
@json_option
def command(
    recipe: str | None,
    version: str | None,
    arch: str | None,
    file: Path | None,
    cores: tuple[int, ...],
    memory: tuple[int, ...],
    jobs: int | None,
    machines: int | None,
    files: int | None,
    local_share: float,
    sent: float,
    network: float,
    as_json: bool,
) -> None:
    """How long a build's compiles would take with other cores and memory.

    The scheduler's own policy is driven by a made-up clock and a profile of measured files, beside the fixed job
    counts that people use. Links, configure and start-up are not in it.

      sm120 simulate sgl-kernel --cores 64 --memory 128GiB
      sm120 simulate sgl-kernel --machines 8 --cores 32 --memory 128GiB
    """
    if (recipe is None) == (file is None):
        raise click.UsageError("name a recipe, or give a profile with --profile")
    profile = read_profile(file if file is not None else find_profile(recipe or "", version, arch))
    here = measure()
    if machines is not None:
        link = Link(bytes_each=int(sent * 1e6), bytes_per_s=network * 1e6 / 8, seconds_each=ROUND_TRIP_S)
        _print_machines(
            [
                simulated_machines(
                    profile, machines=machines, cores=c, memory=m, files=files, local_share=local_share, link=link
                )
                for c in cores or (here.cores,)
                for m in memory or (here.memory,)
            ],
            as_json=as_json,
        )
        return
    if files is not None:
        raise click.UsageError("--files goes with --machines")
    rows = [
        simulated(profile, cores=c, memory=m, window=jobs)
        for c in cores or (here.cores,)
        for m in memory or (here.memory,)
    ]
    if as_json:
        console.out.print_json(json.dumps([asdict(row) for row in rows]))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("cores", "memory", "scheduled by", "time", "lower bound", "peak memory"):
        table.add_column(heading, justify="left" if heading == "scheduled by" else "right")
    for row in rows:
        table.add_row(
            str(row.cores),
            human_bytes(row.memory),
            "need (this tool)",
            human_seconds(row.makespan_s),
            human_seconds(row.lower_bound_s),
            human_bytes(row.peak),
        )
        for name, fixed in row.fixed.items():
            time = "out of memory" if fixed.over_budget else human_seconds(fixed.makespan_s)
            table.add_row("", "", f"{name} = -j{fixed.jobs}", time, "", human_bytes(fixed.peak))
    console.out.print(table)


def _print_machines(rows: list[SimulatedMachines], *, as_json: bool) -> None:
    if as_json:
        console.out.print_json(json.dumps([asdict(row) for row in rows]))
        return
    cells = [("builders", "cores", "memory", "files", "time", "one builder", "lower bound", "peak on one", "--jobs")]
    cells += [
        (
            str(row.machines),
            str(row.cores),
            human_bytes(row.memory),
            str(row.files),
            human_seconds(row.makespan_s),
            human_seconds(row.one_machine_s),
            human_seconds(row.lower_bound_s),
            human_bytes(row.peak),
            str(row.safe_jobs),
        )
        for row in rows
    ]
    for line in columns(cells):
        console.out.print(line, markup=False, soft_wrap=True)
    console.out.print(
        "With --jobs so large, or smaller, sccache-dist overfills no builder's memory, which it does not know."
    )
    console.out.print(
        f"Assumed: {rows[0].local_share:.0%} of each compile stays on a client with as many cores as a builder, "
        f"{rows[0].sent_bytes_each / 1e6:g} MB are sent for each file at {rows[0].link_bytes_per_s * 8 / 1e6:g} Mbit/s."
    )
