"""How close the admission policy comes to what no schedule can beat, and what fixed job counts do with the same files.

    python benchmarks/schedule.py

For every profile that ships with a recipe, over cores × budgets: the policy's own code is driven by a made-up clock.
It is given predictions with the margin that the broker adds; time passes and memory is used as measured. The last line
is the geometric mean of makespan over lower bound. Exits with 1 when the policy once used more than the budget.
After the profiles comes a second, small build that begins while a large one runs, beside one queue for both.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from sm120_wheels.compile.budget import GIB
from sm120_wheels.compile.predict import claimed
from sm120_wheels.compile.profile import Profile, read_profile
from sm120_wheels.compile.simulate import BASELINES, fixed_jobs, simulate
from sm120_wheels.compile.task import lower_bound
from sm120_wheels.paths import recipes_root

CORES = (2, 4, 8, 16, 32, 64, 128)
SECOND_AFTER_S = 300.0
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
    predicted = [claimed(t) for t in true]
    outcome = simulate(predicted, cores=cores, budget=budget, truth={t.key: t for t in true})
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


def two_builds(large: Profile, small: Profile, *, cores: int, budget: int, fair: bool) -> tuple[float, float, bool]:
    """Seconds until the large build has ended, and from its beginning until the small one has, five minutes into it."""
    builds = {"large": (large, 0.0), "small": (small, SECOND_AFTER_S)}
    tasks, truth = [], {}
    for build, (profile, arrived) in builds.items():
        for t in sorted(profile.tasks(), key=lambda t: t.key):
            key = f"{build}/{t.key}"
            whose = build if fair else ""
            tasks.append(replace(claimed(t), key=key, arrived=arrived, build=whose))
            truth[key] = replace(t, key=key)
    outcome = simulate(tasks, cores=cores, budget=budget, truth=truth)
    last = {build: max(e for key, e in outcome.ends.items() if key.startswith(build)) for build in builds}
    return last["large"], last["small"] - SECOND_AFTER_S, outcome.peak > budget


def report_two_builds(large: Path, small: Path) -> bool:
    """Print the table; whether the budget was ever exceeded."""
    first, second = read_profile(large), read_profile(small)
    print(f"## {title(small)} begun {SECOND_AFTER_S:.0f} s after {title(large)}\n")
    print("Seconds for each build; `alone`: with the machine to itself; `one queue`: the same policy without turns.\n")
    print("| cores | budget GiB | first: alone | one queue | turns | second: alone | one queue | turns |")
    print("|--:" * 8 + "|")
    over = False
    for cores in CORES[:5]:
        for budget in BUDGETS[:5:2]:
            queue = two_builds(first, second, cores=cores, budget=budget, fair=False)
            turns = two_builds(first, second, cores=cores, budget=budget, fair=True)
            alone = [measure(profile, cores, budget).ours for profile in (first, second)]
            over = over or turns[2]
            cells = (alone[0], queue[0], turns[0], alone[1], queue[1], turns[1])
            print(f"| {cores} | {budget // GIB} | " + " | ".join(f"{cell:.0f}" for cell in cells) + " |")
    print()
    return over


def title(profile: Path) -> str:
    return f"{profile.parent.parent.name} {profile.stem}"


def main() -> int:
    points: list[Point] = []
    for path in sorted(Path(recipes_root()).glob("*/profiles/*.csv")):
        profile = read_profile(path)
        here = [measure(profile, cores, budget) for cores in CORES for budget in BUDGETS]
        report(f"{path.parent.parent.name} {path.stem} ({len(profile.units)} files)", here)
        points += here
    recipes = recipes_root()
    over = report_two_builds(
        recipes / "sgl-kernel" / "profiles" / "0.4.4-sm120a-whole.csv",
        recipes / "flashinfer" / "profiles" / "0.7.4-sm120f.csv",
    )
    print(f"makespan_over_lower_bound: {geometric_mean([p.ours / p.bound for p in points]):.4f}")
    return 1 if over or any(p.over for p in points) else 0


if __name__ == "__main__":
    sys.exit(main())
