"""How close the admission policy comes to what no schedule can beat, and what fixed job counts do with the same files.

    python benchmarks/schedule.py

For every profile that ships with a recipe, over cores × budgets: the policy's own code is driven by a made-up clock.
It is given predictions with the margin that the broker adds; time passes and memory is used as measured. The last line
is the geometric mean of makespan over lower bound. Exits with 1 when the policy once used more than the budget.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from sm120_wheels.compile.budget import GIB
from sm120_wheels.compile.policy import Task, lower_bound
from sm120_wheels.compile.predict import reserved
from sm120_wheels.compile.profile import Profile, read_profile
from sm120_wheels.compile.simulate import BASELINES, fixed_jobs, simulate
from sm120_wheels.paths import recipes_root

CORES = (2, 4, 8, 16, 32, 64, 128)
BUDGETS = tuple(n * GIB for n in (24, 32, 48, 64, 128, 256))


@dataclass(frozen=True, kw_only=True)
class Point:
    """One machine. Seconds; ``baselines``: name → (jobs, makespan, whether it used more than the budget)."""

    cores: int
    budget: int
    bound: float
    ours: float
    over: bool
    baselines: dict[str, tuple[int, float, bool]]


def measure(profile: Profile, cores: int, budget: int) -> Point:
    true = sorted(profile.tasks(), key=lambda t: t.key)  # as a build file lists them
    predicted = [Task(key=t.key, memory=reserved(t.memory), seconds=t.seconds) for t in true]
    outcome = simulate(predicted, cores=cores, budget=budget, truth={t.key: (t.memory, t.seconds) for t in true})
    largest = max(t.memory for t in true)
    baselines = {}
    for name, count in BASELINES.items():
        jobs = count(cores, budget, largest)
        fixed = fixed_jobs(true, jobs=jobs)
        baselines[name] = (jobs, fixed.makespan, fixed.peak > budget)
    return Point(
        cores=cores,
        budget=budget,
        bound=lower_bound(true, cores=cores, budget=budget),
        ours=outcome.makespan,
        over=outcome.peak > budget,
        baselines=baselines,
    )


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def report(name: str, points: list[Point]) -> None:
    names = list(BASELINES)
    print(f"## {name}\n")
    print("Makespans in seconds; `OOM`: more memory than the budget would have been in use.\n")
    print("| cores | budget GiB | lower bound | ours | ours / bound | " + " | ".join(names) + " |")
    print("|--:" * (5 + len(names)) + "|")
    for p in points:
        cells = [
            f"OOM (-j{jobs})" if over else f"{makespan:.0f} (-j{jobs})" for jobs, makespan, over in p.baselines.values()
        ]
        ours = "OOM" if p.over else f"{p.ours:.0f}"
        print(
            f"| {p.cores} | {p.budget // GIB} | {p.bound:.0f} | {ours} | {p.ours / p.bound:.3f} | "
            + " | ".join(cells)
            + " |"
        )
    print("\n| job count | over the budget | times as long as ours where it is not |\n|---|--:|--:|")
    print(f"| ours | {sum(p.over for p in points)} of {len(points)} | 1.00 |")
    for baseline in names:
        fits = [p.baselines[baseline][1] / p.ours for p in points if not p.baselines[baseline][2]]
        slower = f"{geometric_mean(fits):.2f} (at worst {max(fits):.2f})" if fits else "–"
        print(f"| {baseline} | {len(points) - len(fits)} of {len(points)} | {slower} |")
    print()


def main() -> int:
    points: list[Point] = []
    for path in sorted(Path(recipes_root()).glob("*/profiles/*.csv")):
        profile = read_profile(path)
        here = [measure(profile, cores, budget) for cores in CORES for budget in BUDGETS]
        report(f"{path.parent.parent.name} {path.stem} ({len(profile.units)} files)", here)
        points += here
    print(f"makespan_over_lower_bound: {geometric_mean([p.ours / p.bound for p in points]):.4f}")
    return 1 if any(p.over for p in points) else 0


if __name__ == "__main__":
    sys.exit(main())
