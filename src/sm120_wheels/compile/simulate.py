"""How long a build would take elsewhere: the policy itself, driven by a made-up clock and a profile.

It also knows what fixed job counts do with the same units, for comparison: they start in the order given and look at
cores only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sm120_wheels.compile.policy import Policy, Task


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """``makespan`` in seconds; ``peak``: the most memory in use at once, by the true needs, in bytes."""

    makespan: float
    peak: int
    starts: Mapping[str, float]


def simulate(
    tasks: Sequence[Task],
    *,
    cores: int,
    budget: int,
    truth: Mapping[str, tuple[int, float]] | None = None,
    window: int | None = None,
) -> Outcome:
    """Run the policy over ``tasks``. ``truth`` gives the real (bytes, seconds) where the tasks are only predictions;
    ``window`` is how many tasks arrive before others end (ninja's job count; default: all)."""
    policy = Policy(budget=budget, cores=cores, patience_s=float("inf"))
    real = truth or {}
    arriving = list(reversed(tasks))
    ends: list[tuple[float, str]] = []
    starts: dict[str, float] = {}
    use: dict[str, int] = {}
    now, peak = 0.0, 0
    while arriving or ends or policy.waiting:
        while arriving and (window is None or len(policy.waiting) + len(policy.running) < window):
            policy.submit(arriving.pop())
        for task in policy.admit(now):
            memory, seconds = real.get(task.key, (task.memory, task.seconds))
            starts[task.key], use[task.key] = now, memory
            policy.observe(task.key, memory)
            heapq.heappush(ends, (now + seconds, task.key))
        peak = max(peak, sum(use.values()))
        now, key = heapq.heappop(ends)
        policy.finish(key)
        del use[key]
        while ends and ends[0][0] == now:
            _, key = heapq.heappop(ends)
            policy.finish(key)
            del use[key]
    return Outcome(makespan=now, peak=peak, starts=starts)


def fixed_jobs(tasks: Sequence[Task], *, jobs: int) -> Outcome:
    """What ``ninja -j JOBS`` does: the next in the order given, whenever a job is free, whatever memory there is."""
    running: list[tuple[float, str]] = []
    starts: dict[str, float] = {}
    use: dict[str, int] = {}
    now, peak = 0.0, 0
    for task in tasks:
        if len(running) >= jobs:
            now, key = heapq.heappop(running)
            del use[key]
        starts[task.key], use[task.key] = now, task.memory
        heapq.heappush(running, (now + task.seconds, task.key))
        peak = max(peak, sum(use.values()))
    return Outcome(makespan=max((end for end, _ in running), default=0.0), peak=peak, starts=starts)


#: The job counts that people use, from (cores, budget in bytes, largest unit in bytes).
BASELINES: Mapping[str, Callable[[int, int, int], int]] = {
    "-j cores": lambda cores, budget, largest: cores,
    "-j cores/3": lambda cores, budget, largest: max(1, cores // 3),
    "-j memory/8 GB": lambda cores, budget, largest: max(1, min(cores, int(budget / 8e9))),
    "-j memory/largest": lambda cores, budget, largest: max(1, min(cores, budget // largest)),
}
