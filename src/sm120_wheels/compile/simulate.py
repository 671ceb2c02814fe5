"""How long a build would take elsewhere: the policy itself, driven by a made-up clock and profiles.

It also knows what fixed job counts do with the same units, for comparison: they start in the order given and look at
cores only.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sm120_wheels.compile.policy import Policy, Task


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """``makespan`` in seconds; ``peak``: the most memory in use at once, by the true needs, in bytes. ``starts`` and
    ``ends`` in seconds for each task."""

    makespan: float
    peak: int
    starts: Mapping[str, float]
    ends: Mapping[str, float]


def simulate(
    tasks: Sequence[Task],
    *,
    cores: int,
    budget: int,
    truth: Mapping[str, tuple[int, float]] | None = None,
    window: int | None = None,
) -> Outcome:
    """Run the policy over ``tasks``, each of which arrives at its ``arrived`` (seconds). ``truth`` gives the real
    (bytes, seconds) where the tasks are only predictions; ``window`` is how many tasks of one build wait or run before
    others of it arrive (ninja's job count; default: all)."""
    policy = Policy(budget=budget, cores=cores, patience_s=float("inf"))
    real = truth or {}
    arriving: dict[str, deque[Task]] = {}
    for task in sorted(tasks, key=lambda t: t.arrived):
        arriving.setdefault(task.build, deque()).append(task)
    here = dict.fromkeys(arriving, 0)
    running: list[tuple[float, str, str]] = []
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    use: dict[str, int] = {}
    now, peak = 0.0, 0
    while True:
        for build, queue in arriving.items():
            while queue and queue[0].arrived <= now and (window is None or here[build] < window):
                policy.submit(queue.popleft())
                here[build] += 1
        for task in policy.admit(now):
            memory, seconds = real.get(task.key, (task.memory, task.seconds))
            starts[task.key], use[task.key] = now, memory
            policy.observe(task.key, memory)
            heapq.heappush(running, (now + seconds, task.key, task.build))
        peak = max(peak, sum(use.values()))
        coming = [queue[0].arrived for queue in arriving.values() if queue and queue[0].arrived > now]
        moments = coming + [end for end, _, _ in running[:1]]
        if not moments:
            break
        now = min(moments)
        while running and running[0][0] == now:
            _, key, build = heapq.heappop(running)
            policy.finish(key)
            ends[key] = now
            here[build] -= 1
            del use[key]
    return Outcome(makespan=max(ends.values(), default=0.0), peak=peak, starts=starts, ends=ends)


def fixed_jobs(tasks: Sequence[Task], *, jobs: int) -> Outcome:
    """What ``ninja -j JOBS`` does: the next in the order given, whenever a job is free, whatever memory there is."""
    running: list[tuple[float, str]] = []
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    use: dict[str, int] = {}
    now, peak = 0.0, 0
    for task in tasks:
        if len(running) >= jobs:
            now, key = heapq.heappop(running)
            del use[key]
        starts[task.key], use[task.key], ends[task.key] = now, task.memory, now + task.seconds
        heapq.heappush(running, (now + task.seconds, task.key))
        peak = max(peak, sum(use.values()))
    return Outcome(makespan=max(ends.values(), default=0.0), peak=peak, starts=starts, ends=ends)


#: The job counts that people use, from (cores, budget in bytes, largest unit in bytes).
BASELINES: Mapping[str, Callable[[int, int, int], int]] = {
    "-j cores": lambda cores, budget, largest: cores,
    "-j cores/3": lambda cores, budget, largest: max(1, cores // 3),
    "-j memory/8 GB": lambda cores, budget, largest: max(1, min(cores, int(budget / 8e9))),
    "-j memory/largest": lambda cores, budget, largest: max(1, min(cores, budget // largest)),
}
