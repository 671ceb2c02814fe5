"""How long a build would take elsewhere: the policy itself, driven by a made-up clock and profiles.

It also knows what fixed job counts do with the same units, for comparison: they start in the order given and look at
cores only.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sm120_wheels.compile.policy import Policy
from sm120_wheels.compile.task import Task


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
    truth: Mapping[str, Task] | None = None,
    window: int | None = None,
) -> Outcome:
    """Run the policy over ``tasks``, each of which arrives at its ``arrived`` (seconds). ``truth`` gives by key what
    they really take where the tasks are only predictions; ``window`` is how many tasks of one build wait or run before
    others of it arrive (ninja's job count; default: all)."""
    policy = Policy(budget=budget, cores=cores, patience_s=float("inf"))
    real = truth or {}
    arriving: dict[str, deque[Task]] = {}
    for task in sorted(tasks, key=lambda t: t.arrived):
        arriving.setdefault(task.build, deque()).append(task)
    here = dict.fromkeys(arriving, 0)
    events: list[tuple[float, str, Task, bool]] = []
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
            true = real.get(task.key, task)
            starts[task.key], use[task.key] = now, true.memory
            policy.observe(task.key, true.memory)
            heapq.heappush(events, (now + true.seconds, task.key, task, True))
            if true.tail is not None and true.tail.after < true.seconds:
                heapq.heappush(events, (now + true.tail.after, task.key, task, False))
        peak = max(peak, sum(use.values()))
        coming = [queue[0].arrived for queue in arriving.values() if queue and queue[0].arrived > now]
        moments = coming + [moment for moment, *_ in events[:1]]
        if not moments:
            break
        now = min(moments)
        while events and events[0][0] == now:
            _, key, task, ended = heapq.heappop(events)
            if not ended:
                use[key] = real.get(key, task).memory_past_peak
                policy.enter_tail(key, use[key])
                continue
            policy.finish(key)
            ends[key] = now
            here[task.build] -= 1
            del use[key]
    return Outcome(makespan=max(ends.values(), default=0.0), peak=peak, starts=starts, ends=ends)


def fixed_jobs(tasks: Sequence[Task], *, jobs: int) -> Outcome:
    """What ``ninja -j JOBS`` does: the next in the order given, whenever a job is free, whatever memory there is."""
    running: list[tuple[float, str]] = []
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    changes: list[tuple[float, int]] = []
    now = 0.0
    for task in tasks:
        if len(running) >= jobs:
            now, _ = heapq.heappop(running)
        end = now + task.seconds
        starts[task.key], ends[task.key] = now, end
        heapq.heappush(running, (end, task.key))
        less_from = end if task.tail is None else min(now + task.tail.after, end)
        changes += [(now, task.memory), (less_from, task.memory_past_peak - task.memory), (end, -task.memory_past_peak)]
    peak = max(itertools.accumulate(change for _, change in sorted(changes)), default=0)
    return Outcome(makespan=max(ends.values(), default=0.0), peak=peak, starts=starts, ends=ends)


#: The job counts that people use, from (cores, budget in bytes, largest unit in bytes).
BASELINES: Mapping[str, Callable[[int, int, int], int]] = {
    "-j cores": lambda cores, budget, largest: cores,
    "-j cores/3": lambda cores, budget, largest: max(1, cores // 3),
    "-j memory/8 GB": lambda cores, budget, largest: max(1, min(cores, int(budget / 8e9))),
    "-j memory/largest": lambda cores, budget, largest: max(1, min(cores, budget // largest)),
}
